// The learning rate of every step of a training run: a rise, then constant, or a decay along a cosine or a line.
//
//   options.training.learning_rate = LearningRate{.kind = Decay::cosine, .peak = 3e-4, .least = 3e-5, .warmup = 100,
//     .total = 5000};
//
// Of step s (from 0), W = warmup, T = total:
//   s < W             peak (s + 1) / (W + 1)
//   constant          peak
//   cosine            least + (peak - least) (1 + cos(pi t)) / 2,   t = min(1, (s - W) / (T - W))
//   linear            peak + (least - peak) t
// Which is PyTorch's SequentialLR([LinearLR(start_factor=1/(W+1), end_factor=1, total_iters=W), then], milestones=[W])
// where `then` is CosineAnnealingLR(T_max=T-W, eta_min=least) or LinearLR(start_factor=1, end_factor=least/peak,
// total_iters=T-W). The first step's rate is not zero, and `least` is what the step after the last one would have.
// Beyond T the rate stays `least` (CosineAnnealingLR would rise again).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

enum class Decay : std::uint8_t { constant, cosine, linear };
[[nodiscard]] std::string_view name(Decay);
[[nodiscard]] Decay parse_decay(std::string_view text, std::string_view where);  // throws InputError with the list

struct LearningRate {
  Decay kind = Decay::constant;
  double peak = 0, least = 0;
  std::int64_t warmup = 0, total = 1;  // in steps of training, from its very beginning
  [[nodiscard]] double operator()(std::int64_t step) const;
  // "0.004, 3 steps of warm-up, then cosine to 0.0002 at step 8".
  [[nodiscard]] std::string describe() const;
  friend bool operator==(const LearningRate&, const LearningRate&) = default;
};

}  // namespace fsdp
