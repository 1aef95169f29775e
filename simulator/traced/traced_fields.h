// A traced step in JSON: of measurement.json, and of `show trace`.
#pragma once

#include <string>
#include <string_view>

#include "models/fields.h"
#include "simulator/traced/traced_step.h"

namespace fsdp {

inline std::string text(CollectiveKind kind) { return std::string(name(kind)); }
inline std::string_view noun(CollectiveKind) { return "collective"; }
inline bool from_text(std::string_view text, CollectiveKind& kind) {
  for (int k = 0; k < kCollectiveKinds; ++k) {
    kind = static_cast<CollectiveKind>(k);
    if (name(kind) == text) return true;
  }
  return false;
}

inline constexpr Range<double> kMomentRange{-kMaxSeconds, kMaxSeconds};
inline constexpr Range<std::int64_t> kTracedBytes{-1, kMaxBytes}, kTracedCount{0, std::int64_t{1} << 53};

template <class Io>
void fields(Io& io, RecordOrConst<Collective> auto& c) {
  io("kind", c.kind);
  io("bytes", c.bytes, kTracedBytes);
  io("start_s", c.span.start, kMomentRange);
  io("end_s", c.span.end, kMomentRange);
  io("exposed_s", c.exposed, kSecondsRange);
}

template <class Io>
void fields(Io& io, RecordOrConst<KernelTime> auto& k) {
  io("name", k.name);
  io("count", k.count, kTracedCount);
  io("seconds", k.seconds, kSecondsRange);
}

// Spans of the compute stream are not kept: a step may have thousands.
template <class Io>
void fields(Io& io, RecordOrConst<TracedStep> auto& s) {
  io("on_gpu", s.on_gpu);
  io("duration_s", s.duration, kSecondsRange);
  io("compute_s", s.busy, kSecondsRange);
  io("exposed_all_gather_s", s.exposed[0], kSecondsRange);
  io("exposed_reduce_scatter_s", s.exposed[1], kSecondsRange);
  io("exposed_all_reduce_s", s.exposed[2], kSecondsRange);
  io("idle_s", s.idle, kSecondsRange);
  io("collectives", s.collectives);
  io("kernels", s.kernels);
}
static_assert(kCollectiveKinds == 3, "a kind is missing above");

}  // namespace fsdp
