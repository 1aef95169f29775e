// GPUs and their libraries, asked of the driver in a process of its own: a broken driver may hang or crash it.
#pragma once

#include <string>

#include "cli/doctor/child.h"
#include "cli/doctor/examination.h"

namespace fsdp::cli {

// In that process: asks, and answers as one JSON object.
[[nodiscard]] std::string gpu_answer();
// In the process of `doctor`: what the other one answered, or how it ended.
[[nodiscard]] GpuFindings gpu_findings(const ChildEnd&);

}  // namespace fsdp::cli
