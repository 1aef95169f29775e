// Compiled with -march=x86-64-v3 alone.
#include "executor/kernels/levels/host_kernels.h"

namespace {
constexpr fsdp::HostKernels kernels("x86-64-v3");
}  // namespace

extern "C" {
extern const fsdp::HostKernelSet* const fsdp_kernels_x86_64_v3;
constinit const fsdp::HostKernelSet* const fsdp_kernels_x86_64_v3 = &kernels;
}
