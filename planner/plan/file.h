// A plan's file: the plan, and a note of what it was predicted for when it was chosen.
//
//   const PlanFile file = parse_plan_file(text, "plan.json");
//   if (file.found_for) ...                          // the implementation that later predictions begin with
//   to_json_text(file)                               // parse_plan_file of it == file
//
// The note decides nothing of a step, so it is no part of the plan: plans with other notes are equal and have one
// digest. Files without it, as all of before, have none.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "planner/plan.h"

namespace fsdp {

struct FoundFor {
  std::string implementation;
  bool compiled = false, async_tensor = false;
  [[nodiscard]] std::string text() const {
    return implementation + (compiled ? ", compiled" : "") + (async_tensor ? ", asynchronous tensor parallelism" : "");
  }
  friend bool operator==(const FoundFor&, const FoundFor&) = default;
};

struct PlanFile {
  ShardingPlan plan;
  std::optional<FoundFor> found_for;  // where an implementation was asked for
  friend bool operator==(const PlanFile&, const PlanFile&) = default;
};

// As those of a plan alone (planner/plan.h).
[[nodiscard]] std::string to_json_text(const PlanFile&);
[[nodiscard]] PlanFile parse_plan_file(std::string_view json_text, std::string_view where);

}  // namespace fsdp
