#include "cli/calibration/own_measurements.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "cli/files.h"
#include "cli/named.h"
#include "cli/terminal/terminal.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "simulator/published/own/own_runs.h"
#include "simulator/records/measurement.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

struct GivenPlan {
  std::string path;
  PlanFile file;
  bool used = false;
};

// Steps are measured by our own backends always, by a recorder if it says so.
void check_measured(const Measurement& m, const std::string& path) {
  const bool steps =
      m.observed.empty() || std::find(m.observed.begin(), m.observed.end(), "step_time") != m.observed.end();
  if (!steps || !(m.median_step_seconds > 0))
    throw InputError(path, "has no step times", "record a run that measures its steps");
}

GivenPlan& plan_of(std::vector<GivenPlan>& plans, const Measurement& m, const std::string& path) {
  for (GivenPlan& p : plans)
    if (p.file.plan.digest() == m.provenance.plan_digest) return p;
  throw InputError(path, "is of a plan that is not given (digest " + printable(m.provenance.plan_digest) + ")",
                   "name its plan.json with --plan, too");
}

std::string percent(double error) { return fmt::format("{:+.1f} %", 100 * error); }

std::string constants_table(const OwnFit& fit) {
  if (fit.constants.empty()) return "No constant moved by 0.5 %: the costs agree with what was measured.\n";
  std::vector<std::vector<std::string>> lines;
  for (const OwnConstant& c : fit.constants)
    lines.push_back({c.name, fmt::format("{:.3f}", c.factor), fmt::format("{:.0f} %", 100 * c.standard_error),
                     c.at_bound ? "the end of its range" : ""});
  return fitting_table({"constant", ">times", ">std. error", ""}, lines);
}

std::string plans_table(const OwnFit& fit) {
  std::vector<std::vector<std::string>> lines;
  for (const OwnPlan& p : fit.plans)
    lines.push_back({std::filesystem::path(p.name).filename().string(), std::to_string(p.measurements),
                     fmt::format("{:.4g}", p.measured_step_s), percent(p.before), percent(p.after),
                     p.unseen ? percent(*p.unseen) : "-"});
  return fitting_table({"plan, first measured by", ">times", ">step, s", ">error before", ">after", ">unseen"}, lines);
}

// What the last column says in one line.
std::string unseen_line(const OwnFit& fit) {
  double before = 0, unseen = 0;
  std::int64_t n = 0;
  for (const OwnPlan& p : fit.plans) {
    if (!p.unseen) continue;
    before += std::abs(p.before), unseen += std::abs(*p.unseen);
    ++n;
  }
  if (n == 0) return "One plan alone: how well these costs predict another one is not known. Measure a second plan.\n";
  const auto mean = [&](double sum) { return 100 * sum / static_cast<double>(n); };
  return fmt::format(
      "Plans that the fit had not seen (each predicted by the others): mean error {:.1f} % before, {:.1f} "
      "% after.{}\n",
      mean(before), mean(unseen), unseen > before ? " The fit does not carry over to other plans." : "");
}

}  // namespace

OwnCosts costs_from_measurements(const OwnMeasurements& f) {
  if (f.plans.empty())
    throw InputError("--plan", "is missing: a measurement does not hold its plan", "name the plan.json of each run");
  std::vector<GivenPlan> plans;
  for (const std::string& path : f.plans) {
    Flags flags;
    flags.plan = path;
    plans.push_back({path, plan_from_file(flags)});
  }
  OwnCosts out;
  std::vector<OwnRun> runs;
  std::optional<Costs> base;
  std::string platform, said_by;
  std::set<std::string> models;
  std::map<std::string, std::string> paths;  // by the document that each holds
  for (const std::string& path : f.measurements) {
    const std::string text = read_file(path);
    const Measurement m = parse_measurement(text, path);
    if (const auto [first, added] = paths.emplace(text, path); !added)
      throw InputError(path, "holds the same measurement as " + first->second + ", which would count twice",
                       "give each measurement once");
    check_measured(m, path);
    GivenPlan& given = plan_of(plans, m, path);
    Flags flags = f.shared;
    flags.plan = given.path, flags.costs = f.costs;
    flags.cluster = f.cluster ? f.cluster : Text(m.provenance.cluster);
    Setup setup = resolve_setup(flags, &given.file, models.insert(given.path).second ? Notes::printed : Notes::silent);
    if (setup.model.digest() != m.provenance.model_digest)
      throw InputError(path, "is of another model than --model (" + printable(m.provenance.model) + ")",
                       "name the model that was trained");
    const std::string own = setup.cluster.host ? "host" : setup.cluster.gpu.name;
    if (!platform.empty() && own != platform)
      throw InputError(path, "was measured on " + own + ", " + said_by + " on " + platform, "calibrate each by itself");
    platform = own, said_by = path;
    if (!base) base = setup.costs;
    check(given.file.plan, setup.model, given.path);
    given.used = true;
    for (const std::string& doubt : doubts(m)) out.notes.push_back(path + ": " + doubt);
    runs.push_back(own_run(path, std::move(setup.model), given.file.plan, *setup.implementation,
                           std::move(setup.cluster), m.median_step_seconds, m.by_action));
  }
  for (const GivenPlan& p : plans)
    if (!p.used) out.notes.push_back(p.path + ": no measurement is of this plan");
  const OwnFit fit = fit_own_runs(
      runs, *base, fmt::format("calibrate --from {}, from {}", counted(runs.size(), "measurement"), base->source));
  out.costs = fit.costs;
  out.tables = constants_table(fit) + "\n" + plans_table(fit) + "\n" + unseen_line(fit);
  return out;
}

}  // namespace fsdp::cli
