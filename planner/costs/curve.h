// A measured curve "size -> seconds", read between and beyond its points. Log-log, because times of kernels and
// collectives are flat (latency) at small sizes and proportional at large ones: straight pieces of slope 0 and 1.
//
//   interpolate({{1e6, 1e-3}, {1e9, 1.0}}, 1e8)   -> 0.1
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "planner/costs.h"

namespace fsdp {

// Seconds at `size` (0 at size 0). Non-decreasing in `size`: a point below an earlier one (noise) is lifted to it.
// Outside of the points the slope of the nearest piece goes on, at least 0; a curve of one point has slope 1. The curve
// is not empty.
[[nodiscard]] double interpolate(std::span<const CurvePoint> curve, double size);

// Sizes strictly increase, everything is positive and finite; throws InputError(where, ...) otherwise.
void check_curve(std::span<const CurvePoint> curve, const Origin& where);

// The curve measured at Costs::collective_ranks; empty if there is none.
[[nodiscard]] const std::vector<CurvePoint>& collective_curve(CollectiveKind, const Costs&);

}  // namespace fsdp
