// The folder of a run's checkpoints: one folder per step, complete or absent.
//
//   DIR/step-00000010/              complete: it got this name when everything in it was on the disk
//   DIR/.saving-step-00000020/      being written, or left by a run that was ended; the next save removes it
//   DIR/.removing-step-00000005/    no longer wanted (--keep); likewise
//
// The newest checkpoint is the one of the highest step: there is no pointer that could tear.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executor/checkpoint/file_system.h"
#include "models/input/error.h"

namespace fsdp {

// A checkpoint without its manifest, in `folder`, which says so by its name.
struct DamagedCheckpoint : InputError {
  explicit DamagedCheckpoint(const std::string& folder);
};
// Throws DamagedCheckpoint if `path` is the folder of one step, and there is no manifest in it.
void check_step_folder(const FileSystem&, const std::string& path);

// Steps of which a checkpoint is there, ascending. None if there is no such folder. Throws InputError if it is no
// folder, and DamagedCheckpoint for a step without its manifest: to pass over it would go on from an older one without
// a word.
[[nodiscard]] std::vector<std::int64_t> saved_steps(const FileSystem&, const std::string& directory);

// Makes the folder (and those above it) where it is not there, and keeps other runs from saving into it until the
// result is gone. Throws InputError if it cannot be written, another run has it, or it holds checkpoints of steps after
// `steps_done`.
[[nodiscard]] std::shared_ptr<void> claim_folder(const FileSystem&, const std::string& directory,
                                                 std::int64_t steps_done);

// These throw MachineError naming the file. `begin_saving` removes what earlier runs left and gives the folder to write
// into.
[[nodiscard]] std::string begin_saving(const FileSystem&, const std::string& directory, std::int64_t step);
[[nodiscard]] std::string saving_folder(const std::string& directory, std::int64_t step);
void commit(const FileSystem&, const std::string& directory, std::int64_t step);
void remove_all_but(const FileSystem&, const std::string& directory, std::int64_t newest);  // so many stay
void abandon(const FileSystem&, const std::string& directory,
             std::int64_t step) noexcept;  // removes what was begun, if it can

}  // namespace fsdp
