// A tape's memory op by op, to compare with recordings of PyTorch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "planner/lowering/tape/tape.h"

namespace fsdp::testing {

inline std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Bytes alive while and after each tape op; parameters' gradients stay, the batch does not count.
struct Replay {
  std::vector<std::int64_t> during, after;
  std::int64_t gradients = 0;
};

inline Replay replay(const Tape& tape, const ModelGraph& model, std::int64_t gradient_bytes = 2) {
  Replay r;
  std::int64_t live = 0;
  std::vector<char> has_gradient(model.parameters.size(), 0);
  const auto bytes = [&](std::int32_t v) {
    return tape.values[at(v)].kind == BufferKind::batch ? 0 : tape.values[at(v)].bytes;
  };
  for (const TapeOp& op : tape.ops) {
    for (std::uint32_t k = 0; k < op.allocs.count; ++k) live += bytes(tape.allocs[op.allocs.begin + k]);
    for (const TapeArg& a : tape.args_of(op))
      if (a.kind == TapeArg::Kind::gradient && !has_gradient[at(a.id)]) {
        has_gradient[at(a.id)] = 1;
        live += model.parameters[at(a.id)].numel() * gradient_bytes;
        r.gradients += model.parameters[at(a.id)].numel() * gradient_bytes;
      }
    std::int64_t most = live;
    for (std::uint32_t k = 0; k < op.inner.count; ++k) {
      const std::int32_t v = tape.inner[op.inner.begin + k];
      live += v >= 0 ? bytes(v) : -bytes(~v);
      most = std::max(most, live);
    }
    r.during.push_back(most);
    for (std::uint32_t k = 0; k < op.frees.count; ++k) live -= bytes(tape.frees[op.frees.begin + k]);
    for (std::uint32_t k = 0; k < op.late_allocs.count; ++k) live += bytes(tape.late_allocs[op.late_allocs.begin + k]);
    for (std::uint32_t k = 0; k < op.late_frees.count; ++k) live -= bytes(tape.late_frees[op.late_frees.begin + k]);
    r.after.push_back(live);
  }
  return r;
}

// Within 0.1 %: the recorder also sees the loss, the random state of each attention (24 bytes) and nothing else
// besides.
inline bool near(std::int64_t ours, std::int64_t theirs) {
  return std::abs(ours - theirs) <= std::max<std::int64_t>(theirs / 1000, 64);
}

// Cosines and sines, once for all layers of a theta.
inline std::int64_t angles(const ModelGraph& m, const Workload& w) {
  std::vector<double> thetas;
  std::int64_t bytes = 0;
  for (const Op& op : m.ops) {
    const OpShape& s = op.shape;
    if (op.kind != OpKind::rotary || std::find(thetas.begin(), thetas.end(), s.theta) != thetas.end()) continue;
    thetas.push_back(s.theta);
    const std::int64_t channels = s.rotated > 0 ? s.rotated : s.by_halves ? s.head_dim / 2 : s.head_dim;
    bytes += 2 * w.seq_len * channels * (s.wide_angles && s.in == 0 ? 4 : 2);  // complex: two fp32 of half of them
  }
  return bytes;
}

// What a recording of a model of transformers states: bytes when forward has ended and when backward has, and at most
// in either. Besides what a tape has: token ids and targets, angles, and where blocks run again their positions.
struct Recorded {
  std::int64_t saved = 0, end = 0, forward_peak = 0, backward_peak = 0;
};
inline Recorded as_recorded(const Tape& tape, const ModelGraph& model, const Workload& w, bool again) {
  const Replay mine = replay(tape, model);
  const std::size_t loss = tape.forward_of.back();
  const auto backward = mine.during.begin() + static_cast<std::ptrdiff_t>(loss) + 1;
  const std::int64_t besides = 8 * w.tokens() + angles(model, w) + (again ? 8 * w.seq_len : 0);
  return {mine.after[loss] + besides, mine.after.back(), *std::max_element(mine.during.begin(), backward) + besides,
          *std::max_element(backward, mine.during.end()) + besides};
}

inline std::vector<std::int32_t> blocks_of(const ModelGraph& model) {
  std::vector<std::int32_t> blocks;
  for (std::size_t m = 0; m < model.modules.size(); ++m)
    if (model.modules[m].block) blocks.push_back(static_cast<std::int32_t>(m));
  return blocks;
}

}  // namespace fsdp::testing
