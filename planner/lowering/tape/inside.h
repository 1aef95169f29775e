// Carries out what an op's memory script says (models/memory_script.h) on the values of one tape op.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/implementation.h"
#include "planner/lowering/tape/lifetimes.h"

namespace fsdp {

struct ScriptValues {
  std::vector<std::int32_t> results = {};  // forward: outputs; backward: gradients of the inputs
  std::vector<std::int32_t> output_gradients = {};
  std::vector<std::int32_t> inputs = {};  // backward: of those that forward kept
  std::int32_t saved_output = kNone, extra = kNone;
};
using Temporaries = std::array<std::int32_t, MemoryScript::kTemporaries>;  // values; kNone: not there
[[nodiscard]] inline Temporaries no_temporaries() {
  Temporaries none;
  none.fill(kNone);
  return none;
}

// Steps before the script reads what forward saved; 0: it does not say where.
[[nodiscard]] std::size_t steps_before_saved(const MemoryScript&);
// Temporaries that are there after the script's first steps.
[[nodiscard]] std::array<bool, MemoryScript::kTemporaries> there_after(std::span<const MemoryScript::Step>);
// What `steps` of the script say of tape op `op`. `make`: a new temporary of so many bytes.
[[nodiscard]] std::vector<MemoryEvent> events_inside(const Inside&, std::span<const MemoryScript::Step> steps,
                                                     std::int32_t op, Temporaries, const ScriptValues&,
                                                     const std::function<std::int32_t(std::int64_t)>& make);

}  // namespace fsdp
