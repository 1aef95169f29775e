// GPUs of one kind are not equally fast, and a synchronous step waits for the slowest of them.
//
//   slowest_clock(64, costs) == 1 / (1 + 0.016 * 2.34)
//
// Where power limits the clock (products), it depends on the chip and its cooling: the time of a product is taken as
// normal over GPUs, with standard deviation Costs::gpu_spread of its mean, and every collective waits for the last rank
// that comes to it. Kernels that memory or latency bounds hardly differ.
#pragma once

#include <cstdint>

#include "planner/costs.h"

namespace fsdp {

// The maximum of n independent standard normals: its mean, and where its distribution function reaches `probability`.
// n >= 1.
[[nodiscard]] double maximum_mean(double n);
[[nodiscard]] double maximum_quantile(double n, double probability);

// The clock at which products run on the slowest of `ranks` GPUs, on average, over that of a GPU like most; at most 1.
[[nodiscard]] double slowest_clock(std::int64_t ranks, const Costs&);

}  // namespace fsdp
