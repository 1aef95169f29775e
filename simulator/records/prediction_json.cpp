// "fsdp-plan/prediction/1": sizes are integers in bytes, times doubles in seconds, and every key says so.
#include <array>

#include "models/input/error.h"
#include "simulator/records/json_parts.h"

namespace fsdp {

using namespace records;

namespace {

constexpr std::string_view kSchema = "fsdp-plan/prediction/1";

constexpr std::array<Verdict, 3> kVerdicts = {Verdict::fits, Verdict::tight, Verdict::does_not_fit};
using Kinds = std::array<std::int64_t, kBufferKinds>;

Json json_of(const Kinds& kinds) {
  Json j;
  for (int k = 0; k < kBufferKinds; ++k)
    j[std::string(name(static_cast<BufferKind>(k)))] = kinds[static_cast<std::size_t>(k)];
  return j;
}

Json json_of(const ProgramMemory& m) {
  return {{"peak_bytes", m.peak},
          {"peak_step", m.peak_step},
          {"peak_op", m.peak_op},
          {"at_peak_bytes", json_of(m.at_peak)},
          {"init", records::json_of(m.init)},
          {"first_step", records::json_of(m.first_step)},
          {"steady_step", records::json_of(m.steady_step)}};
}

Json headline(const Prediction& p) {
  return {{"schema", kSchema},
          {"provenance", records::json_of(p.provenance)},
          {"ranks", p.ranks},
          {"roles", p.roles},
          {"verdict", name(p.verdict)},
          {"step_time_s", p.step_time.count()},
          {"tokens_per_step", p.tokens_per_step},
          {"tokens_per_s", p.tokens_per_s},
          {"tokens_per_s_per_gpu", p.tokens_per_s / static_cast<double>(p.ranks)},
          {"mfu", p.mfu},
          {"hfu", p.hfu},
          {"exposed_communication_s", p.exposed_communication.count()},
          {"peak_allocated_bytes", p.peak_allocated.count()},
          {"peak_active_bytes", p.peak_active.count()},
          {"peak_reserved_bytes", p.peak_reserved_estimate.count()},
          {"alloc_retries", p.alloc_retries},
          {"fixed_bytes", p.fixed.count()},
          {"peak_total_bytes", p.peak_total.count()},
          {"memory_limit_bytes", p.memory_limit.count()}};
}

Json json_of(const StepTimeDistribution& d) {
  Json j = {{"mean_s", d.mean.count()},
            {"p50_s", d.p50.count()},
            {"p95_s", d.p95.count()},
            {"p99_s", d.p99.count()},
            {"samples", d.samples}};
  if (d.seed) j["seed"] = *d.seed;
  return j;
}

StepTimeDistribution distribution(JsonObject o) {
  StepTimeDistribution d{seconds(o, "mean_s"), seconds(o, "p50_s"), seconds(o, "p95_s"), seconds(o, "p99_s"), {}, 0};
  d.samples = o.integer("samples", 0, kMaxInteger);
  if (const auto seed = o.optional_integer("seed", 0, std::numeric_limits<std::int64_t>::max()))
    d.seed = static_cast<std::uint64_t>(*seed);
  o.finish();
  return d;
}

Kinds kinds(JsonObject o) {
  Kinds k{};
  for (int i = 0; i < kBufferKinds; ++i)
    k[static_cast<std::size_t>(i)] = o.integer(name(static_cast<BufferKind>(i)), 0, kMaxBytes);
  o.finish();
  return k;
}

ProgramMemory program_memory(JsonObject o) {
  ProgramMemory m;
  m.peak = o.integer("peak_bytes", 0, kMaxBytes);
  m.peak_step = static_cast<int>(o.integer("peak_step", 0, 2));
  m.peak_op = static_cast<std::int32_t>(o.integer("peak_op", -1, std::numeric_limits<std::int32_t>::max()));
  m.at_peak = kinds(o.object("at_peak_bytes"));
  m.init = memory_timeline(o.object("init"));
  m.first_step = memory_timeline(o.object("first_step"));
  m.steady_step = memory_timeline(o.object("steady_step"));
  o.finish();
  return m;
}

Verdict verdict(JsonObject& root) {
  const std::string text = root.text("verdict");
  for (const Verdict v : kVerdicts)
    if (name(v) == text) return v;
  root.refuse("verdict", "'" + text + "' is no verdict", "predict again");
}

void read_headline(JsonObject& root, Prediction& p) {
  p.provenance = provenance(root.object("provenance"));
  p.ranks = root.integer("ranks", 1, kMaxRanks);
  p.roles = root.integer("roles", 1, kMaxRanks);
  p.verdict = verdict(root);
  p.step_time = seconds(root, "step_time_s");
  p.tokens_per_step = root.integer("tokens_per_step", 0, kMaxInteger);
  p.tokens_per_s = root.number("tokens_per_s", 0, 1e18);
  p.mfu = root.number("mfu", 0, 1e9);
  p.hfu = root.number("hfu", 0, 1e9);
  p.exposed_communication = seconds(root, "exposed_communication_s");
  p.peak_allocated = bytes(root, "peak_allocated_bytes");
  p.peak_active = bytes(root, "peak_active_bytes");
  p.peak_reserved_estimate = bytes(root, "peak_reserved_bytes");
  p.alloc_retries = root.integer("alloc_retries", 0, kMaxInteger);
  p.fixed = bytes(root, "fixed_bytes");
  p.peak_total = bytes(root, "peak_total_bytes");
  p.memory_limit = bytes(root, "memory_limit_bytes");
  root.ignore("tokens_per_s_per_gpu");  // follow from the others
}

// Every rank has a role that the document describes.
void read_roles(JsonObject& root, Prediction& p) {
  for (const JsonValue& role : root.array("other_roles")) p.other_roles.push_back(program_memory(role.object()));
  for (const std::int64_t r : root.integers("role_of_rank", 0, static_cast<std::int64_t>(p.other_roles.size())))
    p.role_of_rank.push_back(static_cast<std::int32_t>(r));
  if (!p.role_of_rank.empty() && static_cast<std::int64_t>(p.role_of_rank.size()) != p.ranks)
    root.refuse("role_of_rank", "expected one role for each of " + std::to_string(p.ranks) + " ranks", "predict again");
}

}  // namespace

std::string to_json_text(const Prediction& p) {
  Json j = headline(p);
  if (p.step_time_distribution) j["step_time_distribution"] = json_of(*p.step_time_distribution);
  j["where"] = records::json_of(p.where);
  j["peak_made_of_bytes"] = json_of(p.peak_made_of);
  j["peak_at"] = p.peak_at;
  j["critical_path"] = p.critical_path;
  j["by_action"] = records::json_of(p.by_action);
  j["by_unit"] = records::json_of(p.by_unit);
  j["order"] = p.order;
  j["timeline"] = records::json_of(p.timeline);
  j["memory"] = json_of(p.memory);
  j["role_of_rank"] = p.role_of_rank;
  j["other_roles"] = Json::array();
  for (const ProgramMemory& role : p.other_roles) j["other_roles"].push_back(json_of(role));
  return j.dump() + "\n";
}

Prediction parse_prediction(std::string_view json_text, std::string_view where) {
  const JsonDocument document = parse_document(json_text, where, kSchema);
  JsonObject root = document.root();
  Prediction p;
  read_headline(root, p);
  if (auto d = root.optional_object("step_time_distribution")) p.step_time_distribution = distribution(std::move(*d));
  p.where = breakdown(root.object("where"));
  p.peak_made_of = kinds(root.object("peak_made_of_bytes"));
  p.peak_at = root.text("peak_at");
  p.critical_path = root.texts("critical_path");
  p.by_action = action_times(root.array("by_action"));
  if (root.has("by_unit")) p.by_unit = unit_times(root.array("by_unit"));  // not in files of earlier versions
  p.order = root.texts("order");
  p.timeline = timeline(root.object("timeline"));
  p.memory = program_memory(root.object("memory"));
  read_roles(root, p);
  root.finish();
  return p;
}

}  // namespace fsdp
