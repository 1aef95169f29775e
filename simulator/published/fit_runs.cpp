#include "simulator/published/fit_runs.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "models/input/error.h"
#include "simulator/published/fit.h"
#include "simulator/published/software/run_software.h"

namespace fsdp {

namespace {

constexpr std::int64_t kRowsNeeded = 5;
constexpr double kInforms = 0.02;  // d log(step time) / d log(constant), in size
constexpr double kDifference = 0.01;
constexpr double kWide =
    0.3;  // expected spread (log) from which a constant is searched for, not only followed downhill
constexpr double kShared = 0.10;  // correlation of the errors of one model's rows on one platform: an estimate
constexpr double kNoise = 0.009;  // the same configuration measured twice by the same people: median difference

constexpr std::size_t kMostRuns = 5000;  // each keeps its lowered steps: a quarter of a megabyte

using Rows = std::vector<const FitRun*>;
using Parameters = std::span<const CostParameter>;

// f(0) ... f(n - 1), by several threads. What one throws is thrown again.
template <class F>
void for_each_index(std::size_t n, int threads, const F& f) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr problem;
  std::atomic<bool> failed{false};
  const auto work = [&] {
    for (std::size_t i = next++; i < n && !failed; i = next++) {
      try {
        f(i);
      } catch (...) {
        if (!failed.exchange(true)) problem = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < std::min<int>(threads, static_cast<int>(n)); ++t) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
  if (problem) std::rethrow_exception(problem);
}

double log_error(const FitRun& row, const Costs& costs) {
  return std::log(predict_step_time(row.prepared, costs).count() / row.measured_s);
}

std::vector<double> log_errors(const Rows& rows, const std::vector<Costs>& costs, int threads) {
  std::vector<double> errors(rows.size());
  for_each_index(rows.size(), threads, [&](std::size_t i) { errors[i] = log_error(*rows[i], costs[i]); });
  return errors;
}

std::vector<Costs> datasheets(const Rows& rows) {
  std::vector<Costs> costs;
  costs.reserve(rows.size());
  for (const FitRun* r : rows) costs.push_back(default_costs(r->prepared.setup.cluster));
  return costs;
}

double mean_error(const std::vector<double>& log_errors) {
  double sum = 0;
  for (const double e : log_errors) sum += std::abs(std::exp(e) - 1);
  return log_errors.empty() ? 0 : sum / static_cast<double>(log_errors.size());
}

// Everything about one platform that the problem of its GPU needs.
struct Platform {
  std::string source, generation;
  Rows rows;
  std::vector<Costs> base;
  std::vector<double> before;
  std::vector<std::int64_t> informed;  // rows per parameter
  std::vector<int> variable;           // per parameter: index of the variable that it has here; -1: the datasheet's
};

std::vector<double> weights_of(const Rows& rows) {
  std::map<std::string, double> count;
  for (const FitRun* r : rows) count[r->run.model] += 1;
  std::vector<double> weights;
  weights.reserve(rows.size());
  for (const FitRun* r : rows) weights.push_back(1 / (1 + (count[r->run.model] - 1) * kShared));
  return weights;
}

class GpuFit {
 public:
  GpuFit(std::string gpu, const Rows& rows, const FitRunsOptions& options) : gpu_(std::move(gpu)), options_(options) {
    std::map<std::pair<std::string, std::string>, Rows> by_platform;
    for (const FitRun* r : rows) by_platform[{r->run.source, r->run.software_generation}].push_back(r);
    for (auto& [key, own] : by_platform) {
      Platform p{key.first, key.second, std::move(own), {}, {}, {}, {}};
      p.base = datasheets(p.rows);
      for (const FitRun* r : p.rows) p.before.push_back(r->datasheet_error);
      for (std::size_t k = 0; k < parameters_.size(); ++k)
        p.informed.push_back(std::count_if(p.rows.begin(), p.rows.end(),
                                           [&](const FitRun* r) { return std::abs(r->derivatives[k]) >= kInforms; }));
      platforms_.push_back(std::move(p));
    }
  }

  void solve(CalibratedRuns& out) {
    declare();
    FitOptions o;
    o.noise = kNoise;
    o.difference = kDifference;
    o.tolerance = options_.start ? 3e-3 : 1e-3;
    if (options_.start) o.keep_derivatives = o.iterations;
    o.progress = [&](int iteration, double) {
      if (options_.progress) options_.progress(gpu_ + ", iteration " + std::to_string(iteration + 1));
    };
    const FitResult result = fit(problem_, o);
    report(result, out);
  }

 private:
  // A pooled value per constant that the GPU's rows inform, one per platform that its own rows inform.
  void declare() {
    for (Platform& p : platforms_) p.variable.assign(parameters_.size(), -1);
    pooled_.assign(parameters_.size(), -1);
    for (std::size_t k = 0; k < parameters_.size(); ++k) {
      const CostParameter& parameter = parameters_[k];
      if (informed(k) < kRowsNeeded) continue;
      const double datasheet =
          std::clamp(value_of(platforms_.front().base.front(), parameter), parameter.lower, parameter.upper);
      pooled_[k] = add(parameter, start_of(nullptr, parameter, datasheet));
      problem_.priors.push_back({pooled_[k], std::nullopt, datasheet, parameter.pool_width});
      for (Platform& p : platforms_) {
        p.variable[k] = pooled_[k];
        if (p.informed[k] < kRowsNeeded) continue;
        p.variable[k] = add(parameter, start_of(&p, parameter, datasheet));
        problem_.priors.push_back({p.variable[k], pooled_[k], 1, parameter.platform_width});
      }
    }
    for (const Platform& p : platforms_) problem_.blocks.push_back(block(p));
  }

  [[nodiscard]] std::int64_t informed(std::size_t k) const {
    std::int64_t rows = 0;
    for (const Platform& p : platforms_) rows += p.informed[k];
    return rows;
  }

  // Work hides behind other work: a constant whose values differ widely is searched for.
  int add(const CostParameter& parameter, double start) {
    problem_.variables.push_back({gpu_ + " " + std::string(parameter.name), start, parameter.lower, parameter.upper,
                                  options_.start == nullptr && parameter.platform_width >= kWide});
    return static_cast<int>(problem_.variables.size()) - 1;
  }

  [[nodiscard]] double start_of(const Platform* p, const CostParameter& parameter, double datasheet) const {
    if (options_.start == nullptr) return datasheet;
    const ClusterSpec& cluster = platforms_.front().rows.front()->prepared.setup.cluster;
    const Costs costs =
        p ? costs_for(*options_.start, cluster, p->source, p->generation) : pooled_costs(*options_.start, cluster);
    return std::clamp(value_of(costs, parameter), parameter.lower, parameter.upper);
  }

  [[nodiscard]] FitBlock block(const Platform& p) const {
    FitBlock b;
    std::vector<const CostParameter*> free;
    std::vector<std::size_t> columns;
    for (std::size_t k = 0; k < parameters_.size(); ++k) {
      if (p.variable[k] < 0) continue;
      b.variables.push_back(p.variable[k]);
      free.push_back(&parameters_[k]);
      columns.push_back(k);
    }
    b.rows = p.rows.size();
    for (const FitRun* r : p.rows)
      for (const std::size_t k : columns) b.derivatives.push_back(r->derivatives[k]);
    b.weights = weights_of(p.rows);
    b.residuals = [&p, free, threads = options_.threads](std::span<const double> values) {
      std::vector<Costs> costs = p.base;
      for (Costs& c : costs)
        for (std::size_t k = 0; k < free.size(); ++k) set_value(c, *free[k], values[k]);
      return log_errors(p.rows, costs, threads);
    };
    return b;
  }

  void report(const FitResult& r, CalibratedRuns& out) const {
    FittedPlatform pooled{gpu_, "", "", 0, {}};
    for (std::size_t b = 0; b < platforms_.size(); ++b) {
      const Platform& p = platforms_[b];
      FittedPlatform own{gpu_, p.source, p.generation, static_cast<std::int64_t>(p.rows.size()), {}};
      PlatformFit told{gpu_, p.source, p.generation, own.rows, mean_error(p.before), mean_error(r.residuals[b]), {}};
      pooled.rows += own.rows;
      for (std::size_t k = 0; k < parameters_.size(); ++k) {
        if (p.variable[k] < 0 || p.variable[k] == pooled_[k]) continue;
        own.constants.push_back(constant(k, p.variable[k], p.informed[k], r));
        if (r.at_bound[static_cast<std::size_t>(p.variable[k])]) told.at_bound.emplace_back(parameters_[k].name);
      }
      out.platforms.push_back(told);
      if (!own.constants.empty()) out.costs.platforms.push_back(own);
    }
    for (std::size_t k = 0; k < parameters_.size(); ++k)
      if (pooled_[k] >= 0) pooled.constants.push_back(constant(k, pooled_[k], informed(k), r));
    if (!pooled.constants.empty()) out.costs.gpus.push_back(pooled);
  }

  [[nodiscard]] FittedConstant constant(std::size_t k, int variable, std::int64_t rows, const FitResult& r) const {
    const auto v = static_cast<std::size_t>(variable);
    return {std::string(parameters_[k].name), r.values[v], r.values[v] * r.standard_errors[v], rows};
  }

  std::string gpu_;
  const FitRunsOptions& options_;
  Parameters parameters_ = cost_parameters();
  std::vector<Platform> platforms_;
  std::vector<int> pooled_;
  FitProblem problem_;
};

// Two rows that say the same (published twice, or once per kind of memory) are one.
PublishedRun identity(PublishedRun r) {
  r.line = 0;
  r.id = r.source_ref = r.notes = r.memory_kind = "";
  r.peak_memory_gib.reset();
  return r;
}

class Reader {
 public:
  explicit Reader(FitRuns& out) : out_(out) {}

  void take(const PublishedRun& run) {
    const auto refuse = [&](const std::string& why) { out_.left_out.push_back({run.id, why}); };
    if (uses_float8(run)) return refuse("float8: constants are fitted to products in 16 bits");
    std::variant<RunSetup, std::string> setup = set_up(run, "model");
    if (const auto* why = std::get_if<std::string>(&setup)) return refuse(*why);
    try {
      auto& s = std::get<RunSetup>(setup);
      const auto seconds = measured_step_time(run, s.plan);
      if (!seconds) return refuse("step_time_s: is empty: there is nothing to fit to");
      if (!(*seconds > 0)) return refuse("step_time_s: is not positive");
      auto& same = seen_[run.source + "|" + run.model];
      const PublishedRun who = identity(run);
      if (std::find(same.begin(), same.end(), who) != same.end()) return refuse("the same run as an earlier row");
      same.push_back(who);
      FitRun row{run, prepare(std::move(s), stops_), *seconds, 0, {}};
      const Costs costs = default_costs(row.prepared.setup.cluster);
      if (row.prepared.setup.memory_kind &&
          predict_peak(row.prepared, costs, MemoryKind::allocated) > row.prepared.setup.cluster.gpu.memory)
        return refuse("peak_memory_gib: the run as described does not fit its device");
      row.prepared.program.init = row.prepared.program.first_step = {};  // only steady steps are priced
      row.prepared.fewer_program.init = row.prepared.fewer_program.first_step = {};
      row.datasheet_error = log_error(row, costs);
      if (!std::isfinite(row.datasheet_error)) return refuse("the datasheet's costs give no step time");
      out_.rows.push_back(std::move(row));
    } catch (const InputError& e) {
      refuse(e.what());
    }
  }

 private:
  FitRuns& out_;
  std::map<std::string, std::vector<PublishedRun>> seen_;
  KnownStops stops_;
};

}  // namespace

FitRuns read_fit_runs(std::istream& in, std::string_view where, const FitRunsOptions& options) {
  RunReader reader(in, where);
  FitRuns out;
  Reader rows(out);
  std::optional<PublishedRun> run;
  RefusedRow refused;
  std::int64_t seen = 0;
  while (reader.next(run, refused)) {
    if (options.progress) options.progress("row " + std::to_string(++seen));
    if (run) rows.take(*run);
    else out.left_out.push_back(refused);
    if (out.rows.size() > kMostRuns)
      throw InputError(std::string(where), "holds more than " + std::to_string(kMostRuns) + " different runs to fit to",
                       "fit to a part of them");
  }
  if (out.rows.empty()) {
    const std::string why =
        out.left_out.empty() ? "" : " (row " + out.left_out.front().id + ": " + out.left_out.front().reason + ")";
    throw InputError(std::string(where), "holds no run to fit to" + why,
                     "give runs with step_time_s or tokens_per_s_per_gpu");
  }
  if (options.progress) options.progress("derivatives of " + std::to_string(out.rows.size()) + " rows");
  differentiate(out.rows, {}, options.threads);
  return out;
}

void differentiate(std::span<FitRun> rows, const FittedCosts& fitted, int threads) {
  const Parameters parameters = cost_parameters();
  for_each_index(rows.size(), threads, [&](std::size_t i) {
    FitRun& row = rows[i];
    const Costs at = costs_for(fitted, row);
    const double here = log_error(row, at);
    row.derivatives.assign(parameters.size(), 0);
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      Costs costs = at;
      set_value(costs, parameters[k], value_of(at, parameters[k]) * std::exp(-kDifference));
      row.derivatives[k] = (here - log_error(row, costs)) / kDifference;
    }
  });
}

CalibratedRuns fit_runs(std::span<const FitRun* const> rows, const std::string& source, const FitRunsOptions& options) {
  if (rows.empty()) throw InputError("fit", "there is no run to fit to", "give at least one");
  std::map<std::string, Rows> by_gpu;
  for (const FitRun* r : rows) by_gpu[r->prepared.setup.cluster.gpu.name].push_back(r);
  CalibratedRuns out;
  out.costs.source = source;
  for (const auto& [gpu, own] : by_gpu) GpuFit(gpu, own, options).solve(out);
  return out;
}

CalibratedRuns fit_runs(std::span<const FitRun> rows, const std::string& source, const FitRunsOptions& options) {
  std::vector<const FitRun*> all;
  for (const FitRun& r : rows) all.push_back(&r);
  return fit_runs(all, source, options);
}

std::int64_t free_constants(const FittedCosts& f) {
  std::size_t n = 0;
  for (const auto* list : {&f.gpus, &f.platforms})
    for (const FittedPlatform& p : *list) n += p.constants.size();
  return static_cast<std::int64_t>(n);
}

Costs costs_for(const FittedCosts& f, const FitRun& r) {
  return costs_for(f, r.prepared.setup.cluster, r.run.source, r.run.software_generation);
}

PriceList prices_of(FittedCosts fitted) {
  const std::int64_t count = free_constants(fitted);
  return {[f = std::move(fitted)](const RunSetup& s) {
            for (const FittedPlatform& p : f.platforms) {
              PublishedRun key;
              key.source = p.source, key.gpu = p.gpu, key.software_generation = p.software_generation;
              if (platform_of(key) == s.platform) return costs_for(f, s.cluster, p.source, p.software_generation);
            }
            return costs_for(f, s.cluster);
          },
          count};
}

}  // namespace fsdp
