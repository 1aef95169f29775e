#include "cli/report/rivals_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/terminal/terminal.h"

namespace fsdp::cli {
namespace {

std::vector<std::string> row_of(const Candidate& c, const std::string& why) {
  const bool scored = c.score.step.count() > 0;  // what memory pruned was never timed
  return {(c.naive ? "naive: " : "") + c.label, scored ? human(c.score.step) : "-",
          scored ? human(c.score.peak_total) : "-", std::string(name(c.score.verdict)), why};
}

}  // namespace

std::string rivals_table(const PlanResult& result) {
  std::vector<std::vector<std::string>> rows = {row_of(*result.best, "chosen")};
  if (result.fastest) {
    rows.push_back(row_of(*result.fastest, result.fastest->why_lost.clause));
    rows.back().front() = "fastest: " + result.fastest->label;
  }
  if (result.uniform) {
    rows.push_back(row_of(*result.uniform, result.uniform->why_lost.clause));
    rows.back().front() = "all blocks alike: " + result.uniform->label;
  }
  bool naive_shown = result.best->naive;
  for (const Candidate& rival : result.rivals) {
    if (rival.naive) continue;
    rows.push_back(row_of(rival, rival.why_lost.clause));
  }
  for (const Candidate& rival : result.rivals) {
    if (!rival.naive) continue;
    rows.push_back(row_of(rival, rival.why_lost.clause));
    naive_shown = true;
  }
  if (!naive_shown) rows.push_back(row_of(result.naive, "for comparison: the flags rule it out"));
  return fitting_table({"plan", ">step", ">peak", "verdict", "why"}, rows);
}

nlohmann::ordered_json candidate_json(const Candidate& c) {
  return {{"label", c.label},
          {"step_time_s", c.score.step.count()},
          {"tokens_per_s",
           c.score.step.count() > 0 ? static_cast<double>(c.plan.tokens_per_step()) / c.score.step.count() : 0.0},
          {"peak_total_bytes", c.score.peak_total.count()},
          {"verdict", std::string(name(c.score.verdict))},
          {"out_of_memory", c.score.out_of_memory},
          {"why_lost", c.why_lost.text()},
          {"naive", c.naive}};
}

std::string searched_line(const PlanResult& r) {
  std::string text = "Searched: " + r.searched +
                     fmt::format("; {} considered, {} pruned, {} scored", r.considered, r.pruned, r.scored);
  if (r.simulated_jointly > 0)
    text += fmt::format("; from the best of them one choice at a time, {} more simulated{}", r.simulated_jointly,
                        r.exhausted ? " (as many as may be)" : "");
  if (r.stopped) text += "; SIGINT ended the search, and another plan may be better";
  return text + ".\n";
}

}  // namespace fsdp::cli
