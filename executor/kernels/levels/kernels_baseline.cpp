// The kernels as the rest of the program is compiled.
#include "executor/kernels/levels/host_kernels.h"

namespace {
constexpr fsdp::HostKernels kernels("baseline");
}  // namespace

extern "C" {
extern const fsdp::HostKernelSet* const fsdp_kernels_baseline;
constinit const fsdp::HostKernelSet* const fsdp_kernels_baseline = &kernels;
}
