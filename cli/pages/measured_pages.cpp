// Pages of what was measured: run, validate, accuracy.
#include <optional>
#include <utility>

#include "cli/brief_json.h"
#include "cli/pages/page_parts.h"
#include "cli/pages/pages.h"
#include "cli/report/report.h"
#include "cli/report/validation_json.h"
#include "simulator/analysis/memory_report.h"

namespace fsdp::cli {
namespace {

void add_measurement(ReportPage& page, const Measurement& m) {
  const std::string& cluster = m.provenance.cluster;  // of a recorder of PyTorch: empty
  page.title = m.provenance.model + " on " + with_commas(static_cast<std::int64_t>(m.ranks.size())) +
               (cluster.empty() ? m.ranks.size() == 1 ? " rank" : " ranks" : " x " + cluster) + ", measured";
  page.documents.emplace_back("measurement", printed(to_json_text(m), JsonForm::brief));
  for (const std::string& line : lines_of(m.environment + "\n" + measurement_lines(m))) page.details.push_back(line);
}

std::string measured_name(const RankMeasurement& rank) { return "measured on rank " + std::to_string(rank.rank); }

// The timelines of two documents: where the prediction says what its operations are, and ranks ran the same ones.
void add_recorded_steps(ReportPage& page, const Prediction& p, const Measurement& m) {
  if (p.issued.empty() || p.issued.size() != p.timeline.spans.size()) return;
  std::vector<ReportStep> steps;
  for (const std::size_t r : ranks_shown(m, p.issued.size())) {
    const RankMeasurement& rank = m.ranks[r];
    if (rank.order != p.order || rank.steady_step.points.size() != p.issued.size()) continue;
    const ProgramMemory* memory = memory_of(p, rank.rank);
    const MemoryTimeline& said = memory != nullptr ? memory->steady_step : p.memory.steady_step;
    steps.push_back(
        report_step(measured_name(rank), RecordedStep{p.order, p.issued, rank.timeline, said, &rank.steady_step}));
  }
  if (steps.empty()) return;
  page.steps.push_back(
      report_step("predicted", RecordedStep{p.order, p.issued, p.timeline, p.memory.steady_step, nullptr}));
  for (ReportStep& step : steps) page.steps.push_back(std::move(step));
}

}  // namespace

std::string run_page(const CalledWith& words, const Measurement& m, const std::optional<Prediction>& prediction,
                     const std::optional<ValidationReport>& report, const Program& program, const ShardingPlan& plan,
                     const ModelGraph& model) {
  ReportPage page = page_of("run", words);
  page.answer = printed(to_json_text(m), JsonForm::brief);
  page.details = {"Plan: " + plan_label(plan, &model)};
  add_measurement(page, m);
  page.verdict =
      report ? validation_line(*report, Tolerances{})
             : "Measured: step " + human(Seconds(m.median_step_seconds)) + " (median), no prediction to compare";
  if (prediction) {
    page.documents.emplace_back("prediction", printed(*prediction, JsonForm::brief));
    page.steps.push_back(report_step("predicted", {program, plan, model, prediction->timeline, {}, nullptr}));
  }
  if (report) page.documents.emplace_back("validation", validation_json(*report, Tolerances{}));
  const StepPicture first{program, plan, model, m.ranks.front().timeline, {}, &m.ranks.front().steady_step};
  page.documents.emplace_back("plan", to_json_text(plan));
  page.documents.emplace_back("units", report_units(first));
  page.documents.emplace_back("modules", report_modules(first));
  page.documents.emplace_back("memory_report", to_json_text(memory_report(program, plan, model)));
  for (const std::size_t r : ranks_shown(m, program.steady_step.ops.size()))
    page.steps.push_back(
        report_step(measured_name(m.ranks[r]),
                    StepPicture{program, plan, model, m.ranks[r].timeline, {}, &m.ranks[r].steady_step}));
  return report_html(page);
}

std::string validate_page(const CalledWith& words, const ValidationReport& report, const Tolerances& tolerances,
                          const Prediction& prediction, const Measurement* measurement) {
  ReportPage page = page_of("validate", words);
  page.answer = validation_json(report, tolerances);
  page.verdict = validation_line(report, tolerances);
  if (measurement != nullptr) add_measurement(page, *measurement);
  else page.title = prediction.provenance.model + ", predicted and recorded";
  page.documents.emplace_back("prediction", printed(prediction, JsonForm::brief));
  page.documents.emplace_back("validation", page.answer);
  if (measurement != nullptr) add_recorded_steps(page, prediction, *measurement);
  return report_html(page);
}

std::string accuracy_page(const CalledWith& words, const std::string& answer, const std::string& headline) {
  ReportPage page = page_of("accuracy", words);
  page.title = "How far predictions are from published runs";
  page.verdict = "Step time of the most trusted runs: " + headline;
  page.answer = answer;
  return report_html(page);
}

}  // namespace fsdp::cli
