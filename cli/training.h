// The flags of `run` about training: data, learning rate, initial weights, log.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"
#include "executor/run.h"
#include "executor/training/learning_rate.h"

namespace fsdp::cli {

struct TrainingFlags {
  Text data, data_type, init_from, init_adapters, lr, lr_schedule, lr_warmup, lr_min, lr_steps, log;
};
void add_training_flags(const Command&, TrainingFlags&);

struct TrainingSetup {
  LearningRate rate;               // of every step, flags or not
  std::vector<std::string> notes;  // one sentence each: what was assumed
};
// Sets options.training; options.steps, warmup_steps and training.steps_done count. Everything is opened and checked
// here, before a step is run. Throws InputError.
[[nodiscard]] TrainingSetup apply_training_flags(const TrainingFlags&, const ModelGraph&, const ShardingPlan&,
                                                 RunOptions&);

// What flags alone contradict; before anything is read. `output`: of -o.
void check_training_flags(const TrainingFlags&, const Text& output);

}  // namespace fsdp::cli
