#include "planner/optimizer.h"

#include <array>

#include "models/input/names.h"

namespace fsdp {
namespace {

constexpr std::array<std::string_view, 2> kMoments = {"exp_avg", "exp_avg_sq"};
constexpr std::array<std::string_view, 1> kMomentum = {"momentum_buffer"};
static_assert(kMoments.size() <= kMostOptimizerStates);

// In the order of the enum.
constexpr std::array<OptimizerFacts, kOptimizers> kTable = {{
    {.name = "adamw", .states = kMoments, .python = "torch.optim.AdamW"},
    {.name = "sgd", .states = kMomentum, .python = "torch.optim.SGD", .takes_momentum = true},
    {.name = "adamw-8bit",
     .states = kMoments,
     .python = "torchao.optim.AdamW8bit",
     .eight_bit_block = 256,
     .executed = false},
}};

constexpr std::string_view optimizer_label(OptimizerKind o) {
  const auto row = static_cast<std::size_t>(o);
  return row < kTable.size() ? kTable[row].name : std::string_view{};
}
static_assert(names_all<OptimizerKind>(optimizer_label, kOptimizers));

}  // namespace

const OptimizerFacts& facts_of(OptimizerKind kind) { return kTable.at(static_cast<std::size_t>(kind)); }

std::span<const std::string_view> state_names(const Optimizer& o) {
  const OptimizerFacts& facts = facts_of(o.kind);
  if (facts.takes_momentum && o.momentum == 0) return {};
  return facts.states;
}

std::string_view name(OptimizerKind o) { return optimizer_label(o); }

OptimizerKind parse_optimizer(std::string_view text, const Origin& where) {
  return parse_name<OptimizerKind>(optimizer_label, kOptimizers, text, where, "optimizer");
}

}  // namespace fsdp
