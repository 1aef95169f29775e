// Optimizers: their settings, and a row each that says what they are called and what they keep. Lowering, checkpoints,
// emitters and the rules of a plan ask the row; a new optimizer is a new row (docs/extending.md).
//
//   facts_of(OptimizerKind::adamw).name            // "adamw"
//   state_names(plan.optimizer)                    // {"exp_avg", "exp_avg_sq"}
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "models/input/error.h"

namespace fsdp {

enum class OptimizerKind : std::uint8_t {
  adamw,
  sgd,
  adamw_8bit,  // torchao's
};
inline constexpr int kOptimizers = static_cast<int>(OptimizerKind::adamw_8bit) + 1;
struct Optimizer {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double momentum = 0;  // sgd; 0: none, and nothing is kept
  friend bool operator==(const Optimizer&, const Optimizer&) = default;
};

inline constexpr std::size_t kMostOptimizerStates = 2;  // tensors per parameter

struct OptimizerFacts {
  std::string_view name;  // in plans, flags and checkpoints
  // PyTorch's names of the tensors that it keeps of each trained parameter. Checkpoints use them.
  std::span<const std::string_view> states;
  std::string_view python;  // what makes it: "torch.optim.AdamW"
  // Where a tensor is stored in 8 bits it is blocks of that many elements, with a scale each; 0: never.
  std::int64_t eight_bit_block = 0;
  bool executed = true;         // by the kernels of `run`
  bool takes_momentum = false;  // it keeps its states only where Optimizer::momentum is not 0
};
[[nodiscard]] const OptimizerFacts& facts_of(OptimizerKind);
// Of these settings; empty: the optimizer keeps nothing.
[[nodiscard]] std::span<const std::string_view> state_names(const Optimizer&);
[[nodiscard]] inline std::int64_t state_count(const Optimizer& o) {
  return static_cast<std::int64_t>(state_names(o).size());
}

[[nodiscard]] std::string_view name(OptimizerKind);
[[nodiscard]] OptimizerKind parse_optimizer(std::string_view, const Origin& where);

}  // namespace fsdp
