// What a run trains on and starts from. Everything has a default: synthetic tokens, initial values that are a pure
// function of the seed, the plan's learning rate in every step. Synthetic tokens are a function of seed, global
// sequence index and position, and targets are the next token, so that any partition of a global batch over ranks and
// micro-batches sees the same data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "models/dtype.h"
#include "models/graph.h"

namespace fsdp {

// Rows [begin, begin + rows) of a parameter's dimension `dim`, and all of its other dimensions but `across`, of which
// it is a part (of a matrix that is split over tensor ranks; kNone: of none); row-major.
struct Slab {
  std::int64_t dim = 0, begin = 0, rows = 0;
  std::int64_t across = kNone, across_begin = 0, across_size = 0;
};
[[nodiscard]] inline std::int64_t elements_of(const Slab& slab, const Parameter& parameter) {
  std::int64_t n = slab.rows;
  for (std::size_t d = 0; d < parameter.shape.size(); ++d) {
    if (static_cast<std::int64_t>(d) == slab.dim) continue;
    n *= static_cast<std::int64_t>(d) == slab.across ? slab.across_size : parameter.shape[d];
  }
  return n;
}

// What a rank keeps of a parameter from step to step: itself, and the states of its optimizer in the order of
// state_names (planner/optimizer.h).
enum class StatePart : std::uint8_t { parameter, first_state, second_state };
inline constexpr StatePart kStateParts[] = {StatePart::first_state, StatePart::second_state};

// Sequence `sequence` of the data (counted over all steps, ranks and micro-batches): seq_len tokens into `ids`, the
// token after each into `targets`. Called by several threads at once; takes no heap.
using TokenReader =
    std::function<void(std::int64_t sequence, std::int64_t seq_len, std::int64_t* ids, std::int64_t* targets)>;

// One part of one parameter's state, as `type`, to `to`. Called by several threads at once.
using StateReader = std::function<void(const Parameter&, StatePart, const Slab&, DType type, std::byte* to)>;

struct Training {
  TokenReader tokens;           // empty: synthetic_token of data/synthetic.h
  StateReader state;            // empty: initial_value of data/synthetic.h, states zero
  std::int64_t steps_done = 0;  // before this run: data, learning rate and Adam's bias correction go on from there
  std::optional<std::int64_t> sequences_done =
      {};  // of data, taken by those steps; empty: as many per step as this run's take
  std::function<double(std::int64_t step)> learning_rate;  // of training step `step` (from 0); empty: the plan's
};

}  // namespace fsdp
