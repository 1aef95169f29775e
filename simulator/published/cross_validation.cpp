#include "simulator/published/cross_validation.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>

#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {

namespace {

constexpr std::array<std::string_view, 3> kNames = {"source-model", "source", "random"};
constexpr std::size_t kRandomFolds = 10;

using RowIndices = std::vector<std::size_t>;

std::vector<RowIndices> by_key(std::span<const FitRun> runs, HoldOut what) {
  std::map<std::pair<std::string, std::string>, RowIndices> groups;
  for (std::size_t i = 0; i < runs.size(); ++i)
    groups[{runs[i].run.source, what == HoldOut::source ? "" : runs[i].run.model}].push_back(i);
  std::vector<RowIndices> folds;
  for (auto& [key, rows] : groups) folds.push_back(std::move(rows));
  return folds;
}

// Fisher and Yates' shuffle with the generator's own numbers: the same on every machine.
std::vector<RowIndices> at_random(std::size_t n, std::uint64_t seed) {
  RowIndices order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  std::mt19937_64 random(seed);
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  std::vector<RowIndices> folds(std::min(kRandomFolds, n));
  for (std::size_t i = 0; i < n; ++i) folds[i % folds.size()].push_back(order[i]);
  return folds;
}

AccuracyRow accuracy_row(const FitRun& r, double predicted) {
  AccuracyRow row;
  row.id = r.run.id, row.source = r.run.source, row.trust = r.run.trust, row.gpu = r.run.gpu, row.model = r.run.model;
  row.gpus = r.prepared.setup.plan.ranks();
  row.measured_step_time_s = r.measured_s;
  row.predicted_step_time_s = predicted;
  return row;
}

struct Split {
  std::vector<const FitRun*> train, near,
      test;  // near: the part of train on GPUs that are tested, which is all that decides
};

Split split(std::span<const FitRun> runs, const RowIndices& fold) {
  Split s;
  std::set<std::string> gpus;
  std::vector<char> held(runs.size(), 0);
  for (const std::size_t i : fold) {
    held[i] = 1;
    s.test.push_back(&runs[i]);
    gpus.insert(runs[i].run.gpu);
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (held[i]) continue;
    s.train.push_back(&runs[i]);
    if (gpus.count(runs[i].run.gpu)) s.near.push_back(&runs[i]);
  }
  return s;
}

}  // namespace

std::string_view name(HoldOut h) { return kNames[static_cast<std::size_t>(h)]; }

HoldOut parse_hold_out(std::string_view text, std::string_view where) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == text) return static_cast<HoldOut>(i);
  throw InputError(std::string(where), "'" + printable(text) + "' is no way to hold rows out",
                   "use source-model, source or random");
}

CrossValidation cross_validate(std::span<FitRun> runs, HoldOut what, const CrossValidationOptions& options) {
  if (runs.size() < 2) throw InputError(setting("cross_validation"), "there is one run only", "give at least two");
  const auto say = [&](const std::string& text) {
    if (options.progress) options.progress(text);
  };
  say("fit to all rows");
  const CalibratedRuns all = fit_runs(runs, "all", {.threads = options.threads, .start = nullptr});
  differentiate(runs, all.costs, options.threads);
  const std::vector<RowIndices> folds =
      what == HoldOut::random ? at_random(runs.size(), options.seed) : by_key(runs, what);
  CrossValidation out;
  out.folds = static_cast<std::int64_t>(folds.size());
  std::vector<AccuracyRow> linear(runs.size());
  out.rows.resize(runs.size());
  for (std::size_t f = 0; f < folds.size(); ++f) {
    say("without part " + std::to_string(f + 1) + " of " + std::to_string(folds.size()));
    const Split s = split(runs, folds[f]);
    FittedCosts fitted;
    if (!s.near.empty()) fitted = fit_runs(s.near, "fold", {.threads = options.threads, .start = &all.costs}).costs;
    const std::vector<double> seconds = s.train.empty() ? std::vector<double>() : linear_baseline(s.train, s.test);
    for (std::size_t i = 0; i < folds[f].size(); ++i) {
      const FitRun& r = *s.test[i];
      out.rows[folds[f][i]] = accuracy_row(r, predict_step_time(r.prepared, costs_for(fitted, r)).count());
      if (!seconds.empty()) linear[folds[f][i]] = accuracy_row(r, seconds[i]);
    }
  }
  out.summary = summarize(out.rows);
  out.summary.free_constants = free_constants(all.costs);
  out.linear = summarize(linear);
  return out;
}

}  // namespace fsdp
