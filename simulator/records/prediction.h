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
#include "simulator/engine/jitter.h"
#include "simulator/engine/memory.h"

namespace fsdp {

// What both were made from. Two documents whose model or plan digests differ are not compared.
struct Provenance {
  std::string model, model_digest, plan_digest, cluster, cluster_digest, costs_digest, implementation,
      implementation_digest, dialect;
  friend bool operator==(const Provenance&, const Provenance&) = default;
};

struct ActionTime {  // sum over the operations of one kind in one steady step
  std::string what;  // "forward linear", "all_gather", ...
  std::int64_t count = 0;
  double seconds = 0;
};

// What a unit of the plan takes of one steady step on one rank: its kernels (and copies), and the collectives that are
// its own.
struct UnitTime {
  std::string what;  // "unit 3 (model.layers.1)"; "no unit" for what belongs to none
  double compute_seconds = 0, communication_seconds = 0;
  friend bool operator==(const UnitTime&, const UnitTime&) = default;
};

struct Prediction {
  Provenance provenance;
  std::int64_t ranks = 1, roles = 1;
  Seconds step_time;  // of ranks that are all alike
  std::optional<StepTimeDistribution>
      step_time_distribution;  // where asked for: ranks that are not (simulator/engine/jitter.h)
  // allocated: what tensors ask for. active: blocks that the allocator cannot reuse yet. reserved: what it has taken
  // from the device, by its model (simulator/allocator/replay.h) without a limit; with a static arena all three are
  // planned. total = reserved + fixed.
  Bytes peak_allocated, peak_active, peak_reserved_estimate, fixed, peak_total;
  std::int64_t alloc_retries =
      0;  // per steady step under the limit: each stops the device to give memory back. Not fits only
  Bytes memory_limit;
  Verdict verdict{};
  double tokens_per_s = 0, mfu = 0, hfu = 0;
  std::int64_t tokens_per_step = 0;
  Breakdown where;
  Seconds exposed_communication;
  std::array<std::int64_t, kBufferKinds> peak_made_of{};
  std::string peak_at;                     // describe() of the operation at the peak
  std::vector<std::string> critical_path;  // kinds along the longest chain, with their seconds
  std::vector<ActionTime> by_action;
  std::vector<UnitTime> by_unit;   // in the plan's order
  std::vector<std::string> order;  // one label per operation in each stream's order: see order_labels
  Timeline timeline;               // of a steady step
  ProgramMemory memory;            // of rank 0, which bounds every rank
  // Ranks whose unpadded shards are smaller have smaller optimizer states. Rank r's memory is that of role
  // role_of_rank[r]: role 0 is `memory`, role i is other_roles[i - 1]. Empty (searching, more than 64 ranks): only rank
  // 0's is known.
  std::vector<std::int32_t> role_of_rank;
  std::vector<ProgramMemory> other_roles;
};

// nullptr: not predicted for this rank.
[[nodiscard]] const ProgramMemory* memory_of(const Prediction&, std::int64_t rank);

// What happened on one rank.
struct RankMeasurement {
  std::int64_t rank = 0;
  std::vector<std::string> order;  // as streams and communicators started them, per stream, in a steady step
  Timeline timeline;               // of the median step
  MemoryTimeline init, first_step, steady_step;  // from the allocator
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t undeclared_bytes = 0;  // heap that kernels took beside their declared buffers, at most at once
  std::int64_t wire_bytes = 0;        // sent to other ranks in a steady step
  // Of the median step, beside the timeline. Documents of earlier versions have none of these.
  std::vector<ActionTime> by_action = {};
  std::vector<UnitTime> by_unit = {};
  std::optional<Breakdown> where = {};
  // The rank's arena: address space of its planned size, and how much of it has become memory (pages that were ever
  // touched).
  std::int64_t arena_bytes = 0, arena_resident_bytes = 0;
};

// The machine, and what else it did meanwhile. Empty texts and empty optionals: it does not say.
struct MachineState {
  std::string processor, instructions, libraries, date;  // instructions: what the kernels use; date: UTC, at the start
  std::string governor, turbo;                           // "performance", "on": of the first core
  std::int64_t cores = 0, usable_cores = 0;              // of the machine; that this process may run on
  bool pinned = false;                                   // every rank's threads stay on cores of their own
  double load_at_start = 0, load_at_end = 0;             // processes that ran or wanted to, mean of the minute before
  double wall_seconds = 0;                               // from start to end: what the next three are means over
  std::optional<double> own_cores, other_cores;          // kept busy by this process, and by others
  std::optional<double> stolen_cores;                    // taken by the machine below a virtual one
  friend bool operator==(const MachineState&, const MachineState&) = default;
};

// A process's memory at the end of a run, by what it is for. What the allocator counts is a part of `arenas`.
struct ProcessMemory {
  std::int64_t high_water_bytes = 0;  // most that it ever was
  std::int64_t resident_bytes = 0;    // now: the sum of the next four
  std::int64_t arenas_bytes = 0;      // pages of the ranks' arenas that were ever touched
  std::int64_t heap_bytes = 0;        // malloc: programs, records, the compiled-in catalogue read by now
  std::int64_t code_bytes = 0;        // this program and its libraries, as far as read; read-only data
  std::int64_t rest_bytes = 0;        // stacks of threads, the matrix library's own memory
  friend bool operator==(const ProcessMemory&, const ProcessMemory&) = default;
};

// Which steps were measured, and how sure the median is (simulator/records/step_statistics.h).
struct StepNoise {
  std::int64_t warmup_steps = 0;  // run before the measured ones: the first step and what had not settled
  bool settled = true;            // false: the measured steps still got faster or slower
  std::string
      stopped;  // why: "5 steps, as asked", "the interval of the median is within 2 %", "200 steps, the most allowed"
  double p10_seconds = 0, p90_seconds = 0;
  std::optional<double> low_seconds,
      high_seconds;  // 95 % confidence interval of the median; none: too few independent steps
  double independent_steps = 0;
  friend bool operator==(const StepNoise&, const StepNoise&) = default;
};

struct Measurement {
  Provenance provenance;
  std::string backend, environment;           // "host"; processor, cores, library versions, date
  std::vector<double> step_seconds;           // every measured step (warm-up left out), slowest rank
  double median_step_seconds = 0, noise = 0;  // noise: (p90 - p10) / median
  std::vector<double> losses;                 // of every step run, mean over the global batch
  std::vector<RankMeasurement> ranks;
  std::vector<ActionTime> by_action;          // rank 0, median step
  std::int64_t process_high_water_bytes = 0;  // of the process of rank 0
  // Documents of earlier versions have none of these.
  std::optional<StepNoise> steps;
  std::optional<MachineState> machine;
  std::optional<ProcessMemory> memory;  // of the process of rank 0
};

// What a reader must know before believing the step time: the machine was busy, steps had not settled, the median is
// not sure. Words for a person, most important first; empty: nothing stands against it.
[[nodiscard]] std::vector<std::string> doubts(const Measurement&);

// Memory limit default: the GPU's usable memory less 5%. The verdict: fits if the limit holds what the allocator
// reserves when nothing limits it; tight if it holds that only with retries, or only with expandable segments; else it
// does not fit.
struct PredictOptions {
  std::optional<Bytes> memory_limit;
  bool keep_timeline = true;  // false while searching: no timeline, order, critical path
};
[[nodiscard]] Bytes default_memory_limit(const ClusterSpec&);
[[nodiscard]] Prediction predict(const Program&, const CostContext&, const PredictOptions& = {});

// Labels of a step's operations, stream by stream ("D: forward model.layers.0..."): what order comparisons compare.
// What runs on no stream (zero_gradients, read_loss) is left out.
[[nodiscard]] std::vector<std::string> order_labels(const Step&, const Program&, const ShardingPlan&,
                                                    const ModelGraph&);

[[nodiscard]] std::string order_label(const Operation&, const Program&, const ShardingPlan&,
                                      const ModelGraph&);  // of one

// One label per kind of operation ("forward linear", "all_gather"): the rows of `by_action`.
[[nodiscard]] std::string action_label(const Operation&, const ModelGraph&);
[[nodiscard]] std::vector<ActionTime> times_by_action(const Step&, const Timeline&, const ModelGraph&);

// The same by unit, in the plan's order; what belongs to none (loss, batch, norm) last. A kernel belongs to the
// innermost unit around its module. Units without operations are left out.
[[nodiscard]] std::vector<UnitTime> times_by_unit(const Step&, const Timeline&, const ShardingPlan&, const ModelGraph&);

// Exposed time by class over one period of the compute stream. Intervals that the compute stream leaves idle are
// charged to the collective (or copy) that runs then, else to `idle`.
[[nodiscard]] Breakdown where_time_goes(const Step&, const Timeline&);

[[nodiscard]] Provenance provenance_of(const Program&, const CostContext&);

// "fsdp-plan/prediction/1" and "fsdp-plan/measurement/1"; parse(to_json_text(x)) compares equal in every field that is
// written.
[[nodiscard]] std::string to_json_text(const Prediction&);
[[nodiscard]] std::string to_json_text(const Measurement&);
[[nodiscard]] Prediction parse_prediction(std::string_view json_text, std::string_view where);
[[nodiscard]] Measurement parse_measurement(std::string_view json_text, std::string_view where);

}  // namespace fsdp
