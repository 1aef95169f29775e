// "fsdp-plan/prediction/1": sizes are integers in bytes, times doubles in seconds, and every key says so.
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "simulator/records/prediction.h"
#include "simulator/records/record_fields.h"

namespace fsdp {

namespace {

constexpr std::string_view kPredictionSchema = "fsdp-plan/prediction/1", kPredictAgain = "predict again";

// One key per kind of buffer.
template <class Io>
void buffer_kinds(Io& io, std::string_view key, auto& bytes) {
  io.group(key, [&](auto& kinds) {
    for (std::size_t k = 0; k < bytes.size(); ++k) kinds(name(static_cast<BufferKind>(k)), bytes[k], kBytesRange);
  });
}

}  // namespace

// How FieldWriter and FieldReader treat a verdict.
static std::string text(Verdict v) { return std::string(name(v)); }
static bool from_text(std::string_view text, Verdict& verdict) {
  const auto found = find_name<Verdict>(name, kVerdicts, text);
  verdict = found.value_or(verdict);
  return found.has_value();
}
static std::string_view noun(Verdict) { return "verdict"; }

template <class Io>
void fields(Io& io, RecordOrConst<StepTimeDistribution> auto& d) {
  io("mean_s", d.mean);
  io("p50_s", d.p50);
  io("p95_s", d.p95);
  io("p99_s", d.p99);
  io("samples", d.samples, kCountRange);
  io("seed", d.seed, kCountRange);
}

constexpr Range<double> kBytesAsNumber{0, 1e18};

template <class Io>
void fields(Io& io, RecordOrConst<HostMemory> auto& m) {
  io.whole("needed_bytes", m.needed_bytes, kBytesAsNumber);
  io.whole("available_bytes", m.available_bytes, kBytesAsNumber);
}

template <class Io>
void fields(Io& io, RecordOrConst<Doubt> auto& d) {
  io("step_time_low_s", d.step_time_s.low, Range<double>{0, 1e18});
  io("step_time_high_s", d.step_time_s.high, Range<double>{0, 1e18});
  io.whole("peak_low_bytes", d.peak_bytes.low, kBytesAsNumber);
  io.whole("peak_high_bytes", d.peak_bytes.high, kBytesAsNumber);
  io.added_whole("usable_bytes", d.usable_bytes, kBytesAsNumber);
  io("out_of_memory", d.out_of_memory, Range<double>{0, 1});
  io("causes", d.causes);
}

template <class Io>
void fields(Io& io, RecordOrConst<RetryStall> auto& r) {
  io("per_rank", r.per_rank, Range<double>{0, 1e12});
  io("per_step", r.per_step, Range<double>{0, 1e12});
  io("low_s", r.low);
  io("likely_s", r.likely);
  io("high_s", r.high);
}

template <class Io>
void fields(Io& io, RecordOrConst<TrainingCost> auto& c) {
  constexpr Range<double> kAmount{0, 1e300};
  io("price_per_gpu_hour", c.price.per_gpu_hour, kAmount);
  io("currency", c.price.currency);
  io("gpus", c.gpus, Range<std::int64_t>{1, kMaxRanks});
  io("per_day", c.per_day, kAmount);
  io("per_1e9_tokens", c.per_billion_tokens, kAmount);
}

template <class Io>
void fields(Io& io, RecordOrConst<HeldMemory> auto& m) {
  io("init", m.init);
  io("first_step", m.first_step);
  io("steady_step", m.steady_step);
}

template <class Io>
void fields(Io& io, RecordOrConst<ProgramMemory> auto& m) {
  io("peak_bytes", m.peak, kBytesRange);
  io("peak_step", m.peak_step, Range<std::int64_t>{0, 2});
  io.or_none("peak_op", m.peak_op, -1, Range<std::int64_t>{-1, std::numeric_limits<std::int32_t>::max()});
  buffer_kinds(io, "at_peak_bytes", m.at_peak);
  io("init", m.init);
  io("first_step", m.first_step);
  io("steady_step", m.steady_step);
  io("most", m.most);
}

template <class Io>
void fields(Io& io, RecordOrConst<Prediction> auto& p) {
  io("provenance", p.provenance);
  io("ranks", p.ranks, Range<std::int64_t>{1, kMaxRanks});
  io("roles", p.roles, Range<std::int64_t>{1, kMaxRanks});
  io("verdict", p.verdict);
  io("step_time_s", p.step_time);
  io("tokens_per_step", p.tokens_per_step, kCountRange);
  io("tokens_per_s", p.tokens_per_s, Range<double>{0, 1e18});
  io.derived("tokens_per_s_per_gpu", p.tokens_per_s / static_cast<double>(p.ranks));
  io("mfu", p.mfu, Range<double>{0, 1e9});
  io("hfu", p.hfu, Range<double>{0, 1e9});
  io("exposed_communication_s", p.exposed_communication);
  io("peak_allocated_bytes", p.peak_allocated);
  io("peak_active_bytes", p.peak_active);
  io("peak_reserved_bytes", p.peak_reserved_estimate);
  io("alloc_retries", p.alloc_retries, kCountRange);
  io("fixed_bytes", p.fixed);
  io("peak_total_bytes", p.peak_total);
  io("memory_limit_bytes", p.memory_limit);
  io("step_time_distribution", p.step_time_distribution);
  io("cost", p.cost);
  io("likely_80_percent", p.doubt);
  io("node_host_memory", p.host);
  io("retry_stall", p.retry_stall);
  io("where", p.where);
  buffer_kinds(io, "peak_made_of_bytes", p.peak_made_of);
  io("peak_at", p.peak_at);
  io("critical_path", p.critical_path);
  io("by_action", p.by_action);
  io.added("by_unit", p.by_unit);
  io("order", p.order);
  io.if_any("issued", p.issued, Range<std::int64_t>{-1, INT32_MAX});
  io("timeline", p.timeline);
  io("memory", p.memory);
  io("role_of_rank", p.role_of_rank, Range<std::int64_t>{0, kMaxRanks});
  io("other_roles", p.other_roles);
}

namespace {

// Every rank has a role that the document describes.
void check_roles(JsonObject& root, const Prediction& p) {
  for (const std::int32_t role : p.role_of_rank)
    if (role > static_cast<std::int64_t>(p.other_roles.size()))
      root.refuse("role_of_rank",
                  "names role " + std::to_string(role) + ", but other_roles ends with role " +
                      std::to_string(p.other_roles.size()),
                  std::string(kPredictAgain));
  if (!p.role_of_rank.empty() && static_cast<std::int64_t>(p.role_of_rank.size()) != p.ranks)
    root.refuse("role_of_rank", "expected one role for each of " + std::to_string(p.ranks) + " ranks",
                std::string(kPredictAgain));
}

// Each names an operation of the order, and each operation of memory has one.
void check_issued(JsonObject& root, const Prediction& p) {
  if (p.issued.empty()) return;
  const bool out_of_order = std::any_of(p.issued.begin(), p.issued.end(),
                                        [&](std::int32_t i) { return i >= static_cast<std::int64_t>(p.order.size()); });
  if (out_of_order || p.issued.size() != p.memory.steady_step.points.size())
    root.refuse("issued", "does not fit the order and the memory of the steady step", std::string(kPredictAgain));
}

}  // namespace

std::string to_json_text(const Prediction& p) {
  FieldWriter<nlohmann::ordered_json> writer;
  writer("schema", std::string(kPredictionSchema));
  fields(writer, p);
  return writer.take().dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Prediction parse_prediction(std::string_view json_text, std::string_view where) {
  const JsonDocument document = parse_document(json_text, where, kPredictionSchema);
  JsonObject root = document.root();
  Prediction p;
  FieldReader reader(root, kPredictAgain);
  fields(reader, p);
  check_roles(root, p);
  check_issued(root, p);
  root.finish();
  return p;
}

}  // namespace fsdp
