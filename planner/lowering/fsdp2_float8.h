// Weights that are gathered in 8 bits, in the `fsdp2` dialect: torchao's WeightWithDynamicFloat8CastTensor and its
// precompute_float8_dynamic_scale_for_fsdp.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/fsdp2_units.h"

namespace fsdp {

class Fsdp2Float8 {
 public:
  explicit Fsdp2Float8(Fsdp2Units& units) : units_(units) {}

  // Casts the unit's weights that are gathered in 8 bits on C, one after the other, and returns the casts. A weight's
  // scale is its largest value on all ranks: found on C and reduced on G, for which C waits, unless the step before has
  // left it.
  [[nodiscard]] std::vector<std::int32_t> cast(StepBuilder&, std::int32_t u);
  // After the optimizer, where the plan computes scales ahead: of all weights, in one all-reduce.
  void compute_scales(StepBuilder&);

 private:
  std::int32_t reduce_largest(StepBuilder&, std::int32_t u, const Arg& weight);

  Fsdp2Units& units_;
  std::int32_t scales_ = kNone;  // of all weights, from the end of the first step on
};

}  // namespace fsdp
