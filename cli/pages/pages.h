// What --report writes: a command's whole answer as one HTML page. CalledWith: the words after the program's name, so
// that the page says how it is made again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "planner/search.h"
#include "simulator/records/compare.h"
#include "simulator/records/measurement.h"
#include "simulator/records/prediction.h"

namespace fsdp::cli {

using CalledWith = std::vector<std::string>;

struct ReportFlag {
  Text file;
  CalledWith words;
};
void add_report_flag(const Command&, ReportFlag&, const std::string& help);

// The program is that of rank 0, whose steady step the prediction is of.
[[nodiscard]] std::string simulate_page(const CalledWith&, const Prediction&, const Program&, const ShardingPlan&,
                                        const Setup&);

// The same step as a picture for documents.
[[nodiscard]] std::string simulate_svg(const Prediction&, const Program&, const ShardingPlan&, const Setup&);

// `answer`: the JSON of the result. prediction: of the best plan; nullptr where nothing fits, and the page then shows
// the plan that needs least. `searched`: what the search looked at, in lines. Timelines of the rivals are simulated for
// the page.
[[nodiscard]] std::string plan_page(const CalledWith&, const PlanResult&, const std::string& answer,
                                    const std::string& searched, const Prediction* prediction, const Setup&);

// Of the ranks of a run, with the prediction that it was compared with, where there is one.
[[nodiscard]] std::string run_page(const CalledWith&, const Measurement&, const std::optional<Prediction>&,
                                   const std::optional<ValidationReport>&, const Program&, const ShardingPlan&,
                                   const ModelGraph&);
// Timelines where the prediction's document says in which order its operations are issued. Measurement: nullptr where
// the prediction was compared with recordings of PyTorch's own tools.
[[nodiscard]] std::string validate_page(const CalledWith&, const ValidationReport&, const Tolerances&,
                                        const Prediction&, const Measurement*);
// `answer`: the JSON of all rows. `headline`: the error of the most trusted ones, in words.
[[nodiscard]] std::string accuracy_page(const CalledWith&, const std::string& answer, const std::string& headline);

// "report: out.html\n"
[[nodiscard]] std::string report_line(const std::string& file);

}  // namespace fsdp::cli
