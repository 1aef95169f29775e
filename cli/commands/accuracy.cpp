// fsdp-plan accuracy: predicts runs that others published, and says how far off it is.
#include "simulator/published/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <thread>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/pages/pages.h"
#include "cli/report/accuracy_report.h"
#include "cli/report/intervals_report.h"
#include "cli/report/pairs_report.h"
#include "cli/terminal/terminal.h"
#include "simulator/published/cross_validation.h"
#include "simulator/published/fit_runs.h"
#include "simulator/published/pairs.h"

namespace fsdp::cli {
namespace {

struct AccuracyFlags {
  std::string runs;
  std::vector<std::string> more_runs;
  Text costs, plot, worst, cross_validate, seed;
  ReportFlag report;
  bool json = false, all = false, markdown = false, pairs = false, assumptions = false, intervals = false;
};

// `used` becomes true when a run is on a GPU that the costs are of.
PriceList prices(const AccuracyFlags& f, bool& used) {
  if (!f.costs) return datasheet_prices();
  auto costs = parse_any_costs(read_file(*f.costs), *f.costs);
  std::set<std::string> gpus;
  PriceList list;
  if (auto* fitted = std::get_if<FittedCosts>(&costs)) {
    for (const auto* part : {&fitted->gpus, &fitted->platforms})
      for (const FittedPlatform& p : *part) gpus.insert(p.gpu);
    list = prices_of(std::move(*fitted));
  } else {
    gpus.insert(std::get<Costs>(costs).platform);
    list = prices_of(std::get<Costs>(std::move(costs)));
  }
  list.costs_of = [inner = std::move(list.costs_of), gpus = std::move(gpus), &used](const RunSetup& s) {
    used = used || gpus.contains("") || gpus.contains(s.cluster.gpu.name);
    return inner(s);
  };
  return list;
}

// Predictions by constants that were fitted without the row. `told`: what else is to be said about them.
AccuracyReport cross_validated(const AccuracyFlags& f, std::istream& file, std::string& told) {
  if (f.costs)
    throw InputError("--costs", "contradicts --cross-validate, which fits its own", "leave out one of the two");
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
  told = fmt::format(
      "\nEvery row was predicted by constants fitted without it: {} parts held out in turn ({}{}).\n"
      "Eight linear features per GPU on the same parts: trust A {}; all {}.\n",
      v.folds, *f.cross_validate, what == HoldOut::random ? fmt::format(", seed {}", options.seed) : "",
      errors_line(v.linear.headline.step_time), errors_line(v.linear.all.step_time));
  return {std::move(v.rows), std::move(runs.left_out), std::move(v.summary)};
}

std::ifstream opened(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw InputError(path, "is a folder", "give a CSV file of runs");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(path, "cannot be read", "give a CSV file of runs");
  return file;
}

int accuracy_command(const AccuracyFlags& f) {
  check_output("--plot", f.plot);
  if (f.plot) check_apart(*f.plot, f.runs);
  check_output("--report", f.report.file, {f.runs, f.costs, f.plot});
  if (f.seed && f.cross_validate != "random")
    throw InputError("--seed", "has a meaning with --cross-validate random only", "leave it out");
  if (f.json && f.markdown) throw InputError("--markdown", "contradicts --json", "leave out one of the two");
  if (f.all && f.worst) throw InputError("--worst", "contradicts --all", "leave out one of the two");
  if (f.pairs && f.cross_validate)
    throw InputError("--pairs", "contradicts --cross-validate: the rows of a pair would have different constants",
                     "leave out one of the two");
  std::size_t worst = 20;
  if (f.worst) worst = static_cast<std::size_t>(parse_count(*f.worst, "--worst", 0, 1'000'000'000));
  if (f.all) worst = static_cast<std::size_t>(-1);
  if (f.intervals && (f.costs || f.cross_validate || f.pairs || f.plot))
    throw InputError("--intervals", "has an answer of its own", "leave the other flags out");
  if (f.cross_validate && !f.more_runs.empty())
    throw InputError("--cross-validate", "fits to one file", "put the rows of all runs into it");
  std::ifstream file = opened(f.runs);
  AccuracyReport report;
  std::string told;
  if (f.cross_validate) {
    report = cross_validated(f, file, told);
  } else {
    Progress progress;
    AccuracyOptions options;
    options.keep_runs = f.pairs;
    options.every_peak = f.intervals;
    options.progress = [&](std::int64_t row) { progress.say(fmt::format("accuracy: row {}", with_commas(row))); };
    bool used = false;
    const PriceList list = prices(f, used);
    report = accuracy_of(file, f.runs, list, options);
    for (const std::string& more : f.more_runs) {
      std::ifstream next = opened(more);
      report = joined(std::move(report), accuracy_of(next, more, list, options));
    }
    if (f.costs && !used && !report.rows.empty())
      throw InputError(*f.costs, "are costs of other GPUs than these runs'",
                       "pass costs of theirs, or leave --costs out");
  }
  if (report.rows.empty() && report.skipped.empty())
    throw InputError(f.runs, "holds a header and no runs", "give a row for every run");
  if (f.plot) write_file(*f.plot, accuracy_plot(report));
  if (f.report.file)
    write_file(*f.report.file,
               accuracy_page(f.report.words, to_json_text(report), errors_line(report.summary.headline.step_time)));
  print(stderr, ignored_columns_text(report));
  const PairReport pairs = f.pairs ? pair_up(report) : PairReport();
  if (f.json) print(stdout, f.pairs ? to_json_text(report, pairs) : to_json_text(report));
  else if (f.intervals) print(stdout, intervals_text(report, f.markdown));
  else if (f.pairs) print(stdout, f.markdown ? pairs_markdown(pairs) : pairs_text(pairs, worst));
  else print(stdout, (f.markdown ? accuracy_markdown(report) : accuracy_text(report, worst, f.assumptions)) + told);
  if (f.markdown) print(stderr, assumptions_text(report));
  if (!report.rows.empty()) return kDone;
  print(stderr, nothing_predicted(report));
  return kAnswerIsNo;
}

}  // namespace

void add_accuracy(const Command& app) {
  auto flags = std::make_shared<AccuracyFlags>();
  const Command command = app.add("accuracy", "predict runs that others published, and show the errors");
  command.required("runs", flags->runs, "CSV of runs, with the columns of tests/accuracy/published_runs.csv",
                   "RUNS.csv");
  command.option("more_runs", flags->more_runs, "further files of runs", "RUNS.csv");
  command.option("--costs", flags->costs, "costs.json of `calibrate`; default: datasheet and measured ceilings",
                 "FILE");
  command.option("--cross-validate", flags->cross_validate,
                 "predict each row by constants fitted without it; held out together: source-model | source | random",
                 "WHAT");
  command.flag("--pairs", flags->pairs,
               "compare differences: every pair of rows that differ in one knob, measured and predicted");
  command.option("--seed", flags->seed, "of --cross-validate random; default 1", "N");
  command.option("--plot", flags->plot, "write a picture of measured against predicted here, as SVG", "FILE.svg");
  add_report_flag(command, flags->report, "write every row, with filters, as a page here");
  command.option("--worst", flags->worst, "how many rows (or pairs) to show, the furthest off first; default 20", "N");
  command.flag("--all", flags->all, "show every row, in the order of the file (every pair, by knob)");
  command.flag(
      "--intervals", flags->intervals,
      "how sure predictions are: 80 % intervals and the probability of running out of memory, held against the rows");
  command.flag("--assumptions", flags->assumptions, "beside each row that is shown, what was assumed of it");
  command.flag("--markdown", flags->markdown, "the summary alone, as a Markdown table");
  command.flag("--json", flags->json, "one JSON object with every row");
  command.examples({"fsdp-plan accuracy runs.csv --worst 5", "fsdp-plan accuracy runs.csv --markdown",
                    "fsdp-plan accuracy runs.csv --cross-validate source-model",
                    "fsdp-plan accuracy runs.csv --pairs --all"});
  command.runs([flags] { return accuracy_command(*flags); });
}

}  // namespace fsdp::cli
