// A checkpoint on disk, opened and checked; any box of any of its tensors can be read.
//
//   const auto saved = std::make_shared<const Checkpoint>("ckpt");            // the newest of DIR/step-*, or a step's
//                                                                             folder itself
//   check_resumable(*saved, model, plan);                                     // any mesh, any wrap policy
//   resume_from(saved, run_options.training);
//
// Opening reads the manifest and the headers of the files; all of it must be there and fit together before anything is
// loaded. Data is verified as it is read: only the blocks that a box touches. Nothing on disk is ever changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "executor/checkpoint/box.h"
#include "executor/checkpoint/file_system.h"
#include "executor/checkpoint/manifest.h"
#include "executor/training_inputs.h"

namespace fsdp {

// The folder of a step: `path` itself, or the newest below it. Throws InputError if there is none, DamagedCheckpoint
// (executor/checkpoint/folder.h) if one has no manifest.
[[nodiscard]] std::string checkpoint_folder(const std::string& path, const FileSystem& files = machine_file_system());

class Checkpoint {
 public:
  // Throws InputError naming the file for everything that is missing, cut short, mixed up, or not a checkpoint.
  explicit Checkpoint(const std::string& path, FileSystem files = machine_file_system());

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] const SavedTensor* find(std::string_view tensor) const;  // null: not there

  // Elements of the box, row-major, as the tensor's own type. Throws InputError naming file and tensor where bytes do
  // not match their checksums. Called by several threads at once.
  void read(const SavedTensor&, const Box& wanted, std::span<std::byte> to) const;

  // Reads everything. `progress`: bytes so far.
  void verify(const std::function<void(std::int64_t done, std::int64_t all)>& progress = {}) const;

 private:
  void check_file(const SavedFile&, std::int64_t index) const;
  [[nodiscard]] std::string explain_header(const std::string& header, std::int64_t index) const;
  void read_box(const SavedTensor&, const SavedBox&, const Box& part, const Box& wanted, std::span<std::byte> to) const;
  FileSystem files_;
  std::string folder_;
  Manifest manifest_;
  std::unordered_map<std::string_view, const SavedTensor*> by_name_;  // into manifest_
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
};

// Throws InputError unless a run of this plan can go on from the checkpoint: the same model, every tensor of the right
// shape and type, the same optimizer, seed and sequence length. Mesh, units, micro-batches and everything else are
// free.
void check_resumable(const Checkpoint&, const ModelGraph&, const ShardingPlan&);

// Makes a run start from it: state, steps done, place in the data.
void resume_from(const std::shared_ptr<const Checkpoint>&, Training&);

}  // namespace fsdp
