#include "simulator/records/json_parts.h"

#include <array>

namespace fsdp::records {

namespace {

struct Part {
  const char* key;
  Seconds Breakdown::*member;
};
constexpr std::array<Part, 8> kParts = {{{"compute_s", &Breakdown::compute},
                                         {"recompute_s", &Breakdown::recompute},
                                         {"exposed_all_gather_s", &Breakdown::exposed_all_gather},
                                         {"exposed_reduce_scatter_s", &Breakdown::exposed_reduce_scatter},
                                         {"exposed_all_reduce_s", &Breakdown::exposed_all_reduce},
                                         {"copies_s", &Breakdown::copies},
                                         {"optimizer_s", &Breakdown::optimizer},
                                         {"idle_s", &Breakdown::idle}}};
}  // namespace

Json json_of(const Provenance& p) {
  return {{"model", p.model},
          {"model_digest", p.model_digest},
          {"plan_digest", p.plan_digest},
          {"cluster", p.cluster},
          {"cluster_digest", p.cluster_digest},
          {"costs_digest", p.costs_digest},
          {"implementation", p.implementation},
          {"implementation_digest", p.implementation_digest},
          {"dialect", p.dialect}};
}

Json json_of(const std::vector<ActionTime>& actions) {
  Json rows = Json::array();
  for (const ActionTime& a : actions) rows.push_back({{"what", a.what}, {"count", a.count}, {"seconds", a.seconds}});
  return rows;
}

Json json_of(const Breakdown& b) {
  Json j;
  for (const Part& p : kParts) j[p.key] = (b.*p.member).count();
  return j;
}

Json json_of(const std::vector<UnitTime>& units) {
  Json rows = Json::array();
  for (const UnitTime& u : units)
    rows.push_back({{"what", u.what}, {"compute_s", u.compute_seconds}, {"communication_s", u.communication_seconds}});
  return rows;
}

Json json_of(const Timeline& t) {
  std::vector<double> flat;
  flat.reserve(2 * t.spans.size());
  for (const Span& s : t.spans) flat.insert(flat.end(), {s.start, s.end});
  return {{"duration_s", t.duration}, {"spans_s", flat}};
}

Json json_of(const MemoryTimeline& m) {
  std::vector<std::int64_t> flat;
  flat.reserve(2 * m.points.size());
  for (const MemoryPoint& p : m.points) flat.insert(flat.end(), {p.at, p.after});
  return {{"start_bytes", m.start}, {"points_bytes", flat}};
}

Provenance provenance(JsonObject o) {
  Provenance p;
  p.model = o.text("model");
  p.model_digest = o.text("model_digest");
  p.plan_digest = o.text("plan_digest");
  p.cluster = o.text("cluster");
  p.cluster_digest = o.text("cluster_digest");
  p.costs_digest = o.text("costs_digest");
  p.implementation = o.text("implementation");
  p.implementation_digest = o.text("implementation_digest");
  p.dialect = o.text("dialect");
  o.finish();
  return p;
}

std::vector<ActionTime> action_times(const std::vector<JsonValue>& rows) {
  std::vector<ActionTime> times;
  for (const JsonValue& row : rows) {
    JsonObject o = row.object();
    times.push_back({o.text("what"), o.integer("count", 0, kMaxInteger), o.number("seconds", 0, kMaxSeconds)});
    o.finish();
  }
  return times;
}

Breakdown breakdown(JsonObject o) {
  Breakdown b;
  for (const Part& p : kParts) b.*p.member = seconds(o, p.key);
  o.finish();
  return b;
}

std::vector<UnitTime> unit_times(const std::vector<JsonValue>& rows) {
  std::vector<UnitTime> times;
  for (const JsonValue& row : rows) {
    JsonObject o = row.object();
    times.push_back(
        {o.text("what"), o.number("compute_s", 0, kMaxSeconds), o.number("communication_s", 0, kMaxSeconds)});
    o.finish();
  }
  return times;
}

Timeline timeline(JsonObject o) {
  Timeline t;
  t.duration = o.number("duration_s", 0, kMaxSeconds);
  const std::vector<double> flat = o.numbers("spans_s", -kMaxSeconds, kMaxSeconds);
  if (flat.size() % 2 != 0) o.refuse("spans_s", "expected pairs of start and end, found an odd number of values");
  t.spans.reserve(flat.size() / 2);
  for (std::size_t i = 0; i < flat.size(); i += 2) t.spans.push_back({flat[i], flat[i + 1]});
  o.finish();
  return t;
}

MemoryTimeline memory_timeline(JsonObject o) {
  MemoryTimeline m;
  m.start = o.integer("start_bytes", 0, kMaxBytes);
  const std::vector<std::int64_t> flat = o.integers("points_bytes", 0, kMaxBytes);
  if (flat.size() % 2 != 0)
    o.refuse("points_bytes", "expected pairs of bytes before and after, found an odd number of values");
  m.points.reserve(flat.size() / 2);
  for (std::size_t i = 0; i < flat.size(); i += 2) m.points.push_back({flat[i], flat[i + 1]});
  o.finish();
  return m;
}

Bytes bytes(JsonObject& o, std::string_view key) { return Bytes(o.integer(key, 0, kMaxBytes)); }
Seconds seconds(JsonObject& o, std::string_view key) { return Seconds(o.number(key, 0, kMaxSeconds)); }

}  // namespace fsdp::records
