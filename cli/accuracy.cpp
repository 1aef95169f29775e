// fsdp-plan accuracy: predicts runs that others published, and says how far off it is.
#include "simulator/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "models/suggest.h"
#include "simulator/cross_validation.h"
#include "simulator/fit_runs.h"
#include "viz/scatter.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

struct AccuracyFlags {
  std::string runs;
  Text costs, plot, worst, cross_validate, seed;
  bool json = false, all = false;
};

std::string signed_percent(const std::optional<double>& error) { return error ? fmt::format("{:+.1f} %", 100 * *error) : ""; }
std::string percent_of(double e) { return fmt::format("{:.1f} %", 100 * e); }
std::string gib(const std::optional<std::int64_t>& bytes) { return bytes ? fmt::format("{:.2f}", static_cast<double>(*bytes) / (1 << 30)) : ""; }
std::string seconds(const std::optional<double>& s) { return s ? fmt::format("{:.4g}", *s) : ""; }

double badness(const AccuracyRow& r) {
  return std::max(std::abs(r.step_time_error().value_or(0)), std::abs(r.peak_error().value_or(0)));
}

std::string row_table(const AccuracyReport& report, std::size_t at_most) {
  std::vector<const AccuracyRow*> rows;
  for (const AccuracyRow& r : report.rows) rows.push_back(&r);
  const bool all = at_most >= rows.size();
  if (!all) std::stable_sort(rows.begin(), rows.end(), [](const auto* a, const auto* b) { return badness(*a) > badness(*b); });
  rows.resize(std::min(at_most, rows.size()));
  std::vector<std::vector<std::string>> lines;
  for (const AccuracyRow* r : rows)
    lines.push_back({r->id, r->model, r->gpu, std::to_string(r->gpus), r->trust, seconds(r->measured_step_time_s), seconds(r->predicted_step_time_s),
                     signed_percent(r->step_time_error()), gib(r->measured_peak_bytes), gib(r->predicted_peak_bytes), signed_percent(r->peak_error())});
  if (lines.empty()) return {};
  return (all ? "Rows:\n" : fmt::format("The {} rows that are furthest off, of {}:\n", lines.size(), report.rows.size())) +
         table({"row", "model", "GPU", ">GPUs", "trust", ">measured s", ">predicted s", ">error", ">measured GiB", ">predicted GiB", ">error"}, lines);
}

std::vector<std::string> summary_line(const std::string& what, const ErrorSummary& s) {
  if (s.rows == 0) return {what, "0", "", "", "", "", ""};
  return {what, std::to_string(s.rows), percent_of(s.mean), percent_of(s.median), percent_of(s.p90), percent_of(s.worst) + " (" + s.worst_id + ")",
          signed_percent(s.bias)};
}

std::string summary_table(const AccuracySummary& s, const std::string& what, ErrorSummary AccuracyGroup::*part) {
  std::vector<std::vector<std::string>> lines = {summary_line("trust A, without float8", s.headline.*part), summary_line("all rows", s.all.*part)};
  for (const AccuracyGroup& g : s.groups)
    if ((g.*part).rows > 0) lines.push_back(summary_line(g.by + ": " + g.name, g.*part));
  return "\n" + what + ", absolute errors:\n" + table({"rows", ">count", ">mean", ">median", ">p90", ">worst (row)", ">bias"}, lines);
}

std::string tau_line(const AccuracySummary& s) {
  const auto words = [](const RankAgreement& r) {
    return r.pairs == 0 ? std::string("no group of 5 rows")
                        : fmt::format("{:.3f} over {} pairs ({:.3f}, mean of {} groups)", r.tau, with_commas(r.pairs), r.mean_tau, r.groups);
  };
  return fmt::format("\nKendall's tau inside groups of source, GPU and model: trust A {}; all {}.\nFree constants in use: {}.\n", words(s.headline_order),
                     words(s.order), s.free_constants);
}

// The reason without what differs from row to row: numbers and what is quoted.
std::string skip_table(const AccuracyReport& report) {
  if (report.skipped.empty()) return {};
  std::map<std::string, std::pair<std::int64_t, std::string>> reasons;   // count and the first rows
  for (const RefusedRow& r : report.skipped) {
    auto& [count, rows] = reasons[r.reason];
    if (count++ < 4) rows += (rows.empty() ? "" : ", ") + printable(r.id);
    else if (count == 5) rows += ", ...";
  }
  std::vector<std::vector<std::string>> lines;
  for (const auto& [reason, c] : reasons) lines.push_back({std::to_string(c.first), printable(c.second), reason});
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return std::stoll(a[0]) > std::stoll(b[0]); });
  const std::size_t shown = std::min<std::size_t>(lines.size(), 25);
  const std::string more = lines.size() > shown ? fmt::format("... and {} further reasons (--json lists every row)\n", lines.size() - shown) : "";
  lines.resize(shown);
  return fmt::format("\nSkipped, {} rows:\n", report.skipped.size()) + table({">count", "rows", "reason"}, lines) + more;
}

std::string report_text(const AccuracyReport& report, std::size_t worst) {
  const AccuracySummary& s = report.summary;
  std::string out = row_table(report, worst);
  if (s.all.step_time.rows > 0) out += summary_table(s, "Step time", &AccuracyGroup::step_time);
  if (s.all.peak.rows > 0) out += summary_table(s, "Peak memory of the kind that the row names", &AccuracyGroup::peak);
  out += tau_line(s);
  if (!s.repeated_ids.empty()) out += "Ids that occur more than once (each row counts): " + join(s.repeated_ids) + ".\n";
  return out + skip_table(report);
}

std::string plot(const AccuracyReport& report) {
  std::vector<ScatterPoint> points;
  for (const AccuracyRow& r : report.rows)
    if (const auto error = r.step_time_error())
      points.push_back({*r.measured_step_time_s, *r.predicted_step_time_s, r.source,
                        fmt::format("{}: {} on {} {}, {}", r.id, r.model, r.gpus, r.gpu, signed_percent(error))});
  return scatter_svg(points, {fmt::format("Step time of {} published runs", with_commas(static_cast<std::int64_t>(points.size()))), "s"});
}

PriceList prices(const AccuracyFlags& f) {
  if (!f.costs) return datasheet_prices();
  auto costs = parse_any_costs(read_file(*f.costs), *f.costs);
  if (auto* fitted = std::get_if<FittedCosts>(&costs)) return prices_of(std::move(*fitted));
  return prices_of(std::get<Costs>(std::move(costs)));
}

std::string errors_line(const ErrorSummary& s) {
  return fmt::format("mean {}, median {}, worst {}", percent_of(s.mean), percent_of(s.median), percent_of(s.worst));
}

// Predictions by constants that were fitted without the row. `told`: what else is to be said about them.
AccuracyReport cross_validated(const AccuracyFlags& f, std::istream& file, std::string& told) {
  if (f.costs) throw InputError("--costs", "contradicts --cross-validate, which fits its own", "leave out one of the two");
  const HoldOut what = parse_hold_out(*f.cross_validate, "--cross-validate");
  CrossValidationOptions options;
  if (f.seed) options.seed = static_cast<std::uint64_t>(parse_count(*f.seed, "--seed", 0, INT64_MAX));
  options.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
  Progress progress;
  options.progress = [&](const std::string& now) { progress.say("accuracy: " + now); };
  FitRunsOptions reading;
  reading.threads = options.threads;
  reading.progress = options.progress;
  FitRuns runs = read_fit_runs(file, f.runs, reading);
  CrossValidation v = cross_validate(runs.rows, what, options);
  told = fmt::format("\nEvery row was predicted by constants fitted without it: {} parts held out in turn ({}{}).\n"
                     "Eight linear features per GPU on the same parts: trust A {}; all {}.\n",
                     v.folds, *f.cross_validate, what == HoldOut::random ? fmt::format(", seed {}", options.seed) : "",
                     errors_line(v.linear.headline.step_time), errors_line(v.linear.all.step_time));
  return {std::move(v.rows), std::move(runs.left_out), std::move(v.summary)};
}

int accuracy_command(const AccuracyFlags& f) {
  check_output(f.plot);
  if (f.seed && !f.cross_validate) throw InputError("--seed", "has a meaning with --cross-validate random only", "leave it out");
  std::size_t worst = 20;
  if (f.worst) worst = static_cast<std::size_t>(parse_count(*f.worst, "--worst", 0, 1'000'000'000));
  if (f.all) worst = static_cast<std::size_t>(-1);
  std::error_code error;
  if (std::filesystem::is_directory(f.runs, error)) throw InputError(f.runs, "is a folder", "give a CSV file of runs");
  std::ifstream file(f.runs, std::ios::binary);
  if (!file) throw InputError(f.runs, "cannot be read", "give a CSV file of runs");
  AccuracyReport report;
  std::string told;
  if (f.cross_validate) {
    report = cross_validated(f, file, told);
  } else {
    Progress progress;
    AccuracyOptions options;
    options.progress = [&](std::int64_t row) { progress.say(fmt::format("accuracy: row {}", with_commas(row))); };
    report = accuracy_of(file, f.runs, prices(f), options);
  }
  if (f.plot) write_file(*f.plot, plot(report));
  if (f.json) print(stdout, to_json_text(report));
  else print(stdout, report_text(report, worst) + told);
  return kDone;
}

}  // namespace

void add_accuracy(CLI::App& app, Work& chosen) {
  auto flags = std::make_shared<AccuracyFlags>();
  CLI::App* command = app.add_subcommand("accuracy", "predict runs that others published, and show the errors");
  command->add_option("runs", flags->runs, "CSV of runs, with the columns of tests/accuracy/published_runs.csv")->required()->type_name("RUNS.csv");
  command->add_option("--costs", flags->costs, "costs.json of `calibrate`; default: datasheet and measured ceilings")->type_name("FILE");
  command->add_option("--cross-validate", flags->cross_validate,
                      "predict each row by constants fitted without it; held out together: source-model | source | random")->type_name("WHAT");
  command->add_option("--seed", flags->seed, "of --cross-validate random; default 1")->type_name("N");
  command->add_option("--plot", flags->plot, "write a picture of measured against predicted here, as SVG")->type_name("FILE.svg");
  command->add_option("--worst", flags->worst, "how many rows to show, the furthest off first; default 20")->type_name("N");
  command->add_flag("--all", flags->all, "show every row, in the order of the file");
  command->add_flag("--json", flags->json, "one JSON object with every row");
  command->callback([flags, &chosen] { chosen = [flags] { return accuracy_command(*flags); }; });
}

}  // namespace fsdp::cli
