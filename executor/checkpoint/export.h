// A checkpoint's parameters for other programs, as save_pretrained writes them: OUT/config.json, and OUT/
// model.safetensors or several files and model.safetensors.index.json, with the names that the hub has
// (models/hub/tensors.h). Of a model with adapters the adapters alone, as peft writes them: OUT/adapter_config.json and
// OUT/adapter_model.safetensors. Optimizer states stay behind.
//
// A checkpoint that does not keep what its model was built from is written under the names of its tensors, without a
// configuration.
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
  std::int64_t max_file_bytes = 0;  // of tensors, per file (one tensor may be more); 0: one file, as adapters always
  std::function<void(std::int64_t done, std::int64_t all)> progress = {};  // bytes
  std::int64_t part_bytes = std::int64_t{64} << 20;  // of a tensor, held at once; one row may be more
  FileSystem files = machine_file_system();
};
struct Exported {
  std::int64_t tensors = 0, bytes = 0, files = 0;  // files of tensors
  std::string config;                              // the name of the configuration beside them; empty: none
  std::string note;  // for people: what is not there, or loads otherwise than it was trained
};

// Complete or absent: written beside its place and renamed. Memory: a part of one tensor at a time. Throws InputError
// for an output that exists, MachineError when the disk fails.
Exported export_checkpoint(const Checkpoint&, const ExportOptions&);

}  // namespace fsdp
