// How long a collective's cost takes to look up: on tables made for the group (what a search repeats), and from
// nothing.
#include <benchmark/benchmark.h>

#include "models/catalog.h"
#include "planner/costs.h"
#include "planner/costs/collectives/model.h"
#include "planner/costs/collectives/nccl.h"

namespace {

using namespace fsdp;

constexpr CollectiveKind kKinds[] = {CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                                     CollectiveKind::all_reduce};

std::int64_t size_of_turn(std::int64_t i) { return (std::int64_t{1} << (16 + i % 14)) + 4096 * i % 65536; }

void choose(benchmark::State& state) {
  const NcclModel model(load_cluster("dgx-h100", 64), 64, 8, false);
  std::int64_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(model.choose(kKinds[i % 3], Bytes(size_of_turn(i))));
    ++i;
  }
}
BENCHMARK(choose);

void price(benchmark::State& state) {
  const ClusterSpec cluster = load_cluster("dgx-h100", 64);
  const CollectiveModel model({CollectiveKind::all_gather, Bytes(0), 64, 8}, cluster, default_costs(cluster));
  std::int64_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(model.price(kKinds[i % 3], Bytes(size_of_turn(i))));
    ++i;
  }
}
BENCHMARK(price);

void demand_from_nothing(benchmark::State& state) {
  const ClusterSpec cluster = load_cluster("dgx-h100", 64);
  const Costs costs = default_costs(cluster);
  std::int64_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(collective_demand({kKinds[i % 3], Bytes(size_of_turn(i)), 64, 8}, cluster, costs));
    ++i;
  }
}
BENCHMARK(demand_from_nothing);

}  // namespace

BENCHMARK_MAIN();
