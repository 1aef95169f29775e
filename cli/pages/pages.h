// What --report writes: a command's whole answer as one HTML page. CalledWith: the words after the program's name, so that the
// page says how it is made again.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "planner/search.h"
#include "simulator/records/prediction.h"

namespace fsdp::cli {

using CalledWith = std::vector<std::string>;

// The program is that of rank 0, whose steady step the prediction is of.
[[nodiscard]] std::string simulate_page(const CalledWith&, const Prediction&, const Program&, const ShardingPlan&,
                                        const Setup&);

// `answer`: the JSON of the result. prediction: of the best plan; nullptr where nothing fits, and the page then shows the
// plan that needs least. Timelines of the rivals are simulated for the page.
[[nodiscard]] std::string plan_page(const CalledWith&, const PlanResult&, const std::string& answer,
                                    const Prediction* prediction, const Setup&);

// "report: out.html\n"
[[nodiscard]] std::string report_line(const std::string& file);

}  // namespace fsdp::cli
