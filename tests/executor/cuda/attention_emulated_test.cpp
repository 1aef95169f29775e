// Attention's CUDA kernels on the processor (cuda.h) against the host's kernel. The same cases run on a GPU in
// executor_cuda_attention_test.
// First: it defines what .cuh files take for granted.
#include "tests/fakes/emulated/cuda.h"

#include "executor/cuda/toolkit/kernels/attention/attention_launch.cuh"
#include "tests/executor/cuda/attention_cases.h"

namespace fsdp::testing {
namespace {

// Device memory is the host's.
struct Emulator {
  std::uint64_t seed = 1;
  BufferView to_device(BufferView v) { return v; }
  void to_host(BufferView, BufferView) {}
  void forward(DType type, const cuda::AttentionForward& a) const { cuda::forward_attention(type, a, *this); }
  void backward(DType type, const cuda::AttentionBackward& a) const { cuda::backward_attention(type, a, *this); }

  template <class Argument>
  void operator()(void (*kernel)(Argument), dim3 grid, int threads, int shared_bytes, const Argument& argument) const {
    const dim3 block{static_cast<unsigned>(threads)};
    emulation::emulate(
        grid, block, static_cast<std::size_t>(shared_bytes), [&] { kernel(argument); }, seed);
  }
};

TEST_CASE("attention, forward and backward, agrees with the host") {
  Emulator machine;
  unsigned seed = 1000;
  for (const AttentionCase& c : attention_cases()) check_attention_case(machine, c, seed += 100);
}

TEST_CASE("results do not depend on which threads and blocks go first") {
  const AttentionCase c{.type = DType::bf16, .dim = 64, .length = 129, .heads = 2, .kv_heads = 1};
  AttentionProblem p(c, 5);
  Emulator one{1}, other{2};
  const AttentionResult a = run_attention(one, c, p), b = run_attention(other, c, p);
  CHECK(a.out == b.out);
  CHECK(a.lse == b.lse);
  CHECK(a.gradients == b.gradients);
}

TEST_CASE("shared memory fits every GPU from sm_80 on, whose least is 99 KiB a block") {
  constexpr int kMost = 99 << 10;
  static_assert(cuda::ForwardTiles<64>::kBytes <= kMost && cuda::ForwardTiles<128>::kBytes <= kMost);
  static_assert(cuda::BackwardTiles<64>::kBytes <= kMost && cuda::BackwardTiles<128>::kBytes <= kMost);
}

TEST_CASE("sizes that no kernel takes are refused") {
  Emulator machine;
  const auto refused = [&](cuda::AttentionSizes z) {
    cuda::AttentionForward a;
    a.sizes = z;
    CHECK_THROWS_AS(machine.forward(DType::bf16, a), MachineError);
  };
  refused({.sequences = 1, .length = 4, .heads = 1, .kv_heads = 1, .dim = 257});
  refused({.sequences = 1, .length = 4, .heads = 3, .kv_heads = 2, .dim = 64});
  refused({.sequences = 1, .length = (1 << 24) + 1, .heads = 1, .kv_heads = 1, .dim = 64});
  refused({.sequences = 1, .length = 0, .heads = 1, .kv_heads = 1, .dim = 64});
  refused({.sequences = 1, .length = 4, .heads = 1, .kv_heads = 1, .dim = 64, .window = 2, .causal = false});
}

}  // namespace
}  // namespace fsdp::testing
