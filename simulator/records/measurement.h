// What was measured of a run, as a value and as a document.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/breakdown.h"
#include "planner/timeline.h"
#include "simulator/records/provenance.h"
#include "simulator/records/rows.h"
#include "simulator/records/step_statistics.h"
#include "simulator/traced/traced_step.h"

namespace fsdp {

// What happened on one rank.
struct RankMeasurement {
  std::int64_t rank = 0;
  std::vector<OrderedOperation> order;  // as streams and communicators started them, per stream, in a steady step
  Timeline timeline;                    // of the median step
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
  std::optional<std::int64_t> arena_bytes = {}, arena_resident_bytes = {};
  // Where not everything was observed: bytes allocated as the host issued order[i]; empty: not observed.
  std::vector<std::int64_t> moments = {};
  std::optional<TracedStep> profiled = {};  // a step that torch.profiler recorded, where it was asked to
};

// The machine, and what else ran on it meanwhile. An empty text or optional: the machine does not say.
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
  // Why the run ended: "5 steps, as asked", "SIGUSR1 after 7 of 50 steps", "the median is known to 2 % (95 %
  // confidence), as asked", "200 steps, the most allowed".
  std::string stopped;
  double p10_seconds = 0, p90_seconds = 0;
  std::optional<Interval> median_interval;  // 95 % confidence, seconds; none: too few independent steps
  double independent_steps = 0;
  friend bool operator==(const StepNoise&, const StepNoise&) = default;
};

// A run that ended before its steps were done, because it was asked to.
struct EarlyStop {
  std::string reason;                           // "SIGUSR1"
  std::int64_t steps_run = 0, steps_asked = 0;  // warm-up included; asked: at most, where steps end when they are known
  friend bool operator==(const EarlyStop&, const EarlyStop&) = default;
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
  std::optional<EarlyStop> early_stop;
  // Empty: everything, by our own instruments. Else what a recorder of PyTorch could see: actions ("all_gather"), whose
  // `order` is then in host order and holds no others; "memory" (moments, the peak); "step_time"; "collective_times",
  // "kernel_times" (profiled). The rest is absent.
  std::vector<std::string> observed;
};

// Reasons to doubt the measured step time: the machine was busy, steps had not settled, the median is uncertain. In
// words, most important first.
[[nodiscard]] std::vector<std::string> doubts(const Measurement&);
// The same of any measurement that `ranks` ranks took on a machine: others used it, ranks took turns.
[[nodiscard]] std::vector<std::string> doubts(const MachineState&, std::int64_t ranks);

// "fsdp-plan/measurement/1"; parse(to_json_text(m)) compares equal in every field that is written.
[[nodiscard]] std::string to_json_text(const Measurement&);
[[nodiscard]] Measurement parse_measurement(std::string_view json_text, std::string_view where);

}  // namespace fsdp
