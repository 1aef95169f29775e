#include "cli/brief_json.h"
#include "cli/pages/page_parts.h"
#include "cli/pages/pages.h"
#include "cli/report/report.h"
#include "planner/tensor/local_model.h"
#include "viz/step_svg.h"

namespace fsdp::cli {

std::string simulate_page(const CalledWith& words, const Prediction& prediction, const Program& program,
                          const ShardingPlan& plan, const Setup& setup) {
  ReportPage page = page_of("simulate", words);
  page.title = prediction.provenance.model + " on " + with_commas(prediction.ranks) + " x " + setup.cluster.gpu.name;
  page.verdict = verdict_line(prediction);
  const std::string steps = prediction.step_time_distribution
                                ? distribution_line(*prediction.step_time_distribution, prediction.ranks, setup.costs)
                                : "";
  page.details =
      lines_of(caution(plan, setup.model, *setup.implementation) + doubt_line(prediction) + cost_line(prediction) +
               steps + "Plan: " + plan_label(plan, &setup.model) + "\n" + basis(prediction, plan, setup.costs));
  page.answer = printed(prediction, JsonForm::brief);
  add_step(page, "predicted", prediction.timeline, program, plan, setup);
  return report_html(page);
}

std::string simulate_svg(const Prediction& prediction, const Program& program, const ShardingPlan& plan,
                         const Setup& setup) {
  SvgText words;
  words.title = prediction.provenance.model + " on " + with_commas(prediction.ranks) + " x " + setup.cluster.gpu.name;
  words.subtitle = lines_of(verdict_line(prediction)).front();
  const std::string beside = prediction.fixed.count() > 0 ? " less context and communicators" : "";
  words.lines = {{"limit" + beside, prediction.memory_limit - prediction.fixed}};
  const ModelGraph model = local_model(setup.model, plan, *setup.implementation);  // what the operations are of
  return step_svg({program, plan, model, prediction.timeline}, words);
}

}  // namespace fsdp::cli
