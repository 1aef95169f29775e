// "fsdp-plan/measurement/1".
#include "simulator/records/json_parts.h"

namespace fsdp {

using namespace records;

namespace {

constexpr std::string_view kSchema = "fsdp-plan/measurement/1";

Json json_of_rank(const RankMeasurement& r) {
  Json j = {
      {"rank", r.rank},
      {"peak_allocated_bytes", r.peak_allocated_bytes},
      {"undeclared_bytes", r.undeclared_bytes},
      {"wire_bytes", r.wire_bytes},
      {"arena_bytes", r.arena_bytes},
      {"arena_resident_bytes", r.arena_resident_bytes},
      {"order", r.order},
      {"timeline", json_of(r.timeline)},
      {"memory",
       {{"init", json_of(r.init)}, {"first_step", json_of(r.first_step)}, {"steady_step", json_of(r.steady_step)}}}};
  if (!r.by_action.empty()) j["by_action"] = json_of(r.by_action);
  if (!r.by_unit.empty()) j["by_unit"] = json_of(r.by_unit);
  if (r.where) j["where"] = json_of(*r.where);
  return j;
}

Json json_of(const StepNoise& n) {
  Json j = {{"warmup_steps", n.warmup_steps}, {"settled", n.settled},   {"stopped", n.stopped},
            {"p10_s", n.p10_seconds},         {"p90_s", n.p90_seconds}, {"independent_steps", n.independent_steps}};
  if (n.low_seconds && n.high_seconds) j["median_interval_s"] = {*n.low_seconds, *n.high_seconds};
  return j;
}

StepNoise noise_of(JsonObject o) {
  StepNoise n;
  n.warmup_steps = o.integer("warmup_steps", 0, kMaxInteger);
  n.settled = o.boolean("settled");
  n.stopped = o.text("stopped");
  n.p10_seconds = o.number("p10_s", 0, kMaxSeconds);
  n.p90_seconds = o.number("p90_s", 0, kMaxSeconds);
  n.independent_steps = o.number("independent_steps", 0, 1e18);
  if (o.has("median_interval_s")) {
    const std::vector<double> both = o.numbers("median_interval_s", 0, kMaxSeconds);
    if (both.size() != 2 || both[0] > both[1]) o.refuse("median_interval_s", "expected its low and its high end");
    n.low_seconds = both[0];
    n.high_seconds = both[1];
  }
  o.finish();
  return n;
}

Json json_of(const MachineState& m) {
  Json j = {{"processor", m.processor},
            {"instructions", m.instructions},
            {"libraries", m.libraries},
            {"date", m.date},
            {"governor", m.governor},
            {"turbo", m.turbo},
            {"cores", m.cores},
            {"usable_cores", m.usable_cores},
            {"pinned", m.pinned},
            {"load_at_start", m.load_at_start},
            {"load_at_end", m.load_at_end},
            {"wall_s", m.wall_seconds}};
  if (m.own_cores) j["own_cores"] = *m.own_cores;
  if (m.other_cores) j["other_cores"] = *m.other_cores;
  if (m.stolen_cores) j["stolen_cores"] = *m.stolen_cores;
  return j;
}

MachineState machine_of(JsonObject o) {
  constexpr double kMost = 1e7;  // cores, processes
  MachineState m;
  m.processor = o.text("processor");
  m.instructions = o.text("instructions");
  m.libraries = o.text("libraries");
  m.date = o.text("date");
  m.governor = o.text("governor");
  m.turbo = o.text("turbo");
  m.cores = o.integer("cores", 0, 1 << 24);
  m.usable_cores = o.integer("usable_cores", 0, 1 << 24);
  m.pinned = o.boolean("pinned");
  m.load_at_start = o.number("load_at_start", 0, kMost);
  m.load_at_end = o.number("load_at_end", 0, kMost);
  m.wall_seconds = o.number("wall_s", 0, kMaxSeconds);
  m.own_cores = o.optional_number("own_cores", 0, kMost);
  m.other_cores = o.optional_number("other_cores", 0, kMost);
  m.stolen_cores = o.optional_number("stolen_cores", 0, kMost);
  o.finish();
  return m;
}

Json json_of(const ProcessMemory& m) {
  return {{"high_water_bytes", m.high_water_bytes},
          {"resident_bytes", m.resident_bytes},
          {"arenas_bytes", m.arenas_bytes},
          {"heap_bytes", m.heap_bytes},
          {"code_bytes", m.code_bytes},
          {"rest_bytes", m.rest_bytes}};
}

ProcessMemory process_memory_of(JsonObject o) {
  ProcessMemory m;
  m.high_water_bytes = o.integer("high_water_bytes", 0, kMaxBytes);
  m.resident_bytes = o.integer("resident_bytes", 0, kMaxBytes);
  m.arenas_bytes = o.integer("arenas_bytes", 0, kMaxBytes);
  m.heap_bytes = o.integer("heap_bytes", 0, kMaxBytes);
  m.code_bytes = o.integer("code_bytes", 0, kMaxBytes);
  m.rest_bytes = o.integer("rest_bytes", 0, kMaxBytes);
  o.finish();
  return m;
}

RankMeasurement rank_of(JsonObject o) {
  RankMeasurement r;
  r.rank = o.integer("rank", 0, kMaxRanks);
  r.peak_allocated_bytes = o.integer("peak_allocated_bytes", 0, kMaxBytes);
  r.undeclared_bytes = o.integer("undeclared_bytes", 0, kMaxBytes);
  r.wire_bytes = o.integer("wire_bytes", 0, kMaxBytes);
  r.arena_bytes = o.optional_integer("arena_bytes", 0, kMaxBytes)
                      .value_or(0);  // this and what may be absent: not in earlier versions
  r.arena_resident_bytes = o.optional_integer("arena_resident_bytes", 0, kMaxBytes).value_or(0);
  r.order = o.texts("order");
  if (o.has("by_action")) r.by_action = action_times(o.array("by_action"));
  if (o.has("by_unit")) r.by_unit = unit_times(o.array("by_unit"));
  if (auto where = o.optional_object("where")) r.where = breakdown(std::move(*where));
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
  Json j = {{"schema", kSchema},
            {"provenance", json_of(m.provenance)},
            {"backend", m.backend},
            {"environment", m.environment},
            {"median_step_s", m.median_step_seconds},
            {"noise", m.noise},
            {"steps_s", m.step_seconds},
            {"losses", m.losses},
            {"process_high_water_bytes", m.process_high_water_bytes},
            {"by_action", json_of(m.by_action)}};
  if (m.steps) j["noise_of_steps"] = json_of(*m.steps);
  if (m.machine) j["machine"] = json_of(*m.machine);
  if (m.memory) j["process_memory"] = json_of(*m.memory);
  j["ranks"] = ranks;
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
  m.losses = root.numbers_or_nan("losses");
  m.process_high_water_bytes = root.integer("process_high_water_bytes", 0, kMaxBytes);
  m.by_action = action_times(root.array("by_action"));
  if (auto steps = root.optional_object("noise_of_steps")) m.steps = noise_of(std::move(*steps));
  if (auto machine = root.optional_object("machine")) m.machine = machine_of(std::move(*machine));
  if (auto memory = root.optional_object("process_memory")) m.memory = process_memory_of(std::move(*memory));
  for (const JsonValue& rank : root.array("ranks")) m.ranks.push_back(rank_of(rank.object()));
  root.finish();
  return m;
}

}  // namespace fsdp
