// "fsdp-plan/measurement/1".
#include <nlohmann/json.hpp>

#include "models/input/error.h"
#include "simulator/records/measurement.h"
#include "simulator/records/record_fields.h"
#include "simulator/traced/traced_fields.h"

namespace fsdp {

namespace {

constexpr std::string_view kMeasurementSchema = "fsdp-plan/measurement/1", kRunAgain = "run again";

}  // namespace

template <class Io>
void fields(Io& io, RecordOrConst<StepNoise> auto& n) {
  io("warmup_steps", n.warmup_steps, kCountRange);
  io("settled", n.settled);
  io("stopped", n.stopped);
  io("p10_s", n.p10_seconds, kSecondsRange);
  io("p90_s", n.p90_seconds, kSecondsRange);
  io("independent_steps", n.independent_steps, Range<double>{0, 1e18});
  io.ends("median_interval_s", n.median_interval, &Interval::low, &Interval::high, kSecondsRange);
}

template <class Io>
void fields(Io& io, RecordOrConst<MachineState> auto& m) {
  constexpr Range<std::int64_t> kCores{0, 1 << 24};
  constexpr Range<double> kLoad{0, 1e7};  // cores, processes
  io("processor", m.processor);
  io("instructions", m.instructions);
  io("libraries", m.libraries);
  io("date", m.date);
  io("governor", m.governor);
  io("turbo", m.turbo);
  io("cores", m.cores, kCores);
  io("usable_cores", m.usable_cores, kCores);
  io("pinned", m.pinned);
  io("load_at_start", m.load_at_start, kLoad);
  io("load_at_end", m.load_at_end, kLoad);
  io("wall_s", m.wall_seconds, kSecondsRange);
  io("own_cores", m.own_cores, kLoad);
  io("other_cores", m.other_cores, kLoad);
  io("stolen_cores", m.stolen_cores, kLoad);
}

template <class Io>
void fields(Io& io, RecordOrConst<ProcessMemory> auto& m) {
  io("high_water_bytes", m.high_water_bytes, kBytesRange);
  io("resident_bytes", m.resident_bytes, kBytesRange);
  io("arenas_bytes", m.arenas_bytes, kBytesRange);
  io("heap_bytes", m.heap_bytes, kBytesRange);
  io("code_bytes", m.code_bytes, kBytesRange);
  io("rest_bytes", m.rest_bytes, kBytesRange);
}

template <class Io>
void fields(Io& io, RecordOrConst<EarlyStop> auto& s) {
  io("reason", s.reason);
  io("steps_run", s.steps_run, kCountRange);
  io("steps_asked", s.steps_asked, kCountRange);
}

template <class Io>
void fields(Io& io, RecordOrConst<RankMeasurement> auto& r) {
  io("rank", r.rank, Range<std::int64_t>{0, kMaxRanks});
  io("peak_allocated_bytes", r.peak_allocated_bytes, kBytesRange);
  io("undeclared_bytes", r.undeclared_bytes, kBytesRange);
  io("wire_bytes", r.wire_bytes, kBytesRange);
  io("arena_bytes", r.arena_bytes, kBytesRange);
  io("arena_resident_bytes", r.arena_resident_bytes, kBytesRange);
  io("order", r.order);
  io("timeline", r.timeline);
  io.group("memory", [&](auto& memory) {
    memory("init", r.init);
    memory("first_step", r.first_step);
    memory("steady_step", r.steady_step);
  });
  io.if_any("by_action", r.by_action);
  io.if_any("by_unit", r.by_unit);
  io("where", r.where);
  io.if_any("moments_bytes", r.moments, kBytesRange);
  io("profiled_step", r.profiled);
}

template <class Io>
void fields(Io& io, RecordOrConst<Measurement> auto& m) {
  io("provenance", m.provenance);
  io("backend", m.backend);
  io("environment", m.environment);
  io("median_step_s", m.median_step_seconds, kSecondsRange);
  io("noise", m.noise, Range<double>{0, 1e9});
  io("steps_s", m.step_seconds, kSecondsRange);
  io.maybe_nan("losses", m.losses);
  io("process_high_water_bytes", m.process_high_water_bytes, kBytesRange);
  io("by_action", m.by_action);
  io("noise_of_steps", m.steps);
  io("early_stop", m.early_stop);
  io("machine", m.machine);
  io("process_memory", m.memory);
  io.if_any("observed", m.observed);
  io("ranks", m.ranks);
}

std::string to_json_text(const Measurement& m) {
  FieldWriter<nlohmann::ordered_json> writer;
  writer("schema", std::string(kMeasurementSchema));
  fields(writer, m);
  return writer.take().dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Measurement parse_measurement(std::string_view json_text, std::string_view where) {
  const JsonDocument document = parse_document(json_text, where, kMeasurementSchema);
  JsonObject root = document.root();
  Measurement m;
  FieldReader reader(root, kRunAgain);
  fields(reader, m);
  root.finish();
  for (const RankMeasurement& r : m.ranks)
    for (const Collective& c : r.profiled ? r.profiled->collectives : std::vector<Collective>{})
      if (c.span.end < c.span.start)
        throw InputError({std::string(where), "ranks.profiled_step.collectives"}, "one ends before it starts",
                         std::string(kRunAgain));
  return m;
}

}  // namespace fsdp
