// When the values of a tape are allocated and freed.
#pragma once

#include <cstdint>
#include <span>

#include "planner/lowering/tape.h"

namespace fsdp {

struct Held {
  std::int32_t value = -1, from = -1, to = -1;
};  // alive from tape op to tape op, whatever reads it; -1: no statement
struct MemoryEvent {
  std::int32_t op = -1, value = -1;
};  // inside tape op: value v appears, ~v goes; in order

// Fills allocs, inner and frees of every op: a value is allocated just before the first op that names it and freed just
// after the last. `held` adds to that; what has an event inside its first or last op appears or goes there instead.
void place_lifetimes(Tape&, std::span<const Held> held, std::span<const MemoryEvent> events);

}  // namespace fsdp
