// The fields of what both records hold. For prediction_json.cpp and measurement_json.cpp alone.
#pragma once

#include <array>
#include <string_view>

#include "models/fields.h"
#include "planner/breakdown.h"
#include "planner/timeline.h"
#include "simulator/records/provenance.h"
#include "simulator/records/rows.h"

namespace fsdp {

inline constexpr Range<std::int64_t> kCountRange{0, kMaxInteger};
inline constexpr std::int64_t kMaxRanks = std::int64_t{1} << 24;

template <class T>
bool from_optional(std::optional<T> found, T& value) {
  if (found) value = std::move(*found);
  return found.has_value();
}
inline bool from_text(std::string_view text, ActionKey& key) { return from_optional(parse_action_key(text), key); }
inline bool from_text(std::string_view text, UnitKey& key) { return from_optional(parse_unit_key(text), key); }
inline bool from_text(std::string_view text, OrderedOperation& operation) {
  return from_optional(parse_ordered_operation(text), operation);
}
inline std::string_view noun(const ActionKey&) { return "kind of operation"; }
inline std::string_view noun(const UnitKey&) { return "unit"; }
inline std::string_view noun(const OrderedOperation&) { return "operation of a stream"; }

template <class Io>
void fields(Io& io, RecordOrConst<Provenance> auto& p) {
  io("model", p.model);
  io("model_digest", p.model_digest);
  io("plan_digest", p.plan_digest);
  io("cluster", p.cluster);
  io("cluster_digest", p.cluster_digest);
  io("costs_digest", p.costs_digest);
  io("implementation", p.implementation);
  io("implementation_digest", p.implementation_digest);
  io("dialect", p.dialect);
}

template <class Io>
void fields(Io& io, RecordOrConst<ActionTime> auto& t) {
  io("what", t.what);
  io("count", t.count, kCountRange);
  io("seconds", t.seconds, kSecondsRange);
}

template <class Io>
void fields(Io& io, RecordOrConst<UnitTime> auto& t) {
  io("what", t.what);
  io("compute_s", t.compute_seconds, kSecondsRange);
  io("communication_s", t.communication_seconds, kSecondsRange);
}

template <class Io>
void fields(Io& io, RecordOrConst<Breakdown> auto& b) {
  for (const BreakdownPart& part : kBreakdownParts) io(part.key, b.*part.member);
}

template <class Io>
void fields(Io& io, RecordOrConst<Timeline> auto& t) {
  io("duration_s", t.duration, kSecondsRange);
  io.pairs("spans_s", t.spans, &Span::start, &Span::end, Range<double>{-kMaxSeconds, kMaxSeconds}, "start and end");
}

template <class Io>
void fields(Io& io, RecordOrConst<MemoryTimeline> auto& m) {
  io("start_bytes", m.start, kBytesRange);
  io.pairs("points_bytes", m.points, &MemoryPoint::at, &MemoryPoint::after, kBytesRange, "bytes before and after");
}

}  // namespace fsdp
