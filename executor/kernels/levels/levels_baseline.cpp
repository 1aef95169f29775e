// A build with one compilation of the kernels.
#include "executor/kernels/host_kernel_set.h"

extern "C" const fsdp::HostKernelSet* const fsdp_kernels_baseline;

namespace fsdp {

std::span<const HostKernelSet* const> host_kernel_sets() {
  static const HostKernelSet* const sets[] = {fsdp_kernels_baseline};
  return sets;
}

}  // namespace fsdp
