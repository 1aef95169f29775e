// A checkpoint's parameters as plain safetensors with their own names (those of the Hugging Face model that it came
// from), for other programs: OUT/model.safetensors, or several files and model.safetensors.index.json. Optimizer states
// stay behind.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "executor/checkpoint/checkpoint.h"

namespace fsdp {

struct ExportOptions {
  std::string output;               // a folder that is not there yet
  std::optional<DType> dtype = {};  // of all tensors; empty: as they were saved
  std::int64_t max_file_bytes = 0;  // of tensors, per file (one tensor may be more); 0: one file
  std::function<void(std::int64_t done, std::int64_t all)> progress = {};  // bytes
  FileSystem files = machine_file_system();
};
struct Exported {
  std::int64_t tensors = 0, bytes = 0, files = 0;
};

// Complete or absent: written beside its place and renamed. Memory: a part of one tensor at a time, at most some 64
// MiB. Throws InputError for an output that exists, MachineError when the disk fails.
Exported export_checkpoint(const Checkpoint&, const ExportOptions&);

}  // namespace fsdp
