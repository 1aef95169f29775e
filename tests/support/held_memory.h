// What a rank's instruments saw of memory against its own program: equal, or, where blocks wait for streams, between
// what is allocated and what may still be held.
#pragma once

#include <doctest/doctest.h>

#include "planner/program/stream_frees.h"
#include "simulator/engine/memory.h"
#include "simulator/records/measurement.h"

namespace fsdp::testing {

inline void check_between(const MemoryTimeline& low, const MemoryTimeline& m, const MemoryTimeline& high) {
  REQUIRE(m.points.size() == low.points.size());
  REQUIRE(m.points.size() == high.points.size());
  CHECK(m.start == low.start);
  CHECK(m.start == high.start);
  for (std::size_t i = 0; i < m.points.size(); ++i) {
    CAPTURE(i);
    CHECK(low.points[i].at <= m.points[i].at);
    CHECK(m.points[i].at <= high.points[i].at);
    CHECK(low.points[i].after <= m.points[i].after);
    CHECK(m.points[i].after <= high.points[i].after);
  }
}

inline void check_memory(const RankMeasurement& r, const Program& program) {
  const ProgramMemory least = replay_memory(program);
  if (frees_at_stream_time(program)) {
    const HeldMemory most = replay_latest(program);
    check_between(least.init, r.init, most.init);
    check_between(least.first_step, r.first_step, most.first_step);
    check_between(least.steady_step, r.steady_step, most.steady_step);
    CHECK(r.peak_allocated_bytes >= least.peak);
    CHECK(r.peak_allocated_bytes <= most.peak());
    return;
  }
  CHECK(r.init == least.init);
  CHECK(r.first_step == least.first_step);
  CHECK(r.steady_step == least.steady_step);
  CHECK(r.peak_allocated_bytes == least.peak);
}

}  // namespace fsdp::testing
