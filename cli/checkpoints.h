// The flags of `run` about checkpoints, and what they make of a run.
#pragma once

#include <memory>
#include <string>

#include "cli/options.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/checkpoint/model_source.h"
#include "executor/run.h"

namespace fsdp::cli {

struct CheckpointFlags {
  Text save, every, keep, resume;
  bool fresh_if_none = false;
};
void add_checkpoint_flags(const Command&, CheckpointFlags&);

// What a run holds on to while it lasts.
struct RunCheckpoints {
  std::shared_ptr<void> claim;                        // of the folder that it saves into
  std::shared_ptr<std::optional<InputError>> damage;  // the first file that a rank found damaged while it loaded
  std::string resumed;                                // "ckpt/step-00000010", or empty
};
// What --resume finds; null: training starts anew. Throws InputError.
[[nodiscard]] std::shared_ptr<const Checkpoint> checkpoint_to_resume(const CheckpointFlags&, const ModelGraph&,
                                                                     const ShardingPlan&);
// `resumes`: from what --resume has found. `source`: what the model is built from, which is saved with it. Sets where
// the run starts and what it does after steps. Everything is checked that can be before a step is run; what one rank
// finds, all do. Throws InputError.
[[nodiscard]] RunCheckpoints apply_checkpoint_flags(const CheckpointFlags&,
                                                    const std::shared_ptr<const Checkpoint>& resumes, const ModelGraph&,
                                                    const ModelSource&, const ShardingPlan&, Backend&, RunOptions&);
// A run that failed because what it loaded is damaged: bad input, not a failing machine.
void rethrow_damage(const RunCheckpoints&);

}  // namespace fsdp::cli
