// Parameters that a plan ignores (`ignored`): every rank holds them whole, in the dtype that they were given, and runs
// their optimizer by itself (optimizer.h); their gradients are not reduced.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "planner/lowering/dialect.h"
#include "planner/lowering/step/step_builder.h"

namespace fsdp {

class IgnoredParameters {
 public:
  explicit IgnoredParameters(const LoweringContext& context);

  [[nodiscard]] bool holds(std::int32_t param) const { return owned_.contains(param); }
  void init(StepBuilder&);
  void begin_step(StepBuilder&);  // gradients of the step before disappear
  Arg parameter(std::int32_t param) const { return {owned_.at(param).value}; }
  Arg gradient(StepBuilder&, std::int32_t param);
  [[nodiscard]] std::vector<std::int32_t> gradients() const;
  struct Live {  // has a gradient; buffers
    std::int32_t param = kNone, gradient = kNone, value = kNone;
  };
  [[nodiscard]] std::vector<Live> live() const;

 private:
  struct Owned {
    std::int32_t value = kNone, gradient = kNone;
    bool live = false;
  };
  [[nodiscard]] Buffer buffer(std::int32_t param, BufferKind) const;

  const LoweringContext c_;
  std::map<std::int32_t, Owned> owned_;
};

// Buffers of sharded gradients, and of ignored parameters' that are trained; of units with a mesh of their own, or of
// all the others.
[[nodiscard]] std::vector<std::int32_t> gradients_of(const DialectHooks&, const Program&, const IgnoredParameters&,
                                                     bool own_mesh);

}  // namespace fsdp
