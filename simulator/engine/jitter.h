// Equal ranks are not equally fast: a step's time as a distribution. A synchronous step waits for the slowest of n; the
// point prediction has the slowest GPU in it as it is on average (planner/costs/slowest.h), but no jitter.
//
//   step_time_distribution(p.step_time, equal, p.where, p.ranks, costs);      // clusters not yet seen
//   step_time_distribution(p.step_time, equal, p.where, p.ranks, costs, 7);   // the cluster that seed 7 draws
//
// equal: the step predicted with Costs::gpu_spread 0. A rank takes so long, and s + j seconds more: s normal, drawn
// once per GPU (silicon, cooling), as far apart as the point prediction's own growth says, (step - equal) /
// maximum_mean(n); j normal, drawn anew each step, with Costs::step_jitter of the compute, which is what the breakdown
// charges to kernels, copies and the optimizer. Every unit's collective waits for the slowest rank, so that jitter does
// not average out over a step's units: the step takes equal + max over ranks of (s + j). Of one rank s is taken of all
// its compute.
//
// Over clusters and steps the ranks are exchangeable: the maximum of n normals has the distribution Phi(x / sigma)^n
// with sigma^2 the sum of both squares, and mean, p50, p95 and p99 follow from it. One given cluster is not
// symmetric (its slow GPUs stay slow): its GPUs are drawn with the seed and its steps sampled.
#pragma once

#include <cstdint>
#include <optional>

#include "models/units.h"
#include "planner/breakdown.h"
#include "planner/costs.h"
#include "simulator/records/step_time.h"

namespace fsdp {

[[nodiscard]] StepTimeDistribution step_time_distribution(Seconds step_time, Seconds of_equal_gpus,
                                                          const Breakdown& where, std::int64_t ranks, const Costs&,
                                                          std::optional<std::uint64_t> seed = {});

}  // namespace fsdp
