// Weights that are gathered in 8 bits: torchao's WeightWithDynamicFloat8CastTensor before an all-gather of fully_shard,
// and its precompute_float8_dynamic_scale_for_fsdp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/lowering/step/step_builder.h"

namespace fsdp {

// A unit's shard, and what it holds.
struct ShardOfUnit {
  const UnitLayout* layout = nullptr;
  std::int32_t unit = kNone, shard = kNone;
  DType dtype = DType::f32;
};

class Float8Casts {
 public:
  // Casts the unit's weights that are gathered in 8 bits on C, one after the other, and returns the casts. A weight's
  // scale is its largest value on all ranks: found on C and reduced on G, for which C waits, unless the step before has
  // left it.
  [[nodiscard]] std::vector<std::int32_t> cast(StepBuilder&, const ShardOfUnit&, std::int16_t micro_batch) const;
  // After the optimizer, where the plan computes scales ahead: of all weights, in one all-reduce.
  void compute_scales(StepBuilder&, std::span<const ShardOfUnit>);

 private:
  std::int32_t scales_ = kNone;  // of all weights, from the end of the first step on
};

}  // namespace fsdp
