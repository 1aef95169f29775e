#include "cli/brief_json.h"
#include "cli/pages/page_parts.h"
#include "cli/pages/pages.h"
#include "cli/predict.h"
#include "cli/report/report.h"

namespace fsdp::cli {
namespace {

// The candidate's step as the page draws it.
Prediction add_candidate(ReportPage& page, const Candidate& c, const Setup& setup) {
  Programs programs = programs_of(c.plan, setup);
  Prediction prediction = predict(programs, setup.costs, setup.options);
  add_step(page, c.label, prediction.timeline, programs.of(0), c.plan, setup);
  return prediction;
}

}  // namespace

std::string plan_page(const CalledWith& words, const PlanResult& result, const std::string& answer,
                      const std::string& searched, const Prediction* prediction, const Setup& setup) {
  ReportPage page = page_of("plan", words);
  page.answer = printed(answer, JsonForm::brief);
  const Candidate& shown = prediction != nullptr ? *result.best : *result.least;
  const Prediction own = add_candidate(page, shown, setup);
  if (prediction == nullptr) page.documents.emplace_back("shown_prediction", printed(own, JsonForm::brief));
  page.title = setup.model.name + " on " + with_commas(own.ranks) + " x " + setup.cluster.gpu.name;
  page.verdict = prediction != nullptr ? verdict_line(*prediction) : "Does not fit: " + result.why_none;
  page.details = lines_of(caution(shown.plan, setup.model, *setup.implementation) +
                          (prediction != nullptr ? doubt_line(*prediction) + cost_line(*prediction) : "") +
                          (prediction != nullptr ? "Choice: " : "The plan that needs least: ") +
                          plan_label(shown.plan, &setup.model) + "\n" + basis(own, shown.plan, setup.costs) + searched);
  for (const Candidate& rival : result.rivals)
    if (rival.score.step.count() > 0) (void)add_candidate(page, rival, setup);
  return report_html(page);
}

}  // namespace fsdp::cli
