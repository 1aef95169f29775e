#include "cli/brief_json.h"
#include "cli/pages/page_parts.h"
#include "cli/pages/pages.h"
#include "cli/report/report.h"

namespace fsdp::cli {

std::string simulate_page(const CalledWith& words, const Prediction& prediction, const Program& program,
                          const ShardingPlan& plan, const Setup& setup) {
  ReportPage page = page_of("simulate", words);
  page.title = prediction.provenance.model + " on " + with_commas(prediction.ranks) + " x " + setup.cluster.gpu.name;
  page.verdict = verdict_line(prediction);
  page.details = lines_of(caution(plan, setup.model) + cost_line(prediction) +
                          "Plan: " + plan_label(plan, &setup.model) + "\n" + basis(prediction, plan, setup.costs));
  page.answer = printed(prediction, JsonForm::brief);
  add_step(page, "predicted", prediction.timeline, program, plan, setup);
  return report_html(page);
}

}  // namespace fsdp::cli
