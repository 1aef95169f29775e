// A build with one compilation of the kernels.
#include "executor/kernels/levels/table.h"

extern "C" const fsdp::KernelTable fsdp_kernels_baseline;

namespace fsdp {

std::span<const KernelTable* const> kernel_tables() {
  static const KernelTable* const tables[] = {&fsdp_kernels_baseline};
  return tables;
}

}  // namespace fsdp
