// The chain that decides when a step ends.
#pragma once

#include <string>
#include <vector>

#include "models/graph.h"
#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

// Operation indices, first to last. From the operation that ends last back to its latest predecessor, and so on: the
// operation before it on its stream, those it waits for or the host waited for before it, the one before it on its
// communicator. A chain ends where nothing precedes.
[[nodiscard]] std::vector<std::int32_t> critical_chain(const Step&, const Timeline&);

// The chain in words: seconds per kind of operation along it, most first; "waiting" is time in which the chain stands
// still (the host has not issued the next operation, or the step has not begun). At most `rows` of them.
[[nodiscard]] std::vector<std::string> critical_path(const Step&, const Timeline&, const ModelGraph&,
                                                     std::size_t rows = 12);

}  // namespace fsdp
