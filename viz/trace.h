// A step as a trace for ui.perfetto.dev and chrome://tracing.
//
//   write_file("trace.json", trace_json({program, plan, model, &prediction, demands, &measurement}));
//
// One process per timeline: "predicted", and "measured rank 0" and so on. All of them begin at the same zero: the
// earliest moment of any. In each process
//   host               when the host issues each operation (predicted only)
//   compute stream     operations, nested in slices of their unit, and these in slices of forward, backward, optimizer
//   ... stream         the other streams
//   ... communicator   the same collectives, by who talks to whom
//   critical path      the chain of operations that decides when the step ends
//   exposed            communication that no work of the compute stream hides
//   memory: ...        counters, in bytes: allocated, and (predicted only) by what it is for
// An arrow leads from an operation to each one on another stream that waits for it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "models/graph.h"
#include "planner/costs.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "simulator/records/measurement.h"
#include "simulator/records/prediction.h"

namespace fsdp {

struct TraceOf {
  const Program& program;  // of rank 0: its steady step is drawn
  const ShardingPlan& plan;
  const ModelGraph& model;
  const Prediction* prediction = nullptr;
  Demands demands = {};  // of the steady step; empty: how long the host takes is not drawn
  const Measurement* measurement = nullptr;
};
// Long steps are cut.
[[nodiscard]] std::string trace_json(const TraceOf&);

// Of a step with more operations than anyone looks at, a trace draws the first and the last micro-batches. `first` and
// `last`: how many of them; nullopt: the whole step is drawn.
struct TraceCut {
  std::int64_t first = 0, last = 0, all = 0;
};
[[nodiscard]] std::optional<TraceCut> trace_cut(const Step& steady);
// "micro-batches 1 to 8 and 1,017 to 1,024 of 1,024".
[[nodiscard]] std::string describe(const TraceCut&);

}  // namespace fsdp
