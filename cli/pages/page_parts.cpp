#include "cli/pages/page_parts.h"

#include <algorithm>
#include <utility>

#include "planner/costs.h"
#include "simulator/analysis/memory_report.h"

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

void add_step(ReportPage& page, std::string name, const Timeline& timeline, const Program& program,
              const ShardingPlan& plan, const Setup& setup) {
  const CostContext context{setup.model, plan, *setup.implementation, setup.cluster, setup.costs};
  const std::vector<Demand> demands = demands_of(program.steady_step, program, context);
  const StepPicture picture{program, plan, setup.model, timeline, demands, nullptr};
  if (page.steps.empty()) {
    page.documents.emplace_back("plan", to_json_text(plan));
    page.documents.emplace_back("units", report_units(picture));
    page.documents.emplace_back("memory_report", to_json_text(memory_report(program, plan, setup.model)));
  }
  page.steps.push_back(report_step(std::move(name), picture));
}

std::string report_line(const std::string& file) { return "\nreport: " + file + " (open it in a browser)\n"; }

}  // namespace fsdp::cli
