// Matmuls by cuBLASLt on a GPU.
#include "tests/executor/cuda/matmul_cases.h"
#include "tests/gpu_check/gpu_memory.h"

namespace fsdp::testing {
namespace {

TEST_CASE("products on the GPU agree with the host") {
  if (!gpu_is_here()) return;
  const auto library =
      cuda::Library::open(cuda::candidates({"libcublasLt.so.13", "libcublasLt.so.12"}, cuda::this_machine()));
  unsigned seed = 300;
  for (const MatmulCase& c : matmul_cases()) check_matmul_case(GpuMemory(), library, c, seed += 20);
}

}  // namespace
}  // namespace fsdp::testing
