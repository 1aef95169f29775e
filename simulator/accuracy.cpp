#include "simulator/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "models/error.h"

namespace fsdp {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

std::optional<double> error_of(const auto& predicted, const auto& measured) {
  if (!predicted || !measured) return std::nullopt;
  return static_cast<double>(*predicted) / static_cast<double>(*measured) - 1;
}

AccuracyRow predict_row(const PublishedRun& run, RunSetup setup, const PriceList& prices, const AccuracyOptions& options) {
  AccuracyRow row;
  row.id = run.id, row.source = run.source, row.trust = run.trust, row.gpu = run.gpu, row.model = run.model;
  row.gpus = setup.plan.ranks();
  row.measured_step_time_s = measured_step_time(run, setup.plan);
  if (run.peak_memory_gib) row.measured_peak_bytes = std::llround(*run.peak_memory_gib * kGib);
  if (!row.measured_step_time_s && !row.measured_peak_bytes) throw InputError("step_time_s", "and peak_memory_gib are both empty: there is nothing to compare with");
  row.assumptions = setup.assumptions;
  const std::optional<MemoryKind> kind = setup.memory_kind;
  const Costs costs = prices.costs_of(setup);
  const PreparedRun prepared = prepare(std::move(setup));
  row.predicted_step_time_s = predict_step_time(prepared, costs).count();
  if (kind) row.memory_kind = *kind;
  if (!kind || !options.memory) return row;
  row.predicted_peak_bytes = predict_peak(prepared, costs, *kind).count();
  const Bytes device = prepared.setup.cluster.gpu.memory;
  if (Bytes(*row.predicted_peak_bytes) > device && predict_peak(prepared, costs, MemoryKind::allocated) > device)
    throw InputError("peak_memory_gib", fmt::format("the run as described needs {} of a device of {}: it must have done something that its row does not say",
                                                    human(Bytes(*row.predicted_peak_bytes)), human(device)));
  return row;
}

}  // namespace

// The two columns say the same thing; a run whose cells differ by more than rounding is not believed.
std::optional<double> measured_step_time(const PublishedRun& run, const ShardingPlan& plan) {
  const double tokens = static_cast<double>(plan.tokens_per_step()) / static_cast<double>(plan.ranks());
  if (!run.tokens_per_s_per_gpu) return run.step_time_s;
  if (!run.step_time_s) return tokens / *run.tokens_per_s_per_gpu;
  const double ratio = tokens / *run.step_time_s / *run.tokens_per_s_per_gpu;
  if (ratio < 0.9 || ratio > 1.1)
    throw InputError("step_time_s", "and tokens_per_s_per_gpu contradict each other: " + std::to_string(tokens / *run.step_time_s) + " tokens/s follow from the former");
  return run.step_time_s;
}

std::optional<double> AccuracyRow::step_time_error() const { return error_of(predicted_step_time_s, measured_step_time_s); }
std::optional<double> AccuracyRow::peak_error() const { return error_of(predicted_peak_bytes, measured_peak_bytes); }

PriceList datasheet_prices() {
  return {[](const RunSetup& s) { return default_costs(s.cluster); }, 0};
}

PriceList prices_of(Costs costs) {
  return {[costs = std::move(costs)](const RunSetup& s) {
            return costs.platform.empty() || costs.platform == s.cluster.gpu.name ? costs : default_costs(s.cluster);
          },
          0};
}

AccuracyReport accuracy_of(std::istream& in, std::string_view where, const PriceList& prices, const AccuracyOptions& options) {
  RunReader reader(in, where);
  AccuracyReport out;
  std::optional<PublishedRun> run;
  RefusedRow refused;
  std::set<std::string> ids, repeated;
  std::int64_t seen = 0;
  while (reader.next(run, refused)) {
    if (options.progress) options.progress(++seen);
    if (run) {
      refused.id = run->id;
      if (!ids.insert(run->id).second && repeated.size() < 100) repeated.insert(run->id);
      std::variant<RunSetup, std::string> setup = set_up(*run, "model");
      if (auto* const s = std::get_if<RunSetup>(&setup)) {
        try {
          out.rows.push_back(predict_row(*run, std::move(*s), prices, options));
          continue;
        } catch (const InputError& e) {
          refused.reason = e.what();
        }
      } else {
        refused.reason = std::get<std::string>(setup);
      }
    }
    out.skipped.push_back(refused);
  }
  out.summary = summarize(out.rows);
  out.summary.free_constants = prices.free_constants;
  out.summary.repeated_ids.assign(repeated.begin(), repeated.end());
  return out;
}

}  // namespace fsdp
