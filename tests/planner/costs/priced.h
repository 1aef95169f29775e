// A cluster, a plan and its costs whose prices can be derived in comments. For tests of what things cost.
#pragma once

#include "models/implementation.h"
#include "planner/costs.h"
#include "tests/support/toy_model.h"

namespace priced {

using namespace fsdp;

// What NCCL counts on a DGX H100: 12 channels of 30 GB/s inside, 8 x 48 GB/s between nodes.
inline ClusterSpec h100(std::int64_t gpus, std::int64_t per_node = 8) {
  ClusterSpec c;
  c.name = "test-h100";
  c.gpu.name = "test-gpu";
  c.gpu.fp32 = FlopsPerSecond(67e12);
  c.gpu.tf32 = FlopsPerSecond(494.5e12);
  c.gpu.bf16 = FlopsPerSecond(989e12);
  c.gpu.memory_bandwidth = BytesPerSecond(3.35e12);
  c.gpu.sms = 132;
  c.gpu.host_link = BytesPerSecond(5.5e10);
  c.gpu.usable_memory = Bytes(79LL << 30);
  c.gpus = gpus;
  c.gpus_per_node = per_node;
  c.intra_bus = BytesPerSecond(360e9);
  c.inter_bus = BytesPerSecond(48e9);
  c.gpu.nvlink = BytesPerSecond(450e9);
  c.gpu.compute_capability = 90;
  return c;
}

inline ClusterSpec host_cluster() {
  ClusterSpec c;
  c.name = c.gpu.name = "host";
  c.host = true;
  c.gpus = c.gpus_per_node = 2;
  return c;
}

inline Costs host_costs() {
  Costs c;
  c.platform = "host";
  c.source = "made up";
  c.host_per_operation = Seconds(1e-6);
  c.kernels.resize(2 * kOpKinds);
  for (KernelRate& k : c.kernels) k = {Seconds(1e-6), FlopsPerSecond(0), BytesPerSecond(1e9)};
  c.matmul_curve[0] = c.matmul_curve[1] = c.matmul_curve[2] = {{1e3, 1e-6}, {1e9, 1e-1}};
  c.copy = c.cast = c.optimizer = c.norm = {Seconds(1e-6), FlopsPerSecond(0), BytesPerSecond(2e9)};
  c.all_gather = c.reduce_scatter = c.all_reduce = {{8, 1e-5}, {1e6, 1e-3}};
  c.collective_ranks = 2;
  return c;
}

struct Setup {
  ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan = toy::plan(model, 2);
  const Implementation& impl = find_implementation("native", false, "test");
  ClusterSpec cluster = h100(2);
  Costs costs = default_costs(cluster);
  [[nodiscard]] CostContext context() const { return {model, plan, impl, cluster, costs}; }
};

}  // namespace priced
