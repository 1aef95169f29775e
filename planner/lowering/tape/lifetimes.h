// When the values of a tape are allocated and freed.
#pragma once

#include <cstdint>
#include <span>

#include "planner/lowering/tape/tape.h"

namespace fsdp {

// A value that is alive from tape op `from` to tape op `to`, whatever reads it; kNone: that end is open. `scope`: not
// freed with `to` but later, as TapeValue::scope says.
struct Held {
  std::int32_t value = kNone, from = kNone, to = kNone, scope = kNone;
  bool after = false;  // it appears when `from` is over, hooks included
};
// Inside tape op `op`: value v appears, ~v goes; in order.
struct MemoryEvent {
  std::int32_t op = kNone, value = kNone;
};

// Fills allocs, late_allocs, inner, frees and late_frees of every op: a value is allocated just before the first op
// that names it and freed just after the last. `held` extends that. A value with an event inside its first or last op
// appears or goes there instead.
void place_lifetimes(Tape&, std::span<const Held> held, std::span<const MemoryEvent> events);

// Of lifetimes that have been placed: what a reentrant checkpoint holds stays until the hooks behind its last op have
// run (Region::held), but for what others hold or read later.
void leave_to_regions(Tape&);

}  // namespace fsdp
