// Kernels of the cuda backend on one GPU: matmuls of Llama-3-8B's layers and attention, in TFLOP/s and as a
// part of the card's own best rate, that of the fastest of some large square matmuls in the same run. Times are the
// GPU's, between events, inputs warm.
//
//   cuda_kernels_bench --benchmark_counters_tabular=true
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "executor/cuda/toolkit/kernels/attention/attention.h"
#include "executor/cuda/toolkit/kernels/matmul/matmul_runner.h"

namespace {

using namespace fsdp;

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "cuda_kernels_bench: %s\n", cudaGetErrorString(status));
  std::exit(3);
}

// Random numbers: zeros would draw less power, and the card would run faster than it does in training.
class Memory {
 public:
  explicit Memory(std::int64_t elements) : bytes_(static_cast<std::size_t>(2 * elements)) {
    check(cudaMalloc(&data_, bytes_));
    std::vector<std::uint16_t> bits(bytes_ / 2);
    std::uint32_t state = 12345;
    for (std::uint16_t& b : bits) {
      state = state * 1664525u + 1013904223u;
      b = static_cast<std::uint16_t>((state >> 16 & 0x80ffu) | 0x3f00u);  // bf16 of magnitude 0.5 to 2
    }
    check(cudaMemcpy(data_, bits.data(), bytes_, cudaMemcpyHostToDevice));
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

// Seconds of `work` on the GPU, the mean over some runs of it one behind the other.
template <class Work>
double seconds(const Work& work) {
  constexpr int kRuns = 10;
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
  work();
  check(cudaEventRecord(begin, nullptr));
  for (int i = 0; i < kRuns; ++i) work();
  check(cudaEventRecord(end, nullptr)), check(cudaEventSynchronize(end));
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end));
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return static_cast<double>(milliseconds) * 1e-3 / kRuns;
}

double best_rate = 0;  // flops per second, of the square matmuls, which run first

void report(benchmark::State& state, double flops, const std::function<void()>& work) {
  double total = 0;
  for (auto _ : state) {
    const double s = seconds(work);
    state.SetIterationTime(s);
    total += s;
  }
  const double rate = flops * static_cast<double>(state.iterations()) / total;
  state.counters["TFLOP/s"] = rate * 1e-12;
  if (best_rate > 0) state.counters["of_best"] = rate / best_rate;
}

void matmul(benchmark::State& state, cuda::Matmul p, bool sets_best) {
  p.type = DType::bf16;
  const Memory a(p.m * p.k), b(p.k * p.n), c(p.m * p.n), workspace(16 << 20);
  cuda::MatmulRunner runner(
      cuda::Library::open(cuda::candidates({"libcublasLt.so.13", "libcublasLt.so.12"}, cuda::this_machine())));
  const cuda::MatmulRoom room{.workspace = workspace.data(), .workspace_bytes = 32 << 20};
  const cuda::MatmulCall call{.matmul = p, .a = a.data(), .b = b.data(), .c = c.data()};
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  report(state, flops, [&] { runner.multiply(call, room, nullptr); });
  if (sets_best) best_rate = std::max(best_rate, state.counters["TFLOP/s"].value * 1e12);
}

void attention(benchmark::State& state, std::int32_t dim, std::int32_t length, bool backward) {
  const std::int32_t heads = 4096 / dim, kv_heads = heads / 4, sequences = std::max(1, 8192 / length);
  cuda::AttentionSizes z{.sequences = sequences, .length = length, .heads = heads, .kv_heads = kv_heads, .dim = dim};
  z.q_row = std::int64_t{heads} * dim, z.kv_row = std::int64_t{kv_heads} * dim;
  const std::int64_t tokens = std::int64_t{sequences} * length;
  const Memory q(tokens * z.q_row), k(tokens * z.kv_row), v(tokens * z.kv_row), out(tokens * z.q_row),
      grad_out(tokens * z.q_row);
  const Memory dq(tokens * z.q_row), dk(tokens * z.kv_row), dv(tokens * z.kv_row);
  const Memory lse(2 * cuda::attention_rows(z)), sums(2 * cuda::attention_rows(z));
  const cuda::AttentionForward f{
      .sizes = z, .q = q.data(), .k = k.data(), .v = v.data(), .out = out.data(), .lse = lse.data()};
  cuda::AttentionBackward b{
      .sizes = z, .q = q.data(), .k = k.data(), .v = v.data(), .out = out.data(), .grad_out = grad_out.data()};
  b.lse = lse.data(), b.sums = sums.data(), b.grad_q = dq.data(), b.grad_k = dk.data(), b.grad_v = dv.data();
  cuda::launch_attention_forward(DType::bf16, f, nullptr);
  // Two matmuls of which a causal mask leaves half; backward counts five, as is usual, though these kernels compute
  // seven.
  const double flops = (backward ? 2.5 : 1.0) * 2.0 * static_cast<double>(tokens) * length * heads * dim;
  report(state, flops, [&] {
    if (backward) cuda::launch_attention_backward(DType::bf16, b, nullptr);
    else cuda::launch_attention_forward(DType::bf16, f, nullptr);
  });
}

template <class F, class... A>
void add(const std::string& name, F f, A... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), f, arguments...)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("cuda_kernels_bench: no GPU here");
    return 0;
  }
  for (const std::int64_t n : {4096, 8192, 12288})
    add("best/square/" + std::to_string(n), matmul, cuda::Matmul{.tb = Transpose::yes, .m = n, .n = n, .k = n}, true);
  struct Layer {
    const char* name;
    std::int64_t in, out;
  };
  for (const Layer l : {Layer{"q_proj", 4096, 4096}, Layer{"k_proj", 4096, 1024}, Layer{"gate_proj", 4096, 14336},
                        Layer{"down_proj", 14336, 4096}, Layer{"lm_head", 4096, 128256}}) {
    const std::int64_t tokens = 4096;
    const std::string name = l.name;
    add(name + "/forward", matmul, cuda::Matmul{.tb = Transpose::yes, .m = tokens, .n = l.out, .k = l.in}, false);
    add(name + "/input_gradient", matmul, cuda::Matmul{.m = tokens, .n = l.in, .k = l.out}, false);
    add(name + "/weight_gradient", matmul, cuda::Matmul{.ta = Transpose::yes, .m = l.out, .n = l.in, .k = tokens},
        false);
  }
  for (const std::int32_t dim : {64, 128})
    for (const std::int32_t length : {2048, 8192})
      for (const bool backward : {false, true})
        add("attention/dim" + std::to_string(dim) + "/length" + std::to_string(length) +
                (backward ? "/backward" : "/forward"),
            attention, dim, length, backward);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
