// "fsdp-plan/measurement/1".
#include "simulator/prediction_records.h"

namespace fsdp {

using namespace records;

namespace {

constexpr std::string_view kSchema = "fsdp-plan/measurement/1";

Json json_of_rank(const RankMeasurement& r) {
  return {
      {"rank", r.rank},
      {"peak_allocated_bytes", r.peak_allocated_bytes},
      {"undeclared_bytes", r.undeclared_bytes},
      {"wire_bytes", r.wire_bytes},
      {"order", r.order},
      {"timeline", json_of(r.timeline)},
      {"memory", {{"init", json_of(r.init)}, {"first_step", json_of(r.first_step)}, {"steady_step", json_of(r.steady_step)}}}};
}

RankMeasurement rank_of(JsonObject o) {
  RankMeasurement r;
  r.rank = o.integer("rank", 0, kMaxRanks);
  r.peak_allocated_bytes = o.integer("peak_allocated_bytes", 0, kMaxBytes);
  r.undeclared_bytes = o.integer("undeclared_bytes", 0, kMaxBytes);
  r.wire_bytes = o.integer("wire_bytes", 0, kMaxBytes);
  r.order = o.texts("order");
  r.timeline = timeline(o.object("timeline"));
  JsonObject memory = o.object("memory");
  r.init = memory_timeline(memory.object("init"));
  r.first_step = memory_timeline(memory.object("first_step"));
  r.steady_step = memory_timeline(memory.object("steady_step"));
  memory.finish();
  o.finish();
  return r;
}

}  // namespace

std::string to_json_text(const Measurement& m) {
  Json ranks = Json::array();
  for (const RankMeasurement& r : m.ranks) ranks.push_back(json_of_rank(r));
  const Json j = {{"schema", kSchema},
                  {"provenance", json_of(m.provenance)},
                  {"backend", m.backend},
                  {"environment", m.environment},
                  {"median_step_s", m.median_step_seconds},
                  {"noise", m.noise},
                  {"steps_s", m.step_seconds},
                  {"losses", m.losses},
                  {"process_high_water_bytes", m.process_high_water_bytes},
                  {"by_action", json_of(m.by_action)},
                  {"ranks", ranks}};
  return j.dump() + "\n";
}

Measurement parse_measurement(std::string_view json_text, std::string_view where) {
  const JsonDocument document = parse_document(json_text, where, kSchema);
  JsonObject root = document.root();
  Measurement m;
  m.provenance = provenance(root.object("provenance"));
  m.backend = root.text("backend");
  m.environment = root.text("environment");
  m.median_step_seconds = root.number("median_step_s", 0, kMaxSeconds);
  m.noise = root.number("noise", 0, 1e9);
  m.step_seconds = root.numbers("steps_s", 0, kMaxSeconds);
  m.losses = root.numbers("losses", -1e300, 1e300);
  m.process_high_water_bytes = root.integer("process_high_water_bytes", 0, kMaxBytes);
  m.by_action = action_times(root.array("by_action"));
  for (const JsonValue& rank : root.array("ranks")) m.ranks.push_back(rank_of(rank.object()));
  root.finish();
  return m;
}

}  // namespace fsdp
