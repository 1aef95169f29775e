// NCCL's model against a table of its values that an independent script computed from the same source (NCCL 2.28.9):
// winner and time of 105 cells, and the channels of ten machines as public NCCL graph logs and measurements have them.
#include "planner/costs/collectives/nccl.h"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/topology.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

constexpr std::int64_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;

struct Cell {
  const char* winner;  // "Ring/LL", or the algorithm alone
  double microseconds;
};
struct Row {
  const char* cluster;
  std::int64_t ranks, ranks_per_node;
  CollectiveKind kind;
  std::array<Cell, 7> cells;  // 64 KiB, 1, 4, 16, 64, 256 MiB, 1 GiB
};

constexpr auto AG = CollectiveKind::all_gather;
constexpr auto AR = CollectiveKind::all_reduce;

const std::vector<Row> kGolden = {
    {"dgx-a100-80",
     8,
     8,
     AG,
     {{{"Ring/LL", 11.5},
       {"Ring/LL", 21.3},
       {"Ring/LL128", 43.9},
       {"Ring/Simple", 93.4},
       {"Ring/Simple", 276.9},
       {"Ring/Simple", 1010.9},
       {"Ring/Simple", 3946.9}}}},
    {"dgx-a100-80",
     8,
     8,
     AR,
     {{{"Ring/LL", 16.3},
       {"Ring/LL", 35.9},
       {"Ring/LL128", 73.8},
       {"Ring/LL128", 173.6},
       {"Ring/Simple", 545},
       {"Ring/Simple", 2013},
       {"Ring/Simple", 7885}}}},
    {"dgx-h100",
     8,
     8,
     AG,
     {{{"Ring/LL", 11.2},
       {"Ring/LL", 17.3},
       {"Ring/LL", 36.8},
       {"Ring/LL128", 71.6},
       {"Ring/Simple", 195.3},
       {"Ring/Simple", 684.6},
       {"Ring/Simple", 2642.0}}}},
    {"dgx-h100",
     8,
     8,
     AR,
     {{{"Ring/LL", 15.8},
       {"Ring/LL", 28.0},
       {"NVLS", 40.4},
       {"NVLS", 86.7},
       {"NVLS", 271.7},
       {"NVLS", 1011.9},
       {"NVLS", 3972.6}}}},
    {"dgx-b200",
     8,
     8,
     AG,
     {{{"Ring/LL", 11.0},
       {"Ring/LL", 14.1},
       {"Ring/LL", 23.8},
       {"Ring/LL128", 49.5},
       {"Ring/Simple", 113.8},
       {"Ring/Simple", 358.4},
       {"Ring/Simple", 1337.1}}}},
    {"dgx-b200",
     8,
     8,
     AR,
     {{{"Ring/LL", 15.4},
       {"Ring/LL", 21.5},
       {"NVLS", 33.9},
       {"NVLS", 60.4},
       {"NVLS", 166.7},
       {"NVLS", 591.8},
       {"NVLS", 2292.2}}}},
    {"dgx-a100-80",
     64,
     8,
     AG,
     {{{"Ring/LL", 140.9},
       {"Ring/LL128", 160.5},
       {"Ring/LL128", 179.8},
       {"Ring/LL128", 257.2},
       {"Ring/LL128", 566.9},
       {"Ring/LL128", 1805.5},
       {"Ring/Simple", 5947.4}}}},
    {"dgx-h100",
     16,
     8,
     AG,
     {{{"Ring/LL", 24.9},
       {"Ring/LL128", 47.9},
       {"Ring/LL128", 58.0},
       {"Ring/LL128", 98.2},
       {"Ring/Simple", 233.8},
       {"Ring/Simple", 725.4},
       {"Ring/Simple", 2691.4}}}},
    {"dgx-h100",
     64,
     8,
     AG,
     {{{"Ring/LL", 84.7},
       {"Ring/LL", 132.1},
       {"Ring/LL128", 162.5},
       {"Ring/LL128", 204.7},
       {"Ring/LL128", 373.4},
       {"Ring/Simple", 984.9},
       {"Ring/Simple", 3049.3}}}},
    {"dgx-h100",
     64,
     8,
     AR,
     {{{"Tree/LL", 55.9},
       {"Tree/LL128", 97.6},
       {"Tree/LL128", 127.7},
       {"NVLSTree", 241.1},
       {"NVLSTree", 513.4},
       {"NVLSTree", 1602.3},
       {"NVLSTree", 5957.9}}}},
    {"dgx-h100",
     512,
     8,
     AG,
     {{{"Ring/LL", 627.9},
       {"Ring/LL", 676.0},
       {"Ring/LL", 829.9},
       {"Ring/LL128", 1174},
       {"Ring/LL128", 1345},
       {"Ring/LL128", 2030},
       {"Ring/LL128", 4767}}}},
    {"dgx-h100",
     512,
     8,
     AR,
     {{{"Tree/LL", 85.9},
       {"Tree/LL128", 148.6},
       {"Tree/LL128", 178.7},
       {"Tree/LL128", 294.2},
       {"NVLSTree", 643.8},
       {"NVLSTree", 1748},
       {"NVLSTree", 6164}}}},
    {"dgx-h100",
     2048,
     8,
     AG,
     {{{"Ring/LL", 2490},
       {"Ring/LL", 2539},
       {"Ring/LL", 2693},
       {"Ring/LL", 3309},
       {"Ring/LL128", 4667},
       {"Ring/LL128", 5353},
       {"Ring/LL128", 8094}}}},
    {"dgx-h100",
     8,
     1,
     AG,
     {{{"PAT", 44.2}, {"PAT", 71.5}, {"PAT", 158.9}, {"Ring", 412}, {"Ring", 1330}, {"Ring", 5000}, {"Ring", 19680}}}},
    {"dgx-h100",
     64,
     1,
     AG,
     {{{"PAT", 213}, {"PAT", 240}, {"PAT", 328}, {"PAT", 677}, {"PAT", 2075}, {"Ring", 6395}, {"Ring", 22910}}}},
};

std::string label(const NcclChoice& c) { return std::string(name(c.algorithm)) + "/" + std::string(name(c.protocol)); }

}  // namespace

TEST_CASE("golden table: winner and time of every cell") {
  constexpr std::array<std::int64_t, 7> sizes = {64 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB, 256 * MiB, GiB};
  for (const Row& row : kGolden) {
    const NcclModel model(load_cluster(row.cluster), row.ranks, row.ranks_per_node, false);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(row.cluster);
      CAPTURE(row.ranks);
      CAPTURE(sizes[i]);
      const NcclChoice c = model.choose(row.kind, Bytes(sizes[i]));
      CHECK(label(c).starts_with(row.cells[i].winner));
      CHECK(c.seconds().count() * 1e6 == relative(row.cells[i].microseconds).epsilon(0.005));
      if (row.kind == AG)  // a reduce-scatter is an all-gather backwards
        CHECK(model.choose(CollectiveKind::reduce_scatter, Bytes(sizes[i])).seconds() == c.seconds());
    }
  }
}

TEST_CASE(
    "a ring all-reduce over nodes pays 1.4 times its latency from 64 bytes per channel and rank on, 1.9 times before "
    "Ampere") {
  // 64 ranks on 8 nodes: 126 steps, 14 of them between nodes. 8.4 + 112 * 3.4 + 14 * 14 us, then 2 * 63 / 64 of the
  // bytes at 8 * 48 GB/s.
  const NcclModel hopper(load_cluster("dgx-h100", 64), 64, 8, false);
  const auto us = [](const NcclModel& m, std::int64_t bytes) {
    return m.price(NcclAlgorithm::ring, NcclProtocol::simple, AR, Bytes(bytes)).seconds().count() * 1e6;
  };
  const double latency = 8.4 + 112 * 3.4 + 14 * 14, per_byte = 2.0 * 63 / 64 / 384e3;
  CHECK(us(hopper, GiB) == relative(1.4 * latency + GiB * per_byte));
  CHECK(us(hopper, 64 * 8 * 64) == relative(1.4 * latency + 64 * 8 * 64 * per_byte));
  CHECK(us(hopper, 16 * KiB) == relative(latency + 16 * KiB * per_byte));
  const ClusterSpec volta = cluster_of(load_gpu("v100-sxm2-32", "test"), 64, 8);
  const NcclModel old(volta, 64, 8, false);
  const Channels ring = ring_channels(volta, 8, 8);
  CHECK(us(old, GiB) ==
        relative(1.9 * latency + GiB * 2.0 * 63 / 64 / (static_cast<double>(ring.count) * ring.speed * 1e-6)));
  // Inside a node it does not.
  const NcclModel node(load_cluster("dgx-h100"), 8, 8, false);
  CHECK(us(node, GiB) == relative(8.4 + 14 * 3.4 + GiB * 2.0 * 7 / 8 / 360e3));
}

TEST_CASE("channels: what NCCL's graph logs show") {
  struct Machine {
    const char* gpu;
    std::int64_t nodes, count;
    double speed;
    std::int64_t ctas;
  };
  for (const Machine& m : std::vector<Machine>{{"a100-sxm-80", 1, 12, 20, 24},
                                               {"h100-sxm-80", 1, 12, 30, 24},
                                               {"h200-sxm", 1, 12, 30, 24},
                                               {"h800-sxm-80", 1, 8, 20, 16},
                                               {"b200", 1, 16, 45, 32},
                                               {"h100-sxm-80", 8, 8, 48, 16},
                                               {"a100-sxm-80", 8, 8, 24, 16}}) {
    CAPTURE(m.gpu);
    CAPTURE(m.nodes);
    const Channels c = ring_channels(cluster_of(load_gpu(m.gpu, "test"), 8 * m.nodes, 8), 8, m.nodes);
    CHECK(c.count == m.count);
    CHECK(c.speed == relative(m.speed * 1e9));
    CHECK(c.ctas == m.ctas);
  }
  const Channels p4d = ring_channels(load_cluster("p4d", 16), 8, 2);
  CHECK(p4d.count == 4);
  CHECK(p4d.speed == relative(12e9));
  CHECK(p4d.ctas == 8);
  const Channels heads = nvls_channels(load_cluster("dgx-h100"), 8, 1),
                 many = nvls_channels(load_cluster("dgx-b200"), 8, 1);
  CHECK(heads.count == 8);
  CHECK(heads.speed == relative(40e9));
  CHECK(many.speed == relative(80e9));
  CHECK(nvls_channels(load_cluster("dgx-a100-80"), 8, 1).count == 0);
}
