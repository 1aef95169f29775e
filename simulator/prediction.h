// The two records that are compared, and how they look on disk.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cluster.h"
#include "models/graph.h"
#include "models/implementation.h"
#include "planner/costs.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "planner/search.h"
#include "planner/timeline.h"
#include "simulator/jitter.h"
#include "simulator/memory.h"

namespace fsdp {

// What both were made from. Two documents whose model or plan digests differ are not compared.
struct Provenance {
  std::string model, model_digest, plan_digest, cluster, cluster_digest, costs_digest, implementation, implementation_digest, dialect;
  friend bool operator==(const Provenance&, const Provenance&) = default;
};

struct ActionTime {                          // sum over the operations of one kind in one steady step
  std::string what;                          // "forward linear", "all_gather", ...
  std::int64_t count = 0;
  double seconds = 0;
};

struct Prediction {
  Provenance provenance;
  std::int64_t ranks = 1, roles = 1;
  Seconds step_time;                         // of ranks that are all alike
  std::optional<StepTimeDistribution> step_time_distribution;   // where asked for: ranks that are not (simulator/jitter.h)
  // allocated: what tensors ask for. active: blocks that the allocator cannot reuse yet. reserved: what it has taken from the device, by
  // its model (simulator/allocator_replay.h) without a limit; with a static arena all three are planned. total = reserved + fixed.
  Bytes peak_allocated, peak_active, peak_reserved_estimate, fixed, peak_total;
  std::int64_t alloc_retries = 0;            // per steady step under the limit: each stops the device to give memory back. Not fits only
  Bytes memory_limit;
  Verdict verdict{};
  double tokens_per_s = 0, mfu = 0, hfu = 0;
  std::int64_t tokens_per_step = 0;
  Breakdown where;
  Seconds exposed_communication;
  std::array<std::int64_t, kBufferKinds> peak_made_of{};
  std::string peak_at;                       // describe() of the operation at the peak
  std::vector<std::string> critical_path;    // kinds along the longest chain, with their seconds
  std::vector<ActionTime> by_action;
  std::vector<std::string> order;            // one label per operation in each stream's order: see order_labels
  Timeline timeline;                         // of a steady step
  ProgramMemory memory;                      // of rank 0, which bounds every rank
  // Ranks whose unpadded shards are smaller have smaller optimizer states. Rank r's memory is that of role role_of_rank[r]:
  // role 0 is `memory`, role i is other_roles[i - 1]. Empty (searching, more than 64 ranks): only rank 0's is known.
  std::vector<std::int32_t> role_of_rank;
  std::vector<ProgramMemory> other_roles;
};

// nullptr: not predicted for this rank.
[[nodiscard]] const ProgramMemory* memory_of(const Prediction&, std::int64_t rank);

// What happened on one rank.
struct RankMeasurement {
  std::int64_t rank = 0;
  std::vector<std::string> order;            // as streams and communicators started them, per stream, in a steady step
  Timeline timeline;                         // of the median step
  MemoryTimeline init, first_step, steady_step;   // from the allocator
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t undeclared_bytes = 0;         // heap that kernels took beside their declared buffers, at most at once
  std::int64_t wire_bytes = 0;               // sent to other ranks in a steady step
};
struct Measurement {
  Provenance provenance;
  std::string backend, environment;          // "host"; processor, cores, library versions, date
  std::vector<double> step_seconds;          // every measured step (warm-up left out), slowest rank
  double median_step_seconds = 0, noise = 0; // noise: (p90 - p10) / median
  std::vector<double> losses;                // of every step run, mean over the global batch
  std::vector<RankMeasurement> ranks;
  std::vector<ActionTime> by_action;         // rank 0, median step
  std::int64_t process_high_water_bytes = 0;
};

// Memory limit default: the GPU's usable memory less 5%. The verdict: fits if the limit holds what the allocator reserves when nothing
// limits it; tight if it holds that only with retries, or only with expandable segments; else it does not fit.
struct PredictOptions {
  std::optional<Bytes> memory_limit;
  bool keep_timeline = true;                 // false while searching: no timeline, order, critical path
};
[[nodiscard]] Bytes default_memory_limit(const ClusterSpec&);
[[nodiscard]] Prediction predict(const Program&, const CostContext&, const PredictOptions& = {});

// Labels of a step's operations, stream by stream ("D: forward model.layers.0..."): what order comparisons compare. What runs
// on no stream (zero_gradients, read_loss) is left out.
[[nodiscard]] std::vector<std::string> order_labels(const Step&, const Program&, const ShardingPlan&, const ModelGraph&);

[[nodiscard]] std::string order_label(const Operation&, const Program&, const ShardingPlan&, const ModelGraph&);   // of one

// One label per kind of operation ("forward linear", "all_gather"): the rows of `by_action`.
[[nodiscard]] std::string action_label(const Operation&, const ModelGraph&);
[[nodiscard]] std::vector<ActionTime> times_by_action(const Step&, const Timeline&, const ModelGraph&);

// Exposed time by class over one period of the compute stream. Intervals that the compute stream leaves idle are charged to the
// collective (or copy) that runs then, else to `idle`.
[[nodiscard]] Breakdown where_time_goes(const Step&, const Timeline&);

[[nodiscard]] Provenance provenance_of(const Program&, const CostContext&);

// "fsdp-plan/prediction/1" and "fsdp-plan/measurement/1"; parse(to_json_text(x)) compares equal in every field that is written.
[[nodiscard]] std::string to_json_text(const Prediction&);
[[nodiscard]] std::string to_json_text(const Measurement&);
[[nodiscard]] Prediction parse_prediction(std::string_view json_text, std::string_view where);
[[nodiscard]] Measurement parse_measurement(std::string_view json_text, std::string_view where);

}  // namespace fsdp
