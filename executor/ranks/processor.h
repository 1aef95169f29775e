// Describes the processor that the host backends run on.
#pragma once

#include <string>

namespace fsdp::host {

[[nodiscard]] std::string processor_name();

// "AMD EPYC, 2 cores, OpenBLAS 0.3.21 (Cooperlake), kernels x86-64-v4".
[[nodiscard]] std::string host_description();

}  // namespace fsdp::host
