#include "simulator/published/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "models/graph/experts.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "simulator/analysis/breakdown.h"
#include "simulator/published/reading/cells.h"
#include "simulator/published/software/run_software.h"

namespace fsdp {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

std::optional<double> error_of(const auto& predicted, const auto& measured) {
  if (!predicted || !measured) return std::nullopt;
  return static_cast<double>(*predicted) / static_cast<double>(*measured) - 1;
}

// What is predicted for a run, whatever was measured: equal runs are predicted once.
struct Forecast {
  std::string refusal;  // not empty: there is no prediction
  ShardingPlan step;    // mesh, micro-batches and sequence length alone: what measured_step_time asks for
  double step_time_s = 0;
  std::optional<MemoryKind> kind;
  std::optional<std::int64_t> peak_bytes, total_bytes, needed_bytes;
  std::int64_t device_bytes = 0;
  std::string implementation;
  bool experts = false;
  bool fabric_assumed = false;
  std::optional<double> exposed_share;
  std::vector<std::string> assumptions;
};

bool ran_out_of_memory(const PublishedRun& run) { return lower_case(run.failed) == "oom"; }

Forecast forecast(const PublishedRun& run, const PriceList& prices, const AccuracyOptions& options, KnownStops& stops) {
  Forecast f;
  std::variant<RunSetup, std::string> setup = set_up(run, "model");
  if (const auto* const reason = std::get_if<std::string>(&setup)) return f.refusal = *reason, f;
  auto& s = std::get<RunSetup>(setup);
  f.step.mesh = s.plan.mesh;
  f.step.micro_batches = s.plan.micro_batches;
  f.step.seq_len = s.plan.seq_len;
  f.assumptions = s.assumptions;
  f.kind = s.memory_kind;
  const Bytes device = s.cluster.gpu.memory, beside = s.cluster.fixed_memory;
  f.device_bytes = s.cluster.gpu.usable_memory.count();
  f.implementation = s.implementation->name;
  f.experts = has_experts(s.model);
  f.fabric_assumed = s.cluster.gpus > s.cluster.domain() && !run.fabric_gbps_per_gpu;
  const Costs costs = prices.costs_of(s);
  const PreparedRun prepared = prepare(std::move(s), stops);
  f.step_time_s = predict_step_time(prepared, costs).count();
  if (options.every_peak) {
    const Breakdown where = predict_breakdown(prepared, costs);
    double all = 0;
    for (const BreakdownPart& part : kBreakdownParts) all += (where.*part.member).count();
    if (all > 0) f.exposed_share = exposed_communication(where).count() / all;
  }
  if (!options.memory) return f;
  if (options.every_peak || ran_out_of_memory(run) || f.kind == MemoryKind::reserved)
    f.total_bytes = (predict_peak(prepared, costs, MemoryKind::reserved) + beside).count();
  if (options.every_peak) f.needed_bytes = (predict_peak(prepared, costs, MemoryKind::allocated) + beside).count();
  if (!f.kind) return f;
  const Bytes peak = f.total_bytes && *f.kind == MemoryKind::reserved ? Bytes(*f.total_bytes) - beside
                                                                      : predict_peak(prepared, costs, *f.kind);
  f.peak_bytes = peak.count();
  if (peak > device && predict_peak(prepared, costs, MemoryKind::allocated) > device)
    f.refusal = fmt::format(
        "peak_memory_gib: the run as described needs {} of a device of {}: it must have done something that its row "
        "does not say",
        human(peak), human(device));
  return f;
}

// Forecasts by what decides them: every cell but the names and what was measured.
class Forecasts {
 public:
  Forecasts(const PriceList& prices, const AccuracyOptions& options) : prices_(prices), options_(options) {}

  const Forecast& of(const PublishedRun& run) {
    std::string key = key_of(run);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    if (known_.size() >= kMost) known_.clear(), stops_.clear();
    Forecast f;
    try {
      f = forecast(run, prices_, options_, stops_);
    } catch (const InputError& e) {
      f.refusal = e.what();
    } catch (const InternalError& e) {
      f.refusal = fmt::format("cannot be simulated: {}", e.what());
    }
    return known_.emplace(std::move(key), std::move(f)).first->second;
  }

 private:
  static constexpr std::size_t kMost = 10'000;

  static std::string key_of(const PublishedRun& r) {
    std::string key;
    for (const std::string* text : {&r.source,
                                    &r.framework,
                                    &r.model,
                                    &r.gpu,
                                    &r.strategy,
                                    &r.wrap,
                                    &r.reshard,
                                    &r.backward_prefetch,
                                    &r.grad_sync,
                                    &r.param_dtype,
                                    &r.reduce_dtype,
                                    &r.precision,
                                    &r.optimizer,
                                    &r.activation_checkpointing,
                                    &r.cpu_offload,
                                    &r.compile,
                                    &r.float8,
                                    &r.attention,
                                    &r.loss,
                                    &r.expandable_segments,
                                    &r.memory_kind,
                                    &r.software,
                                    &r.software_generation,
                                    &r.notes,
                                    &r.master_dtype,
                                    &r.forward_prefetch,
                                    &r.activation_offload,
                                    &r.async_tp,
                                    &r.lora,
                                    &r.lora_targets,
                                    &r.failed})
      key += *text + '\n';
    for (const auto& n : {r.params,       r.layers,
                          r.hidden,       r.heads,
                          r.kv_heads,     r.ffn,
                          r.vocab,        r.seq_len,
                          r.gpus,         r.gpus_per_node,
                          r.dp_shard,     r.dp_replicate,
                          r.micro_batch,  r.grad_accum,
                          r.global_batch, r.head_dim,
                          r.experts,      r.experts_per_token,
                          r.moe_ffn,      r.lora_rank,
                          r.tp,           r.cp,
                          r.pp,           r.ep})
      key += fmt::format("{},", n.value_or(-1));
    return key + fmt::format("{},{},{},{}", r.fabric_gbps_per_gpu.value_or(-1), r.clip_norm.value_or(-1),
                             r.peak_memory_gib.has_value(), month_of(r).value_or(-1));
  }

  const PriceList& prices_;
  const AccuracyOptions& options_;
  std::map<std::string, Forecast> known_;
  KnownStops stops_;
};

AccuracyRow row_of(const PublishedRun& run, const Forecast& f) {
  AccuracyRow row;
  row.id = run.id, row.source = run.source, row.trust = run.trust, row.gpu = run.gpu, row.model = run.model;
  row.gpus = f.step.ranks();
  row.float8 = uses_float8(run);
  row.measured_step_time_s = measured_step_time(run, f.step);
  if (run.peak_memory_gib) row.measured_peak_bytes = std::llround(*run.peak_memory_gib * kGib);
  if (!row.measured_step_time_s && !row.measured_peak_bytes)
    throw InputError("step_time_s", "and peak_memory_gib are both empty: there is nothing to compare with");
  row.assumptions = f.assumptions;
  row.predicted_step_time_s = f.step_time_s;
  row.predicted_peak_bytes = f.peak_bytes;
  row.predicted_total_bytes = f.total_bytes;
  row.predicted_needed_bytes = f.needed_bytes;
  row.device_bytes = f.device_bytes;
  row.implementation = f.implementation;
  row.experts = f.experts;
  row.fabric_assumed = f.fabric_assumed;
  row.exposed_share = f.exposed_share;
  if (f.kind) row.memory_kind = *f.kind;
  return row;
}

FailedRun failed_run(const PublishedRun& run, const Forecast& f) {
  FailedRun out{run.id, run.source, run.trust, run.gpu, run.model, f.implementation, run.gpus.value_or(0)};
  if (f.refusal.empty()) out.predicted_total_bytes = f.total_bytes, out.predicted_needed_bytes = f.needed_bytes;
  out.device_bytes = f.device_bytes;
  out.reason = f.refusal;
  return out;
}

// The run with its mesh and batches filled in.
PublishedRun understood(PublishedRun run, const ShardingPlan& step) {
  run.gpus = step.ranks();
  run.dp_shard = step.shard(), run.dp_replicate = step.replicate();
  run.micro_batch = step.micro_batches.front();
  run.grad_accum = static_cast<std::int64_t>(step.micro_batches.size());
  run.seq_len = step.seq_len;
  run.global_batch = step.tokens_per_step() / step.seq_len;
  return run;
}

}  // namespace

// The two columns say the same thing; a run whose cells differ by more than rounding is not believed.
std::optional<double> measured_step_time(const PublishedRun& run, const ShardingPlan& plan) {
  const double tokens = static_cast<double>(plan.tokens_per_step()) / static_cast<double>(plan.ranks());
  if (!run.tokens_per_s_per_gpu) return run.step_time_s;
  if (!run.step_time_s) return tokens / *run.tokens_per_s_per_gpu;
  const double ratio = tokens / *run.step_time_s / *run.tokens_per_s_per_gpu;
  if (ratio < 0.9 || ratio > 1.1)
    throw InputError("step_time_s", "and tokens_per_s_per_gpu contradict each other: " +
                                        std::to_string(tokens / *run.step_time_s) + " tokens/s follow from the former");
  return run.step_time_s;
}

std::optional<double> AccuracyRow::step_time_error() const {
  return error_of(predicted_step_time_s, measured_step_time_s);
}
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

AccuracyReport joined(AccuracyReport a, AccuracyReport b) {
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  append(a.rows, b.rows), append(a.skipped, b.skipped), append(a.failed, b.failed), append(a.runs, b.runs);
  append(a.ignored_columns, b.ignored_columns);
  const AccuracySummary before = std::move(a.summary);
  a.summary = summarize(a.rows);
  a.summary.free_constants = before.free_constants;
  a.summary.repeated_ids = before.repeated_ids;
  append(a.summary.repeated_ids, b.summary.repeated_ids);
  return a;
}

AccuracyReport accuracy_of(std::istream& in, std::string_view where, const PriceList& prices,
                           const AccuracyOptions& options) {
  RunReader reader(in, where);
  AccuracyReport out;
  std::optional<PublishedRun> run;
  RefusedRow refused;
  std::set<std::string> ids, repeated;
  std::int64_t seen = 0;
  Forecasts forecasts(prices, options);
  while (reader.next(run, refused)) {
    if (options.progress) options.progress(++seen);
    if (run) {
      refused.id = run->id;
      if (!ids.insert(run->id).second && repeated.size() < 100) repeated.insert(run->id);
      if (!says_no(run->failed) && !ran_out_of_memory(*run)) {
        out.skipped.push_back(
            {run->id, "failed: the run failed, and not for memory (\"" + printable(run->failed) + "\")"});
        continue;
      }
      const Forecast& f = forecasts.of(*run);
      refused.reason = f.refusal;
      if (ran_out_of_memory(*run)) {
        out.failed.push_back(failed_run(*run, f));
        if (!f.refusal.empty()) out.skipped.push_back(refused);
        continue;
      }
      if (f.refusal.empty()) {
        try {
          out.rows.push_back(row_of(*run, f));
          if (options.keep_runs) out.runs.push_back(understood(std::move(*run), f.step));
          continue;
        } catch (const InputError& e) {
          refused.reason = e.what();
        }
      }
    }
    out.skipped.push_back(refused);
  }
  out.ignored_columns = reader.ignored_columns();
  out.summary = summarize(out.rows);
  out.summary.free_constants = prices.free_constants;
  out.summary.repeated_ids.assign(repeated.begin(), repeated.end());
  return out;
}

}  // namespace fsdp
