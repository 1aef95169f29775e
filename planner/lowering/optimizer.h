// The optimizer of a step: its states, which appear in the first step, its temporaries and its kernels.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "planner/lowering/dialect.h"
#include "planner/lowering/ignored.h"
#include "planner/lowering/step/step_builder.h"

namespace fsdp {

class OptimizerLowering {
 public:
  explicit OptimizerLowering(const LoweringContext& context);

  void lower(StepBuilder&, const DialectHooks&, const IgnoredParameters&, bool first);

 private:
  using States = std::array<std::int32_t, kMostOptimizerStates>;
  // What one kernel updates: a unit's shard, or a parameter that the plan ignores.
  struct Part {
    std::int32_t unit = kNone, param = kNone;
    std::int32_t gradient = kNone, value = kNone;
    std::vector<std::int64_t> elements;  // of its trained parameters on this rank
    [[nodiscard]] std::int64_t all_elements() const;
  };
  [[nodiscard]] std::vector<Part> units(const DialectHooks&) const;
  [[nodiscard]] std::vector<Part> ignored(const IgnoredParameters&) const;
  [[nodiscard]] Buffer buffer(const Part&, BufferKind, std::int64_t bytes) const;
  [[nodiscard]] const Buffer& info_of(std::int32_t buffer) const;
  [[nodiscard]] Operation operation_on(const Part&, Action) const;
  [[nodiscard]] States& states_of(const Part&);
  [[nodiscard]] OptimizerForm form() const;

  void init(StepBuilder&, const Part&);
  // Of states that wait in host memory: to the device, and back.
  void fetch_states(StepBuilder&, const Part&);
  void offload_states(StepBuilder&, const Part&);
  void update(StepBuilder&, const Part&, std::int32_t temporary);
  void allocate_decayed(StepBuilder&, const std::vector<Part>&, std::vector<std::int32_t>& temporaries) const;
  void allocate_scales(StepBuilder&, const Part&) const;
  [[nodiscard]] std::int32_t adamw_temporary(StepBuilder&, const Part&) const;

  const LoweringContext c_;
  std::map<std::pair<std::int32_t, std::int32_t>, States> states_;   // by unit and parameter
  std::map<std::pair<std::int32_t, std::int32_t>, States> on_host_;  // where they wait between steps
};

}  // namespace fsdp
