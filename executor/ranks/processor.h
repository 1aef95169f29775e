// What the host backends run on, in words.
#pragma once

#include <string>

namespace fsdp::host {

[[nodiscard]] std::string processor_name();

// "AMD EPYC, 2 cores, OpenBLAS 0.3.21 (Cooperlake), kernels x86-64-v4": what ranks of this machine compute with.
[[nodiscard]] std::string host_description();

}  // namespace fsdp::host
