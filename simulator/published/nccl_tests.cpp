#include "simulator/published/nccl_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

using Words = std::vector<std::string_view>;

constexpr std::size_t kMaxLine = std::size_t{1} << 20;
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 24, kMaxSize = std::int64_t{1} << 60;

Words words_of(std::string_view line) {
  Words words;
  std::size_t at = 0;
  while (at < line.size()) {
    const std::size_t from = line.find_first_not_of(" \t\r", at);
    if (from == std::string_view::npos) break;
    at = std::min(line.size(), line.find_first_of(" \t\r", from));
    words.push_back(line.substr(from, at - from));
  }
  return words;
}

// The whole word as a number; decimals allowed.
std::optional<double> number(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) return {};
  return value;
}
std::optional<std::int64_t> whole(std::string_view word) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return {};
  return value;
}

bool is_type(std::string_view word) {
  constexpr std::array types = {"int8",   "uint8",    "int32", "uint32", "int64",    "uint64",   "half",   "float",
                                "double", "bfloat16", "int",   "char",   "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2"};
  return std::find(types.begin(), types.end(), word) != types.end();
}

// Text in UTF-8; NUL is no text.
bool is_text(std::string_view line) {
  for (std::size_t i = 0; i < line.size();) {
    const auto c = static_cast<unsigned char>(line[i]);
    const std::size_t more = c < 0x80                ? 0
                             : c >= 0xC2 && c < 0xE0 ? 1
                             : c >= 0xE0 && c < 0xF0 ? 2
                             : c >= 0xF0 && c < 0xF5 ? 3
                                                     : 9;
    if (c == 0 || more == 9 || i + more >= line.size()) return false;
    for (std::size_t k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(line[i + k]) & 0xC0) != 0x80) return false;
    i += more + 1;
  }
  return true;
}

enum class Named { unknown, all_gather, reduce_scatter, all_reduce, other };

// "all_gather_perf", "allgather-2n.log" in any text.
Named collective_in(std::string_view text) {
  std::string plain;
  for (const char c : text)
    if (c != '_' && c != '-' && c != ' ') plain += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  const auto has = [&](const char* word) { return plain.find(word) != std::string::npos; };
  if (has("allgather")) return Named::all_gather;
  if (has("reducescatter")) return Named::reduce_scatter;
  if (has("allreduce")) return Named::all_reduce;
  for (const char* word : {"alltoall", "sendrecv", "broadcast", "hypercube", "scatterperf", "gatherperf", "reduceperf"})
    if (has(word)) return Named::other;
  return Named::unknown;
}

// Where the columns of the table are, counted from the type's.
struct Columns {
  bool redop = true, root = true, wrong = true;
  std::size_t per_half = 4;  // time, algbw, busbw and, mostly, a count or an error
};

struct Half {
  double microseconds = 0, algorithm = 0, bus = 0;
};
struct TableRow {
  std::int64_t line = 0;
  double size = 0;
  bool operation = false, root = false, wrong = false;  // reduces; has a root; results were wrong
  std::optional<Half> out_of_place, in_place;
};

class LogReader {
 public:
  LogReader(std::string_view where, const NcclLogOptions& options)
      : where_(where), options_(options), by_file_(collective_in(base(where))) {}

  void line(std::string_view text, std::int64_t at) {
    at_ = at;
    const bool starts =
        text.find("nThread ") != std::string_view::npos && text.find("minBytes") != std::string_view::npos;
    if (starts) start_test();
    else if (text.find("_perf") != std::string_view::npos && text.find("concluded") == std::string_view::npos)
      if (const Named named = collective_in(text.substr(0, text.find("_perf") + 5)); named != Named::unknown)
        next_named_ = named;
    const Words words = words_of(text);
    if (!device_line(text, words) && !header(words)) row(words);
  }

  NcclLog finish() {
    use_table();
    if (rows_ == 0)
      throw InputError(place(), "no table of nccl-tests up to here", "give what all_gather_perf and its like print");
    const auto tell = [&](std::int64_t count, std::int64_t first, const char* what) {
      if (count > 0)
        log_.notes.push_back(fmt::format("{}: {} {} left out: {} (the first is line {})", where_, count,
                                         count == 1 ? "row" : "rows", what, first));
    };
    tell(cut_.count, cut_.first, "cut off");
    tell(wrong_.count, wrong_.first, "wrong results");
    tell(others_.count, others_.first, "of a collective that FSDP does not use");
    tell(silent_.count, silent_.first, "size or time 0");
    return std::move(log_);
  }

 private:
  struct Count {
    std::int64_t count = 0, first = 0;
    void add(std::int64_t line) {
      if (count++ == 0) first = line;
    }
  };

  static std::string_view base(std::string_view path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string_view::npos ? path : path.substr(slash + 1);
  }
  [[nodiscard]] std::string place() const {
    return fmt::format("{}: line {}", where_, table_.empty() ? at_ : table_.front().line);
  }

  void start_test() {
    use_table();
    hosts_.clear();
    columns_ = {};
    named_ = next_named_;
    next_named_ = Named::unknown;
  }

  // "#  Rank  3 Group  0 Pid  8756 on  node17 device  3 [0x03] NVIDIA H100 80GB HBM3"
  bool device_line(std::string_view text, const Words& words) {
    for (std::size_t i = 0; i + 5 < words.size(); ++i) {
      if (words[i] != "Rank" || !whole(words[i + 1])) continue;
      const bool group = words[i + 2] == "Group";
      const std::size_t pid = i + (group ? 4 : 2);
      if (pid + 5 >= words.size() || words[pid] != "Pid" || words[pid + 2] != "on" || words[pid + 4] != "device")
        continue;
      if (*whole(words[i + 1]) == 0 && !table_.empty()) start_test();
      if (group && words[i + 3] != "0") return true;  // communicators side by side: all alike
      ++hosts_[std::string(words[pid + 3])];
      if (log_.device.empty())
        if (const std::size_t bracket = text.find(']', text.find(" device ")); bracket != std::string_view::npos) {
          const Words name = words_of(text.substr(bracket + 1));
          for (const std::string_view word : name) log_.device += (log_.device.empty() ? "" : " ") + std::string(word);
        }
      return true;
    }
    return false;
  }

  // "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time ..."
  bool header(const Words& words) {
    const auto size = std::find(words.begin(), words.end(), "size");
    if (size == words.end() || words.end() - size < 6 || size[1] != "count" || size[2] != "type") return false;
    const auto has = [&](std::string_view name) { return std::find(size, words.end(), name) != words.end(); };
    const auto time = std::find(size, words.end(), "time");
    const auto again = time == words.end() ? time : std::find(time + 1, words.end(), "time");
    if (time == words.end()) return false;
    columns_ = {has("redop"), has("root"), has("#wrong"), static_cast<std::size_t>(again - time)};
    return true;
  }

  void row(const Words& words) {
    for (std::size_t i = 2; i < words.size(); ++i) {
      if (!is_type(words[i])) continue;
      const auto size = whole(words[i - 2]), count = whole(words[i - 1]);
      if (!size || !count || *size < 0 || *count < 0 || *size > kMaxSize) continue;
      ++rows_;
      add(static_cast<double>(*size), Words(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end()));
      return;
    }
  }

  void add(double size, const Words& tail) {
    TableRow row;
    row.line = at_;
    row.size = size;
    std::size_t at = 0;
    if (columns_.redop && at < tail.size() && !number(tail[at])) row.operation = tail[at++] != "none";
    if (columns_.root && at < tail.size()) row.root = whole(tail[at++]).value_or(-1) >= 0;
    row.out_of_place = half(tail, at, row.wrong);
    row.in_place = half(tail, at + columns_.per_half, row.wrong);
    if (!row.out_of_place && !row.in_place) cut_.add(at_);
    else if (row.wrong) wrong_.add(at_);
    else table_.push_back(row);
  }

  // The test that ends here.
  void use_table() {
    if (table_.empty()) return;
    const auto [ranks, per_node] = group();
    const Named named = which(static_cast<double>(ranks));
    for (const TableRow& row : table_) {
      if (named == Named::other) {
        others_.add(row.line);
        continue;
      }
      const bool out_first = named == Named::reduce_scatter;
      const std::optional<Half>& first = out_first ? row.out_of_place : row.in_place;
      const std::optional<Half>& second = out_first ? row.in_place : row.out_of_place;
      const double time = first && first->microseconds > 0 ? first->microseconds : second ? second->microseconds : 0;
      if (row.size <= 0 || time <= 0) {
        silent_.add(row.line);
        continue;
      }
      const CollectiveKind kind = named == Named::all_gather       ? CollectiveKind::all_gather
                                  : named == Named::reduce_scatter ? CollectiveKind::reduce_scatter
                                                                   : CollectiveKind::all_reduce;
      log_.samples.push_back({kind, ranks, per_node, row.size, time * 1e-6});
    }
    table_.clear();
  }

  std::optional<Half> half(const Words& tail, std::size_t at, bool& wrong) const {
    if (at + 3 > tail.size()) return {};
    const auto time = number(tail[at]), algorithm = number(tail[at + 1]), bus = number(tail[at + 2]);
    if (!time || !algorithm || !bus || *time < 0 || *time > 1e12) return {};
    if (columns_.per_half > 3 && columns_.wrong && at + 3 < tail.size())
      if (const auto errors = number(tail[at + 3]); errors && *errors > 0) wrong = true;
    return Half{*time, *algorithm, *bus};
  }

  // All-reduce by the ratio of the two bandwidths where the table shows one, which no name overrules; the others by
  // name, else by operation.
  [[nodiscard]] Named which(double n) const {
    const Half* widest = nullptr;
    bool operation = false, root = false;
    for (const TableRow& row : table_) {
      operation |= row.operation;
      root |= row.root;
      for (const auto* half : {&row.out_of_place, &row.in_place})
        if (*half && (*half)->algorithm > 0.5 && (!widest || (*half)->algorithm > widest->algorithm)) widest = &**half;
    }
    if (root) return Named::other;  // broadcast, reduce and their like
    const Named by_name = named_ != Named::unknown ? named_ : next_named_ != Named::unknown ? next_named_ : by_file_;
    if (widest && widest->bus / widest->algorithm > 1.5 * (n - 1) / n) return Named::all_reduce;
    if (by_name != Named::unknown && !(widest && by_name == Named::all_reduce)) return by_name;
    if (!operation) return Named::all_gather;
    if (!widest)
      throw InputError(fmt::format("{}: line {}", where_, table_.front().line),
                       "cannot tell whether this is an all-reduce or a reduce-scatter",
                       "name the file after its test, such as reduce_scatter.log");
    return Named::reduce_scatter;
  }

  [[nodiscard]] std::pair<std::int64_t, std::int64_t> group() const {
    std::int64_t ranks = 0, per_node = kMaxRanks;
    for (const auto& [host, count] : hosts_) {
      ranks += count;
      per_node = std::min(per_node, count);
    }
    // Hosts of GB200 share NVLink in racks of 72 GPUs.
    if (ranks > 0 && gpu_of_device(log_.device) == "gb200") per_node = ranks / ((ranks + 71) / 72);
    if (options_.ranks) ranks = *options_.ranks;
    if (ranks == 0)
      throw InputError(place(),
                       "a table without its list of devices (\"# Rank 0 ...\"): the number of ranks is not known",
                       "give the whole log, or --ranks and --ranks-per-node");
    if (options_.ranks_per_node) per_node = *options_.ranks_per_node;
    else if (hosts_.empty())
      throw InputError(place(), "a table without its list of devices: the ranks per node are not known",
                       "give --ranks-per-node");
    if (ranks < 2)
      throw InputError(place(), "measured on one rank, which moves nothing", "run it on at least two GPUs");
    if (ranks > kMaxRanks || per_node < 1 || per_node > ranks)
      throw InputError(place(), fmt::format("{} ranks, {} per node, is impossible", ranks, per_node),
                       "correct --ranks and --ranks-per-node");
    return {ranks, per_node};
  }

  std::string where_;
  NcclLogOptions options_;
  Named by_file_, named_ = Named::unknown, next_named_ = Named::unknown;
  std::map<std::string, std::int64_t> hosts_;
  Columns columns_;
  NcclLog log_;
  std::int64_t at_ = 0, rows_ = 0;
  std::vector<TableRow> table_;  // of the test being read
  Count cut_, wrong_, others_, silent_;
};

}  // namespace

NcclLog read_nccl_tests(std::istream& in, std::string_view where, const NcclLogOptions& options) {
  LogReader reader(where, options);
  std::string line;
  std::int64_t at = 0;
  while (std::getline(in, line)) {
    ++at;
    if (line.size() > kMaxLine)
      throw InputError(fmt::format("{}: line {}", where, at), "is longer than 1 MiB", "give a log of nccl-tests");
    if (!is_text(line))
      throw InputError(fmt::format("{}: line {}", where, at), "is not UTF-8 text", "give a log of nccl-tests");
    reader.line(line, at);
  }
  if (at == 0) throw InputError(std::string(where), "is empty", "give a log of nccl-tests");
  return reader.finish();
}

std::vector<CollectiveCurve> curves_of(std::span<const NcclSample> samples) {
  std::map<std::tuple<CollectiveKind, std::int64_t, std::int64_t>, std::map<double, std::vector<double>>> groups;
  for (const NcclSample& s : samples) groups[{s.kind, s.ranks, s.ranks_per_node}][s.size].push_back(s.seconds);
  std::vector<CollectiveCurve> curves;
  for (auto& [group, sizes] : groups) {
    CollectiveCurve& curve = curves.emplace_back();
    std::tie(curve.kind, curve.ranks, curve.ranks_per_node) = group;
    for (auto& [size, seconds] : sizes) {
      std::sort(seconds.begin(), seconds.end());
      const std::size_t n = seconds.size();
      curve.points.push_back({size, (seconds[(n - 1) / 2] + seconds[n / 2]) / 2});
    }
  }
  return curves;
}

std::string gpu_of_device(std::string_view device) {
  struct Name {
    const char *part, *gpu;
  };
  // The first that occurs; longer names stand before their parts.
  constexpr std::array names = {Name{"A100-SXM4-40GB", "a100-sxm-40"},
                                Name{"A100-SXM4-80GB", "a100-sxm-80"},
                                Name{"A100-SXM-64GB", "a100-sxm-64"},
                                Name{"A100 80GB PCIe", "a100-pcie-80"},
                                Name{"A100-PCIE-80GB", "a100-pcie-80"},
                                Name{"A800-SXM4-80GB", "a800-sxm-80"},
                                Name{"H100 80GB HBM3", "h100-sxm-80"},
                                Name{"H100 64GB", "h100-sxm-64"},
                                Name{"H100 PCIe", "h100-pcie-80"},
                                Name{"H800", "h800-sxm-80"},
                                Name{"H200", "h200-sxm"},
                                Name{"GB200", "gb200"},
                                Name{"B200", "b200"},
                                Name{"B300", "b300"},
                                Name{"H20", "h20"},
                                Name{"L40S", "l40s"},
                                Name{"RTX 4090", "rtx-4090"},
                                Name{"V100-SXM2-16GB", "v100-sxm2-16"},
                                Name{"V100-SXM2-32GB", "v100-sxm2-32"},
                                Name{"MI300X", "mi300x"},
                                Name{"MI325X", "mi325x"},
                                Name{"MI250X", "mi250x"}};
  for (const Name& n : names)
    if (device.find(n.part) != std::string_view::npos) return n.gpu;
  return {};
}

}  // namespace fsdp
