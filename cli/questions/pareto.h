// plan --pareto: time against memory.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/options.h"
#include "planner/questions/front.h"

namespace fsdp::cli {

struct ParetoAnswer {
  Front front;        // from one step beyond the limit on
  Bytes limit;        // of the flags
  Bytes usable;       // of a GPU
  std::string about;  // the workload

  [[nodiscard]] const FrontPoint* fitting() const;  // the fastest that fits in the limit; null: none does
};
// A search under the limit of this setup, by this score.
using LimitedSearch = std::function<PlanResult(const Setup&, const ScoreFunction&)>;

// `step`: of --pareto, a size or "auto". Throws InputError.
[[nodiscard]] ParetoAnswer pareto_answer(const std::string& step, const Setup&, const LimitedSearch&);

// What the memory is worth, in a sentence or two; and the plans.
[[nodiscard]] std::string pareto_headline(const ParetoAnswer&);
[[nodiscard]] std::string pareto_table(const ParetoAnswer&);
[[nodiscard]] nlohmann::ordered_json pareto_json(const ParetoAnswer&);

}  // namespace fsdp::cli
