// What a run trains on, starts from and does between steps. Everything has a default: synthetic tokens, initial values
// that are a pure function of the seed, the plan's learning rate in every step, nothing between steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "executor/backend.h"
#include "models/dtype.h"
#include "models/graph.h"
#include "planner/program.h"

namespace fsdp {

// Rows [begin, begin + rows) of a parameter's dimension `dim`, all of its other dimensions; row-major.
struct Slab {
  std::int64_t dim = 0, begin = 0, rows = 0;
};

// What a rank keeps of a parameter from step to step. sgd has no moments.
enum class StatePart : std::uint8_t { parameter, first_moment, second_moment };

// Sequence `sequence` of the data (counted over all steps, ranks and micro-batches): seq_len tokens into `ids`, the
// token after each into `targets`. Called by several threads at once; takes no heap.
using TokenReader =
    std::function<void(std::int64_t sequence, std::int64_t seq_len, std::int64_t* ids, std::int64_t* targets)>;

// One part of one parameter's state, as `type`, to `to`. Called by several threads at once.
using StateReader = std::function<void(const Parameter&, StatePart, const Slab&, DType type, std::byte* to)>;

struct Training {
  TokenReader tokens;           // empty: synthetic_token of run.h
  StateReader state;            // empty: initial_value of run.h, moments zero
  std::int64_t steps_done = 0;  // before this run: data, learning rate and Adam's bias correction go on from there
  std::optional<std::int64_t> sequences_done =
      {};  // of data, taken by those steps; empty: as many per step as this run's take
  std::function<double(std::int64_t step)> learning_rate;  // of training step `step` (from 0); empty: the plan's
};

// What a rank holds between two steps.
struct RankState {
  const Program& program;
  Device& device;
  std::int64_t steps_done = 0;  // of training, this run's included
  // Of one unit: the padded shard, or a moment (unpadded, densely, in parameter order: planner/layout.h). Data null:
  // there is none.
  std::function<BufferView(std::int32_t unit, StatePart)> view;
  bool last = false;  // step of this run
};

}  // namespace fsdp
