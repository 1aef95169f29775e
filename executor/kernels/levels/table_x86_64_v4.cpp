// Compiled with -march=x86-64-v4 alone.
#include "executor/kernels/levels/table.h"

extern "C" {
extern const fsdp::KernelTable fsdp_kernels_x86_64_v4;
constinit const fsdp::KernelTable fsdp_kernels_x86_64_v4 = fsdp::table_of_this_compilation("x86-64-v4");
}
