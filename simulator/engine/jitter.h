// Equal ranks are not equally fast: a step's time as a distribution. A synchronous step waits for the slowest of n; the
// point prediction has the slowest GPU in it as it is on average (planner/costs/slowest.h), but no jitter.
//
//   StepTimeDistribution any = step_time_distribution(p.step_time, p.where, p.ranks, costs);      // clusters not yet
//                                                                                                 seen
//   StepTimeDistribution one = step_time_distribution(p.step_time, p.where, p.ranks, costs, 7);   // the cluster that
//                                                                                                 seed 7 draws
//
// A rank's compute takes 1 + s + j of its predicted time: s normal with standard deviation Costs::gpu_spread, drawn
// once per GPU (silicon, cooling), j normal with Costs::step_jitter, drawn anew each step. Every unit's collective
// waits for the slowest rank, so that jitter does not average out over a step's units: the step takes what is predicted
// + compute * (max over ranks of (s + j) - gpu_spread * maximum_mean(n)). Compute is what the breakdown charges to
// kernels, copies and the optimizer; the rest, exposed communication and idle time, stays.
//
// Over clusters and steps the ranks are exchangeable: the maximum of n normals has the distribution Phi(x / sigma)^n
// with sigma^2 = gpu_spread^2 + step_jitter^2, and mean, p50, p95 and p99 follow from it. One given cluster is not
// symmetric (its slow GPUs stay slow): its GPUs are drawn with the seed and its steps sampled.
#pragma once

#include <cstdint>
#include <optional>

#include "models/units.h"
#include "planner/breakdown.h"
#include "planner/costs.h"
#include "simulator/records/step_time.h"

namespace fsdp {

[[nodiscard]] StepTimeDistribution step_time_distribution(Seconds step_time, const Breakdown& where, std::int64_t ranks,
                                                          const Costs&, std::optional<std::uint64_t> seed = {});

}  // namespace fsdp
