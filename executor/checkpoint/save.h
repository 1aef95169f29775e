// Saving a run: every rank writes its share into a folder beside the others, and when all of it is on the disk one
// rename makes it a checkpoint. What fails or ends in between leaves the checkpoints that were there before.
//
//   const auto claim = claim_folder(options.files, options.directory, 0);     // where the leading process starts
//   run_options.after_step = checkpoint_saver(model, plan, options);          // RunOptions of run.h
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "executor/checkpoint/file_system.h"
#include "executor/checkpoint/model_source.h"
#include "executor/checkpoint/rank_state.h"
#include "planner/plan.h"

namespace fsdp {

struct SaveOptions {
  std::string directory;
  std::int64_t every = 0;  // steps between two checkpoints; the run's last step is saved in any case
  std::int64_t keep = 0;   // so many of the newest stay; 0: all
  std::int64_t steps_before = 0, sequences_before = 0;  // Training's, where the run starts
  std::int64_t block_bytes = std::int64_t{1} << 20;     // of a box, per checksum
  FileSystem files = machine_file_system();
  ModelSource source = {};  // of the model, for `checkpoint export`; empty: not kept
};

// Writes a checkpoint of this step, whatever `every` says; every rank calls it. Throws MachineError naming the file, on
// all ranks.
void save_checkpoint(const RankState&, const ModelGraph&, const ShardingPlan&, const SaveOptions&);

// Saves when it is time to. Throws InputError for plans that cannot be saved.
[[nodiscard]] std::function<void(const RankState&)> checkpoint_saver(const ModelGraph&, const ShardingPlan&,
                                                                     SaveOptions);

}  // namespace fsdp
