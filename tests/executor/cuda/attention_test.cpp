// Attention's kernels on a GPU against the host's kernel: the cases of executor_cuda_attention_emulated_test, and
// longer ones.
#include "tests/executor/cuda/attention_cases.h"
#include "tests/gpu_check/gpu_memory.h"

namespace fsdp::testing {
namespace {

struct Gpu : GpuMemory {
  void forward(DType type, const cuda::AttentionForward& a) const { cuda::launch_attention_forward(type, a, nullptr); }
  void backward(DType type, const cuda::AttentionBackward& a) const {
    cuda::launch_attention_backward(type, a, nullptr);
  }
};

TEST_CASE("attention on the GPU, forward and backward, agrees with the host") {
  if (!gpu_is_here()) return;
  unsigned seed = 7000;
  std::vector<AttentionCase> cases = attention_cases();
  using enum DType;
  cases.push_back({.type = bf16, .dim = 128, .length = 777, .heads = 8, .kv_heads = 2, .sequences = 2});
  cases.push_back({.type = f16, .dim = 64, .length = 1025, .heads = 4, .kv_heads = 4, .packed = true});
  cases.push_back(
      {.type = bf16, .dim = 128, .length = 1000, .heads = 2, .kv_heads = 1, .window = 300, .accumulate = true});
  cases.push_back({.type = f32, .dim = 96, .length = 300, .heads = 4, .kv_heads = 2});
  for (const AttentionCase& c : cases) {
    Gpu gpu;
    check_attention_case(gpu, c, seed += 100);
  }
}

TEST_CASE("attention on the GPU gives the same bits every time") {
  if (!gpu_is_here()) return;
  const AttentionCase c{.type = DType::bf16, .dim = 128, .length = 1024, .heads = 4, .kv_heads = 2};
  AttentionProblem p(c, 5);
  Gpu gpu;
  const AttentionResult first = run_attention(gpu, c, p);
  for (int i = 0; i < 10; ++i) {
    const AttentionResult again = run_attention(gpu, c, p);
    CHECK(first.out == again.out);
    CHECK(first.lse == again.lse);
    CHECK(first.gradients == again.gradients);
  }
}

}  // namespace
}  // namespace fsdp::testing
