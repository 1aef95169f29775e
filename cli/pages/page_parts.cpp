#include "cli/pages/page_parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/field_flags.h"
#include "planner/costs.h"
#include "planner/tensor/local_model.h"
#include "simulator/analysis/memory_report.h"
#include "simulator/predict/bandwidth_sweep.h"

namespace fsdp::cli {

void add_report_flag(const Command& command, ReportFlag& flag, const std::string& help) {
  command.option("--report", flag.file, help, "FILE.html");
  flag.words = command.called_with();
}

ReportPage page_of(std::string command, const CalledWith& words) {
  ReportPage page;
  page.command = std::move(command);
  page.version = FSDP_PLAN_VERSION;
  page.command_line = "fsdp-plan";
  for (const std::string& word : words) page.command_line += " " + shell_word(word);
  return page;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

namespace {

// What a page can say of other bandwidths: each point was simulated.
nlohmann::ordered_json what_if(const std::string& label, const Program& program, const CostContext& context,
                               const Timeline& own) {
  const BandwidthSweep sweep = bandwidth_sweep(program, context, own);
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const BandwidthPoint& p : sweep.points)
    points.push_back({{"factor", p.factor},
                      {"bytes_per_s", p.bandwidth.count()},
                      {"step_time_s", p.step.count()},
                      {"exposed_communication_s", p.exposed_communication.count()}});
  return {{"label", label}, {"link", sweep.between_nodes ? "between nodes" : "inside a node"}, {"points", points}};
}

}  // namespace

void add_step(ReportPage& page, std::string name, const Timeline& timeline, const Program& program,
              const ShardingPlan& plan, const Setup& setup) {
  const ModelGraph model =
      local_model(setup.model, plan, *setup.implementation);  // what the program's operations are of
  const CostContext context{model, plan, *setup.implementation, setup.cluster, setup.costs};
  const Demands demands = demands_of(program.steady_step, program, context);
  const StepPicture picture{program, plan, model, timeline, demands, nullptr};
  if (page.steps.empty()) {
    page.documents.emplace_back("plan", to_json_text(plan));
    page.documents.emplace_back("units", report_units(picture));
    page.documents.emplace_back("modules", report_modules(picture));
    page.documents.emplace_back("memory_report", to_json_text(memory_report(program, plan, model)));
  }
  page.documents.emplace_back("what_if_" + std::to_string(page.steps.size()),
                              what_if(name, program, context, timeline).dump());
  page.steps.push_back(report_step(std::move(name), picture));
}

std::vector<std::size_t> ranks_shown(const Measurement& m, std::size_t operations) {
  constexpr std::size_t kMost = 8;
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < m.ranks.size() && ranks.size() < kMost; ++r)
    if (m.ranks[r].timeline.spans.size() == operations && operations > 0) ranks.push_back(r);
  return ranks;
}

std::string report_line(const std::string& file) { return "\nreport: " + file + " (open it in a browser)\n"; }

}  // namespace fsdp::cli
