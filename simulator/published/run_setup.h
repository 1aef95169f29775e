// A published run as the simulator sees it: its row's cells turned into a model, a plan, an implementation and a
// cluster, or the reason why that cannot be done. What a row leaves out is assumed, and every assumption is said.
//
//   std::variant<RunSetup, std::string> s = set_up(run, "runs.csv");
//   const PreparedRun prepared = prepare(std::get<RunSetup>(s));                 // lowers: the slow part, once
//   Seconds t = predict_step_time(prepared, default_costs(prepared.setup.cluster));   // as often as there are costs to
//                                                                                     try
//   Bytes m = predict_peak(prepared, costs, MemoryKind::reserved);               // replays the allocator: slower
//
// The rules are over columns and the dates in them (`software`, `source_ref`, `notes`), never over single rows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/cluster.h"
#include "models/graph.h"
#include "models/implementation.h"
#include "planner/breakdown.h"
#include "planner/costs.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "simulator/published/reading/published_runs.h"

namespace fsdp {

enum class MemoryKind : std::uint8_t { reserved, allocated, active };  // as torch.cuda.memory_stats counts them

struct RunSetup {
  std::string platform;  // platform_of the row
  ModelGraph model;
  ShardingPlan plan;
  const Implementation* implementation = nullptr;  // one of the program's constants, or `variant`
  std::shared_ptr<const Implementation> variant;
  ClusterSpec cluster;
  bool expandable_segments = false;
  std::optional<MemoryKind> memory_kind;  // of the peak that the row names; empty: none
  std::vector<std::string> assumptions;   // for cells that are empty
};

// Why a row cannot be expressed is a sentence that begins with the column: "float8: ... is not modelled". Nothing is
// thrown for bad cells.
[[nodiscard]] std::variant<RunSetup, std::string> set_up(const PublishedRun&, std::string_view where);

// Lowered once, priced often. Many equal micro-batches are lowered as `few` of them: see predict_step_time.
struct PreparedRun {
  RunSetup setup;   // of the whole step
  Program program;  // of `few.plan`
  ShardingPlan few;
  std::int64_t left_out = 0;  // micro-batches that `few` lacks
  Program fewer_program;      // with one micro-batch less than `few`; empty if nothing is left out
  ShardingPlan fewer;
  Seconds stops;  // that a step takes longer because the allocator gives memory back (simulator/predict/retries.h)
};
// Stops of `few`, by everything that decides them: rows often differ in the number of micro-batches alone.
using KnownStops = std::map<std::string, Seconds>;
[[nodiscard]] PreparedRun prepare(RunSetup, KnownStops&);
[[nodiscard]] PreparedRun prepare(RunSetup);

// The period of steady steps, stops of the allocator included. With micro-batches left out each adds what the last one
// of `few` added over `fewer`; tests hold the result against the whole step.
[[nodiscard]] Seconds predict_step_time(const PreparedRun&, const Costs&);

// Where a step of `few` spends its time.
[[nodiscard]] Breakdown predict_breakdown(const PreparedRun&, const Costs&);

// Peak over init and the first steps, by the caching allocator's model; the libraries' workspaces included, the CUDA
// context not. Accumulating further micro-batches takes no more memory than `few` of them. Where more would be reserved
// than the device has beside its fixed memory, the allocator gives back what it kept: then the peak is that under this
// limit, if the run fits into it: a reserved peak above the limit means that it does not.
[[nodiscard]] Bytes predict_peak(const PreparedRun&, const Costs&, MemoryKind);

[[nodiscard]] std::string_view name(MemoryKind);

}  // namespace fsdp
