// The kernels as the rest of the program is compiled.
#include "executor/kernels/levels/table.h"

extern "C" {
extern const fsdp::KernelTable fsdp_kernels_baseline;
constinit const fsdp::KernelTable fsdp_kernels_baseline = fsdp::table_of_this_compilation("baseline");
}
