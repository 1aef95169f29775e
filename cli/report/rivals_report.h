// The plans that a search looked at, as a table and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/search.h"

namespace fsdp::cli {

// The choice, its rivals, and in any case the naive plan (which is among the rivals unless the flags rule it out).
// There is a choice.
[[nodiscard]] std::string rivals_table(const PlanResult&);

[[nodiscard]] nlohmann::ordered_json candidate_json(const Candidate&);

// What was open, and how many plans were looked at; a line.
[[nodiscard]] std::string searched_line(const PlanResult&);

}  // namespace fsdp::cli
