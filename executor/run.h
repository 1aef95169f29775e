// Executing a Program: real training on a Backend, measured by its instruments.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/backend.h"
#include "executor/checkpoint/rank_state.h"
#include "executor/training_inputs.h"
#include "planner/job.h"
#include "planner/program.h"
#include "simulator/records/measurement.h"

namespace fsdp {

// What is known of a step as soon as it is over. `loss`: the mean over the global batch, before this step's update.
struct StepReport {
  int done = 0, total = 0;  // steps of this run, warm-up included
  double loss = 0, seconds = 0;
};

// How long a run is, and what it trains on (`training`).
struct RunOptions {
  int warmup_steps = 2;  // at least 1: the first step is never measured
  int steps = 5;         // measured; with `until_noise`: at most, and at least kFewestToSettle
  bool single = false;   // steps is 0: the first step alone runs, to train, and there is no measurement
  // Measure until half the 95 % confidence interval of the median step time is at most this fraction of it. The warm-up
  // then ends where step times have settled, after `warmup_steps` or later (simulator/records/step_statistics.h).
  std::optional<double> until_noise;
  Training training;
  // On every rank after each step, its streams idle, outside of what is timed; the same steps on all ranks (it may use
  // Device::exchange).
  std::function<void(const RankState&)> after_step;
  // On every rank after each step from the second on (the first that can be measured): why the run should end here, or
  // empty. When one rank says so, all end after this step: the last one that `after_step` sees. Empty: not asked.
  std::function<std::string()> asked_to_stop;
  bool keep_parameters = false;  // return the final full parameters and first-step gradients (tests)
  // For tests. `mutate` changes the program of one rank before its arena is laid out (mutants); `in_kernel` runs inside
  // every kernel, metered with it (planted heap use, a throw, a standstill).
  std::function<void(Program&, std::int64_t rank)> mutate;
  std::function<void(const Operation&, std::int64_t rank)> in_kernel;
  std::function<void(const StepReport&)> progress;  // called by the thread of rank 0, in the process of rank 0
};

struct NamedTensor {  // a full (unsharded) tensor, as fp64
  std::string name;
  std::vector<double> values;
};
struct RunResult {
  std::optional<EarlyStop> early_stop;       // in every process
  Measurement measurement;                   // of all ranks; where they are processes, only that of rank 0 has it
  std::vector<NamedTensor> parameters;       // after the last step, if asked for
  std::vector<NamedTensor> first_gradients;  // of the first step (after averaging, before clipping), if asked for
};

// Lays out each rank's program in its arena, proves it free of races and runs it. The job's cluster is what the
// measurement says that it ran on. Throws InputError for a job that this backend cannot run (implementation, ranks,
// ops, dtypes), InternalError for a race, MachineError when the machine fails or an instrument finds the program wrong.
[[nodiscard]] RunResult run(Programs&, Backend&, const RunOptions& = {});

// May a process whose run failed end as usual? False where ranks are threads of it: a thread that could not be ended
// may be left, and what libraries do at exit would wait for it.
[[nodiscard]] bool may_exit_after_failure(const Backend&);

}  // namespace fsdp
