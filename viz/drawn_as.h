// What an operation is drawn as: one colour each.
#pragma once

#include <cstdint>

#include "planner/program.h"

namespace fsdp {

enum class DrawnAs : std::uint8_t {
  forward,
  backward,
  recompute,
  all_gather,
  reduce_scatter,
  all_reduce,
  copy,
  optimizer,
  host
};
inline constexpr const char* kDrawnAs[] = {"forward",    "backward", "recompute", "all-gather", "reduce-scatter",
                                           "all-reduce", "copy",     "optimizer", "host"};
[[nodiscard]] DrawnAs drawn_as(Action, bool host_only = false);

}  // namespace fsdp
