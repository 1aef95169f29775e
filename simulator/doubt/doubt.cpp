#include "simulator/doubt/doubt.h"

#include <algorithm>
#include <cmath>

#include "models/input/names.h"

namespace fsdp {
namespace {

constexpr double kTenthOfNormal = 1.2815515655446004;  // standard deviations below which 90 % of a normal lie

// Printed by `fsdp-plan accuracy tests/accuracy/published_runs.csv tests/accuracy/published_runs_2.csv --intervals`.
constexpr DoubtTable kTable = {{{{-0.098, -0.015, 0.101},
                                 {-0.151, 0.073, 0.677},
                                 {-0.115, -0.004, 0.345},
                                 {-0.047, -0.002, 0.062},
                                 {-0.041, 0.012, 0.062}}},
                               {{{-0.012, 0.010, 0.047}, {-0.003, 0.007, 0.029}}}};

constexpr std::string_view cause_text(DoubtCause cause) {
  switch (cause) {
    case DoubtCause::software: return "no published run of trust A stands for this software";
    case DoubtCause::waits: return "the step waits for communication";
    case DoubtCause::many_gpus: return "more than 128 GPUs";
    case DoubtCause::limit: return "near the memory limit";
    case DoubtCause::ordinary: return "as published runs deviate";
  }
  return {};
}
static_assert(names_all<DoubtCause>(cause_text, kDoubtCauses));

LikelyRange range(double predicted, const DoubtQuantiles& q) {
  return {predicted * std::exp(q.low), predicted * std::exp(q.high)};
}

}  // namespace

std::string_view name(DoubtCause cause) { return cause_text(cause); }
const DoubtTable& doubt_table() { return kTable; }

bool is_known(Software s) {
  return !s.experts && (s.implementation.starts_with("torchtitan") || s.implementation.starts_with("foundry"));
}

DoubtCause cause_of(const DoubtFacts& f) {
  if (!is_known(f.software)) return DoubtCause::software;
  if (f.exposed_share > kWaits) return DoubtCause::waits;
  if (f.ranks > kManyGpus) return DoubtCause::many_gpus;
  return f.device_share > kNearLimit ? DoubtCause::limit : DoubtCause::ordinary;
}

double chance_above(const DoubtQuantiles& q, double x) {
  const double end = x < q.median ? q.median - q.low : q.high - q.median;
  const double deviations = (x - q.median) / std::max(end, 1e-6) * kTenthOfNormal;
  return 0.5 * std::erfc(deviations / std::sqrt(2.0));
}

double chance_of_out_of_memory(const DoubtTable& table, Software software, double needed_bytes, double usable_bytes) {
  if (needed_bytes <= 0 || usable_bytes <= 0) return 0;
  return chance_above(table.peak[is_known(software) ? 0 : 1], std::log(usable_bytes / needed_bytes));
}

Doubt doubt_of(const DoubtTable& table, const DoubtFacts& f, double step_s, double peak_bytes, double needed_bytes,
               double usable_bytes) {
  const DoubtCause first = cause_of(f);
  const DoubtQuantiles& peak = table.peak[is_known(f.software) ? 0 : 1];
  Doubt d;
  d.step_time_s = range(step_s, table.step_time[static_cast<std::size_t>(first)]);
  d.peak_bytes = range(peak_bytes, peak);
  d.peak_bytes = {std::round(d.peak_bytes.low), std::round(d.peak_bytes.high)};
  d.usable_bytes = usable_bytes;
  d.out_of_memory = chance_of_out_of_memory(table, f.software, needed_bytes, usable_bytes);
  d.causes.emplace_back(name(first));
  return d;
}

}  // namespace fsdp
