// A plan as a script or a configuration for another tool, and every way in which that file is not the plan.
//
//   const Emitted out = emit("accelerate", plan, model, {.gpus_per_node = 8});
//   out.text                     // the file
//   out.changes_prediction()     // true: what was predicted for `plan` does not hold for the file
//   out.written                  // the plan that the file describes: predict it to see by how much
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"

namespace fsdp {

// What a prediction of the plan rests on beside the plan, as far as it is known.
struct EmitContext {
  const Implementation* implementation = nullptr;
  std::optional<std::int64_t> gpus_per_node;
};

// One field that the file does not hold as the plan has it.
struct Inexact {
  enum class Effect : std::uint8_t {
    none,     // on time and memory; or what every training script says itself (batch, optimizer)
    written,  // time or memory differ; Emitted::written has the value of the file
    unknown,  // time or memory differ, and no plan can say how
  };
  std::string field;  // of the plan, or "implementation", "model", "cluster"
  std::string what;   // the target does instead, or what is to be set where
  Effect effect = Effect::none;
  [[nodiscard]] std::string text() const { return field + ": " + what; }
  friend bool operator==(const Inexact&, const Inexact&) = default;
};

struct Emitted {
  std::string text;                     // Python, YAML, TOML, Hjson or arguments
  std::vector<Inexact> cannot_express;  // also in comments at the top
  ShardingPlan written;                 // the plan that the file describes
  bool compiled = false;                // what the file makes is compiled
  bool async_tensor = false;            // with asynchronous tensor parallelism
  [[nodiscard]] bool changes_prediction() const;
  [[nodiscard]] bool predictable() const;  // `written` (with `compiled` and `async_tensor`) holds every change
};

// `format`: one of emit_formats().
[[nodiscard]] Emitted emit(std::string_view format, const ShardingPlan&, const ModelGraph&, const EmitContext& = {});
[[nodiscard]] std::vector<std::string> emit_formats();
[[nodiscard]] bool emits_tensor_plans(std::string_view format);  // as they are predicted
// Those that say which modules are sharded together: a plan can be sought for them.
[[nodiscard]] std::vector<std::string> emit_targets();
// The implementation (find_implementation) of the models that a target's files are for; empty: any.
[[nodiscard]] std::string_view implementation_of(std::string_view target);

// What of the choices that searches make (units, resharding, recomputation, batch, mesh and the like) the format's file
// does not hold as the plan has it, as `emit` finds. `but`: fields that are not asked about. Throws as `emit`.
[[nodiscard]] std::vector<Inexact> unsayable(std::string_view format, const ShardingPlan&, const ModelGraph&,
                                             const std::vector<std::string>& but = {});

}  // namespace fsdp
