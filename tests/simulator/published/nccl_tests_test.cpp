// Logs of nccl-tests: what is read from them, and what is said of those that are none. The logs are written here in the
// layouts that nccl-tests prints (2.0 to 2.19).
#include "simulator/published/nccl_tests.h"

#include <doctest/doctest.h>

#include <random>
#include <sstream>
#include <string>

#include "models/catalog.h"
#include "planner/costs/curve.h"
#include "tests/support/refusal.h"
#include "tests/support/relative.h"

using namespace fsdp;
using fsdp::testing::refusal;

namespace {

std::string devices(int nodes, int per_node, const std::string& gpu = "NVIDIA H100 80GB HBM3",
                    const std::string& tag = "") {
  std::string text = tag + "# Using devices\n";
  for (int r = 0; r < nodes * per_node; ++r)
    text += tag + "#  Rank " + std::to_string(r) + " Group  0 Pid  " + std::to_string(4000 + r) + " on  node" +
            std::to_string(r / per_node) + " device  " + std::to_string(r % per_node) + " [0000:18:00] " + gpu + "\n";
  return text;
}
const std::string kStart =
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n#\n";
const std::string kHeader =
    "#                                                              out-of-place                       in-place        "
    "  \n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
    "#wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)     "
    "  \n";
const std::string kGather =
    "           0             0     float    none      -1     5.10    0.00    0.00      0     5.20    0.00    0.00     "
    " 0\n"
    "     1048576         32768     float    none      -1    40.00   26.21   22.94      0    39.00   26.89   23.53     "
    " 0\n"
    "  1073741824      33554432     float    none      -1  2700.50  397.61  347.91      0   2690.0  399.16  349.27    "
    "N/A\n";
const std::string kReduce =
    "     1048576        262144     float     sum      -1    60.00   17.48   30.58      0    59.00   17.77   31.10     "
    " 0\n";
const std::string kEnd = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 127.6 \n#\n";

NcclLog read(const std::string& text, const std::string& where = "a.log", const NcclLogOptions& options = {}) {
  std::istringstream in(text);
  return read_nccl_tests(in, where, options);
}
std::string refused(const std::string& text, const std::string& where = "a.log", const NcclLogOptions& options = {}) {
  return refusal([&] { (void)read(text, where, options); });
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a log of one test: sizes, the half that FSDP does, ranks and nodes") {
  const NcclLog log = read(kStart + devices(2, 8) + "#\n" + kHeader + kGather + kEnd);
  CHECK(log.device == "NVIDIA H100 80GB HBM3");
  CHECK(gpu_of_device(log.device) == "h100-sxm-80");
  REQUIRE(log.samples.size() == 2);
  CHECK(log.samples[0] == NcclSample{CollectiveKind::all_gather, 16, 8, 1048576, 39.00 * 1e-6});  // in place
  CHECK(log.samples[1].seconds == relative(2690e-6));
  REQUIRE(log.notes.size() == 1);
  CHECK(has(log.notes[0], "1 row left out: size or time 0"));

  const NcclLog reduce = read("reduce_scatter_perf -b 8\n" + kStart + devices(1, 8) + kHeader +
                              "     1048576         32768     float     sum      -1    42.00   24.97   21.85      0    "
                              "39.00   26.89   23.53      0\n");
  REQUIRE(reduce.samples.size() == 1);
  CHECK(reduce.samples[0] == NcclSample{CollectiveKind::reduce_scatter, 8, 8, 1048576, 42.00 * 1e-6});  // out of place
}

TEST_CASE("several tests in one log, noise between, mpirun's tags, a log cut off, versions without a root") {
  const std::string noise = "node0:4000:4012 [0] NCCL INFO Channel 00/24 : 0 1 2 3\nWARNING: deprecated option\n\n";
  const std::string tag = "[1,0]<stdout>:";
  std::string tagged;
  std::istringstream lines(kHeader + kReduce);
  for (std::string line; std::getline(lines, line);) tagged += tag + line + "\n" + noise;
  const NcclLog log = read(noise + "# Collective test starting: all_gather_perf\n" + kStart + devices(1, 8) + noise +
                           kHeader + kGather + noise + kEnd + "# Collective test concluded: all_gather_perf\n" +
                           kStart + devices(2, 4) + kHeader + kReduce + kEnd);
  REQUIRE(log.samples.size() == 3);
  CHECK(log.samples[2] == NcclSample{CollectiveKind::all_reduce, 8, 4, 1048576,
                                     59.00 * 1e-6});  // by its bandwidths: 31.10 / 17.77 = 2 * 7/8
  const NcclLog mpi = read(tag + kStart + devices(1, 8, "NVIDIA A100-SXM4-80GB", tag) + tagged);
  REQUIRE(mpi.samples.size() == 1);
  CHECK(mpi.samples[0].kind == CollectiveKind::all_reduce);

  const std::string whole = kStart + devices(1, 8) + kHeader + kGather;
  std::size_t most = 0;
  for (std::size_t cut = whole.find(kGather); cut <= whole.size(); ++cut) {  // wherever it ends
    std::size_t n = 0;
    const std::string why = refusal([&] { n = read(whole.substr(0, cut)).samples.size(); });
    CHECK((why.empty() || has(why, "no table")));
    CHECK(n >= most);
    most = std::max(most, n);
  }
  CHECK(most == 2);
  // In the last row only the first half stands: out of place, better than nothing.
  const NcclLog part = read(whole.substr(0, whole.find("2690.0")));
  REQUIRE(part.samples.size() == 2);
  CHECK(part.samples[1].seconds == relative(2700.5e-6));
  const NcclLog stub = read(whole + "  2147483648      67108864     float    none      -1  5");
  CHECK(stub.samples.size() == 2);
  CHECK(has(stub.notes[0], "cut off"));

  // 2.0 to 2.12: no root, no operation for all-gathers, an error instead of a count.
  const NcclLog old = read(
      "# nThread 1 nGpus 4 minBytes 8 maxBytes 8 \n#   Rank  0 Pid  20141 on       gpu9 device  0 [0x3d] Tesla "
      "V100-SXM2-32GB\n"
      "#   Rank  1 Pid  20142 on       gpu9 device  1 [0x3e] Tesla V100-SXM2-32GB\n"
      "#       size         count      type     time   algbw   busbw  error     time   algbw   busbw  error\n"
      "     1048576         32768     float    40.00   26.21   13.11  1e-07    39.00   26.89   13.45  0e+00\n");
  REQUIRE(old.samples.size() == 1);
  CHECK(old.samples[0] == NcclSample{CollectiveKind::all_gather, 2, 2, 1048576, 39.00 * 1e-6});
  CHECK(gpu_of_device(old.device) == "v100-sxm2-32");
}

TEST_CASE("which collective: by the log's words, the file's name, the bandwidths") {
  const std::string rows =
      "     1048576        262144     float     sum      -1    60.00    0.01    0.01      0    59.00    0.01    0.01   "
      "   0\n";
  const std::string small = kStart + devices(1, 8) + kHeader + rows;
  CHECK(has(refused(small), "a.log: line 15: cannot tell"));
  CHECK(read(small, "runs/reduce-scatter.log").samples[0].kind == CollectiveKind::reduce_scatter);
  CHECK(read(small, "AllReduce_8.txt").samples[0].kind == CollectiveKind::all_reduce);
  // A bandwidth ratio is stronger than a name.
  CHECK(read(kStart + devices(1, 8) + kHeader + kReduce, "all_gather.log").samples[0].kind ==
        CollectiveKind::all_reduce);
  const NcclLog other = read("./build/alltoall_perf -b 8\n" + kStart + devices(1, 8) + kHeader + kGather);
  CHECK(other.samples.empty());
  CHECK(has(other.notes[0], "3 rows left out: of a collective that FSDP does not use"));
  const NcclLog wrong = read(kStart + devices(1, 8) + kHeader + kGather +
                             "     2097152         65536     float    none      -1    50.00   41.94   36.70     12    "
                             "49.00   42.80   37.45      0\n");
  CHECK(wrong.samples.size() == 2);
  CHECK(has(wrong.notes[0], "wrong results"));
}

TEST_CASE("curves: the median of equal sizes, one curve per shape of group") {
  const std::string one = kStart + devices(1, 8) + kHeader;
  const auto row = [](const std::string& time) {
    return "     1048576         32768     float    none      -1    40.00   26.21   22.94      0    " + time +
           "   26.89   23.53      0\n";
  };
  NcclLog log = read(one + row("39.00") + row("50.00") + row("41.00"));
  const NcclLog two = read(kStart + devices(2, 8) + kHeader + kGather);
  log.samples.insert(log.samples.end(), two.samples.begin(), two.samples.end());
  const auto curves = curves_of(log.samples);
  REQUIRE(curves.size() == 2);
  CHECK(curves[0].ranks == 8);
  CHECK(curves[0].points == std::vector<CurvePoint>{{1048576, 41.00 * 1e-6}});
  CHECK(curves[1].ranks_per_node == 8);
  CHECK(curves[1].points.size() == 2);
  CHECK(curves_of({}).empty());
}

TEST_CASE("what is no log is refused with file and line") {
  CHECK(has(refused(""), "a.log: is empty"));
  CHECK(has(refused("hello\nworld\n"), "a.log: line 2: no table of nccl-tests"));
  CHECK(has(refused("hello\n\xff\xfe\n"), "a.log: line 2: is not UTF-8"));
  CHECK(has(refused(std::string("PK\x03\x04\0\0", 6)), "a.log: line 1: is not UTF-8"));
  CHECK(has(refused(std::string((1 << 20) + 1, 'x')), "longer than 1 MiB"));
  CHECK(has(refused(kHeader + kGather), "a.log: line 4: a table without its list of devices"));
  CHECK(has(refused(kHeader + kGather, "a.log", {16, {}}), "ranks per node"));
  CHECK(read(kHeader + kGather, "a.log", {16, 8}).samples[0].ranks == 16);
  CHECK(has(refused(kHeader + kGather, "a.log", {8, 16}), "impossible"));
  CHECK(has(refused(kStart + devices(1, 1) + kHeader + kGather), "one rank"));
}

TEST_CASE("damaged logs are read or refused, and what is read is sound") {
  const std::string whole =
      "# Collective test starting: all_gather_perf\n" + kStart + devices(2, 8) + kHeader + kGather + kReduce + kEnd;
  std::mt19937 random(17);
  int read_ones = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string text = whole;
    for (unsigned hits = 1 + random() % 12; hits > 0; --hits) {
      const std::size_t at = random() % text.size(), length = random() % 40;
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(" \n09.-e#A\xff"[random() % 10]); break;
        case 1: text.erase(at, length); break;
        case 2: text.insert(at, text.substr(random() % text.size(), length)); break;
        default: text.insert(at, std::to_string(random())); break;
      }
      if (text.empty()) text = "x";
    }
    std::vector<NcclSample> samples;
    const std::string why = refusal([&] { samples = read(text).samples; });
    if (!why.empty()) {
      CHECK(has(why, "a.log"));
      continue;
    }
    ++read_ones;
    for (const CollectiveCurve& c : curves_of(samples)) {
      CHECK(c.ranks >= 2);
      CHECK((c.ranks_per_node >= 1 && c.ranks_per_node <= c.ranks));
      CHECK_NOTHROW(check_curve(c.points, "curve"));
    }
  }
  CHECK(read_ones > 100);
}
