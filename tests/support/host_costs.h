// Costs of a host that nobody measured: every kind of kernel and collective has a price, round numbers. For tests of
// what does not depend on times.
#pragma once

#include "planner/costs.h"

namespace fsdp::testing {

inline Costs host_costs_by_hand(std::int64_t ranks) {
  Costs c;
  c.platform = "host";
  c.source = "by hand";
  c.kernel_overhead = Seconds(2e-6);
  c.host_per_operation = Seconds(1e-6);
  const KernelRate moving{Seconds(2e-6), FlopsPerSecond(0), BytesPerSecond(5e9)};
  c.kernels.assign(2 * kOpKinds, moving);
  for (const OpKind none : {OpKind::linear, OpKind::opaque})
    c.kernels[2 * static_cast<std::size_t>(none)] = c.kernels[2 * static_cast<std::size_t>(none) + 1] = {};
  for (auto& curve : c.matmul_curve) curve = {{1e5, 3e-6}, {1e8, 2e-3}};
  c.copy = c.cast = c.optimizer = c.norm = moving;
  c.all_gather = c.reduce_scatter = c.all_reduce = {{4096, 1e-5}, {1 << 26, 2e-2}};
  c.collective_ranks = ranks < 2 ? 2 : ranks;
  return c;
}

}  // namespace fsdp::testing
