// Compiled with -march=x86-64-v3 alone.
#include "executor/kernels/levels/table.h"

extern "C" {
extern const fsdp::KernelTable fsdp_kernels_x86_64_v3;
constinit const fsdp::KernelTable fsdp_kernels_x86_64_v3 = fsdp::table_of_this_compilation("x86-64-v3");
}
