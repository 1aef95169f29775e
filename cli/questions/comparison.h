// plan --compare: the chosen plan beside others, and what each choice of theirs alone would do to it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/questions/found_plan.h"
#include "planner/questions/differences.h"
#include "planner/search.h"

namespace fsdp::cli {

struct ChangedAlone {
  Difference difference;
  std::optional<Score> score;  // none: the rule that it breaks is in `refused`
  std::string refused;
};
struct ComparedPlan {
  std::string asked;  // as typed: "block:2", "plan.json", "micro-batch=4", "naive"
  Candidate plan;
  std::vector<ChangedAlone> alone;  // of the chosen plan; empty: the plans are the same
};

// What the words of --compare mean: a plan's file; FLAG=VALUE, a flag of `plan` without its dashes, or a wrap policy
// alone: the best plan with it; naive: the naive plan. `found`: the search that chose. Throws InputError.
[[nodiscard]] std::vector<ComparedPlan> compare_plans(const std::vector<std::string>& words, const Flags&, const Setup&,
                                                      const PlanResult& found, const FindPlan&);

// Throws InputError if `output`, which is checked already, is one of the files that the words name.
void check_apart_from_compared(const Text& output, const std::vector<std::string>& words);

[[nodiscard]] std::string comparison_text(const std::vector<ComparedPlan>&, const Candidate& chosen, Bytes limit);
[[nodiscard]] nlohmann::ordered_json comparison_json(const std::vector<ComparedPlan>&);

}  // namespace fsdp::cli
