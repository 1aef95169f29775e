// Chooses the losers to show beside the winner, and says why each lost.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/search/candidates.h"

namespace fsdp {

// An option after the search: its floor, and its score unless the floor alone ruled it out.
struct Judged {
  Option option;
  Bytes floor;  // memory it needs at least, fixed memory included
  std::optional<Score> score;
  [[nodiscard]] double seconds_per_sequence() const;  // of one rank; what the search minimises. Needs a score
};

// Best first: plans that fit, then tight ones, then the rest; by time per sequence, then memory.
[[nodiscard]] bool better(const Judged&, const Judged&);

// One clause: "does not fit: needs 91.2 GiB of 75.2 GiB", "8.1% slower: 120 ms more exposed all-gather".
[[nodiscard]] Reason why_lost(const Judged& loser, const Judged& best, Bytes limit);

// At most `most` indices into `all`: the naive plan; then, for each axis, the best option that differs from the winner
// on that axis alone (the fastest scored one; of batches the next larger).
[[nodiscard]] std::vector<std::size_t> rivals(const std::vector<Judged>& all, std::size_t best, std::size_t most);

}  // namespace fsdp
