// manifest.json of a checkpoint: what was saved, where each box of each tensor lies, and what its bytes must be.
//
// One folder per step, DIR/step-00000010, holds rank-00000.safetensors ... (one per rank of the run that saved) and
// manifest.json. Tensors: a parameter under its name, AdamW's moments as "optimizer.exp_avg.NAME" and
// "optimizer.exp_avg_sq.NAME", SGD's momentum as "optimizer.momentum_buffer.NAME" (state_names of planner/optimizer.h),
// in the plan's master dtype. Every element of every tensor lies in exactly one box:
// replicas hold the same, one of them writes it. Checksums: CRC-32C of every `block_bytes` bytes of a box (its last
// block may be shorter), so that a part can be read and verified.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "executor/checkpoint/box.h"
#include "executor/checkpoint/model_source.h"
#include "models/dtype.h"
#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

struct SavedFile {
  std::string name;
  std::int64_t bytes = 0, header_bytes = 0;  // header: the safetensors header and the 8 bytes of its length
  std::uint32_t header_checksum = 0;
  friend bool operator==(const SavedFile&, const SavedFile&) = default;
};

struct SavedBox {
  std::int32_t file = 0;  // index into files
  Box box;
  std::int64_t begin = 0, bytes = 0;     // in the file
  std::vector<std::uint32_t> checksums;  // one per block
  friend bool operator==(const SavedBox&, const SavedBox&) = default;
};

struct SavedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<SavedBox> boxes;
  friend bool operator==(const SavedTensor&, const SavedTensor&) = default;
};

struct Manifest {
  std::string model, model_digest, plan_digest;
  ModelSource source;
  std::int64_t step = 0;                    // training steps done
  std::int64_t sequences = 0, seq_len = 0;  // of data, taken by those steps
  std::uint64_t seed = 0;
  OptimizerKind optimizer = OptimizerKind::adamw;
  std::vector<MeshDim> mesh;  // of the run that saved
  std::int64_t block_bytes = 0;
  std::vector<SavedFile> files;
  std::vector<SavedTensor> tensors;
  friend bool operator==(const Manifest&, const Manifest&) = default;

  [[nodiscard]] const SavedTensor* find(std::string_view tensor) const;  // null: not there
  [[nodiscard]] std::int64_t tensor_bytes() const;
};

// parse_manifest(to_json_text(m), "manifest.json") == m. The text ends with its own checksum. parse_manifest throws
// InputError for anything that is not a whole manifest: a wrong checksum, unknown fields, boxes that overlap, leave
// holes, or do not fit their file.
[[nodiscard]] std::string to_json_text(const Manifest&);
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& where);

[[nodiscard]] std::string name_of(const Parameter&, StatePart, OptimizerKind);  // of the tensor
[[nodiscard]] bool is_optimizer_state(std::string_view tensor);
[[nodiscard]] std::string rank_file_name(std::int64_t rank);    // "rank-00003.safetensors"
[[nodiscard]] std::string step_folder_name(std::int64_t step);  // "step-00000010"

inline constexpr std::int64_t kMaxSavedStep = std::int64_t{1} << 53;
inline constexpr const char* kManifestName = "manifest.json";

}  // namespace fsdp
