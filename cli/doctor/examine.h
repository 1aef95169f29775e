// Looks at this machine. Everything that may hang or crash is asked in a process of its own, with a time limit.
#pragma once

#include <optional>
#include <string>

#include "cli/doctor/examination.h"

namespace fsdp::cli {

inline constexpr const char* kAskGpus = "--ask-gpus";  // of `doctor`, in a process of its own

// `costs`: a file; empty: costs.json of this folder, where there is one. Throws InputError for a named file that cannot
// be read.
[[nodiscard]] Examination examine(const std::optional<std::string>& costs, double seconds);

}  // namespace fsdp::cli
