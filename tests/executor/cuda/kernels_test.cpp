// The CUDA kernels on a GPU, against the host's: the cases that executor_cuda_kernels_emulated_test runs, and larger
// ones. The memory that both touch is pinned.
#include "executor/cuda/toolkit/kernels/stream_kernels.h"
#include "tests/executor/cuda/cuda_op_cases.h"
#include "tests/executor/cuda/kernel_set_cases.h"
#include "tests/gpu_check/gpu_memory.h"

namespace fsdp::testing {
namespace {

class Gpu {
 public:
  [[nodiscard]] Subject subject() const {
    return {*kernels_, native_cuda_implementation(),
            [](std::int64_t bytes) {
              void* p = nullptr;
              require(cudaHostAlloc(&p, static_cast<std::size_t>(bytes), cudaHostAllocDefault));
              return std::shared_ptr<std::byte>(static_cast<std::byte*>(p), [](std::byte* b) { cudaFreeHost(b); });
            },
            [] { require(cudaDeviceSynchronize()); }};
  }

 private:
  cuda::KernelContext context_;
  std::unique_ptr<cuda::StreamKernels> kernels_ = std::make_unique<cuda::StreamKernels>(nullptr, context_);
};

TEST_CASE("every kernel on the GPU agrees with the host's") {
  if (!gpu_is_here()) return;
  const Gpu gpu;
  const Subject s = gpu.subject();
  for (const auto& cases :
       {elementwise_cases(), norm_cases(), embedding_cases(), rotary_cases(), cross_entropy_cases(), moe_cases()})
    for (const CudaOpCase& c : cases) check_op(s, c);
  check_conversions(s);
  check_layouts(s);
  check_updates(s);
  check_clipping(s);
  check_data(s);
}

TEST_CASE("kernels on the GPU equal the host's at the sizes of real models") {
  if (!gpu_is_here()) return;
  const Gpu gpu;
  for (const CudaOpCase& c :
       {elementwise_case(OpKind::swiglu, {.width = 14336}, 100),
        elementwise_case(OpKind::gelu, {.width = 12288, .tanh = true}, 100),
        norm_case(OpKind::rms_norm, 4096, 1, 1000, false), norm_case(OpKind::rms_norm, 128, 32, 500, false),
        norm_case(OpKind::layer_norm, 8192, 1, 300, true), table_case(32000, 256, 9001, 20000),
        table_case(97, 256, 9001, 3)})
    for (const DType type : {DType::f32, DType::bf16}) check_op(gpu.subject(), c, {.type = type});
}

TEST_CASE("kernels on the GPU give the same bits every time") {
  if (!gpu_is_here()) return;
  const Gpu gpu;
  for (const auto& cases :
       {norm_cases(), embedding_cases(), std::vector{table_case(97, 256, 9001, 3)}, cross_entropy_cases(), moe_cases()})
    for (const CudaOpCase& c : cases) {
      CAPTURE(c.name);
      const CudaOpResult a = run_op(gpu.subject(), c, {}), b = run_op(gpu.subject(), c, {});
      CHECK(a.outputs == b.outputs);
      CHECK(a.grad_inputs == b.grad_inputs);
      CHECK(a.grad_params == b.grad_params);
    }
}

}  // namespace
}  // namespace fsdp::testing
