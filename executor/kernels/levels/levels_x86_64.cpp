// x86-64: the levels v4 and v3 of its psABI, where the processor and the system have them, and the baseline.
#include <array>

#include "executor/kernels/host_kernel_set.h"

extern "C" {
extern const fsdp::HostKernelSet* const fsdp_kernels_baseline;
extern const fsdp::HostKernelSet* const fsdp_kernels_x86_64_v3;
extern const fsdp::HostKernelSet* const fsdp_kernels_x86_64_v4;
}

namespace fsdp {
namespace {

// What each level adds that compilers use. The builtin also asks the system whether it keeps the wider registers.
bool has_v3() {
  return __builtin_cpu_supports("avx") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}
bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

std::span<const HostKernelSet* const> host_kernel_sets() {
  static const std::array<const HostKernelSet*, 3> all = {fsdp_kernels_x86_64_v4, fsdp_kernels_x86_64_v3,
                                                          fsdp_kernels_baseline};
  return std::span(all).subspan(has_v4() ? 0 : has_v3() ? 1 : 2);
}

}  // namespace fsdp
