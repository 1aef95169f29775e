// How long the values of a traced forward live, given what is recomputed.
#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"
#include "planner/lowering/tape/recomputed.h"

namespace fsdp {

// A copy of a value: by the forward, or by a recomputation.
struct TracedLife {
  // Autograd's last need: the op whose backward lets go of it. kNone: it goes where nothing but Python held it.
  std::int32_t last_backward = kNone;
  bool at_its_end = false;  // not with an event of that backward, but behind all of it
};

struct TracedLives {
  std::vector<std::int32_t> made_by;     // by value: an op
  std::vector<TracedLife> first, again;  // by value
};

// `region_of`: by op, an index of `regions` or kNone. `kept`: by op, a selective checkpoint keeps its results.
[[nodiscard]] TracedLives traced_lives(const Trace&, const std::vector<Region>& regions,
                                       const std::vector<std::int32_t>& region_of, const std::vector<char>& kept);

// The value of the forward that an event of op i names.
[[nodiscard]] std::int32_t named_value(const TracedOp&, const TracedEvent&);

}  // namespace fsdp
