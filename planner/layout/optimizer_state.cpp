#include "planner/layout/optimizer_state.h"

#include <numeric>

#include "models/units.h"

namespace fsdp {
namespace {

constexpr std::int64_t kFewestInEightBits = 4096, kTableBytes = 256 * 4, kScaleBytes = 4;
constexpr const char* kWhat = "optimizer states";

bool in_eight_bits(const OptimizerFacts& facts, std::int64_t elements) {
  const std::int64_t block = facts.eight_bit_block;
  return block > 0 && elements >= kFewestInEightBits && elements % block == 0;
}

}  // namespace

std::vector<std::int64_t> optimizer_elements(const UnitLayout& layout, std::int64_t shard_rank) {
  if (layout.flat_elements > 0) return {layout.local_trained_elements(shard_rank)};
  std::vector<std::int64_t> elements;
  for (const ShardedParam& p : layout.params)
    if (p.trainable) elements.push_back(p.local_elements(shard_rank));
  return elements;
}

std::vector<std::int64_t> state_tensors(OptimizerKind kind, std::int64_t elements, DType type) {
  const OptimizerFacts& facts = facts_of(kind);
  if (in_eight_bits(facts, elements)) return {elements, elements / facts.eight_bit_block * kScaleBytes, kTableBytes};
  return {checked_mul(elements, size_of(type), kWhat)};
}

std::vector<std::int64_t> step_tensors(OptimizerKind kind, std::int64_t elements) {
  const OptimizerFacts& facts = facts_of(kind);
  if (!in_eight_bits(facts, elements)) return {};
  return std::vector<std::int64_t>(facts.states.size(), elements / facts.eight_bit_block * kScaleBytes);
}

std::int64_t state_bytes(OptimizerKind kind, std::int64_t elements, DType type) {
  const std::vector<std::int64_t> tensors = state_tensors(kind, elements, type);
  return std::accumulate(tensors.begin(), tensors.end(), std::int64_t{0});
}

std::int64_t state_bytes(OptimizerKind kind, const UnitLayout& layout, std::int64_t shard_rank, DType type) {
  std::int64_t bytes = 0;
  for (const std::int64_t elements : optimizer_elements(layout, shard_rank))
    bytes = checked_add(bytes, state_bytes(kind, elements, type), kWhat);
  return bytes;
}

}  // namespace fsdp
