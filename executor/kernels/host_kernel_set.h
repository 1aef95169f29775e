// The host's kernels. They work on host memory, at once, on the calling thread.
//
//   host_kernel_set().convert(DType::f32, from, DType::bf16, to, n, false);
//
// Storage type is double, float, bf16 or fp16 (structs BFloat16, Float16); arithmetic is double for double and float
// otherwise. Loops are written for the compiler's vectoriser; matmuls go through the BLAS that the build found. No
// kernel allocates: scratch is an argument.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "executor/kernels/kernel_set.h"
#include "executor/kernels/transpose.h"

namespace fsdp {

class HostKernelSet : public KernelSet {
 public:
  // The instruction set that it was compiled for: "x86-64-v4", "x86-64-v3", "baseline". Results differ in their last
  // bits between instruction sets, because some fuse a multiplication with an addition.
  [[nodiscard]] std::string_view instructions() const { return instructions_; }

  // c[m, n] (+)= a[m, k] * b[k, n], row-major, with either operand transposed in storage. One thread. `scratch`:
  // host_matmul_scratch_bytes.
  virtual void matmul(DType, Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, const void* a,
                      const void* b, void* c, bool accumulate, BufferView scratch) const = 0;

 protected:
  explicit constexpr HostKernelSet(std::string_view instructions) : instructions_(instructions) {}
  ~HostKernelSet() = default;

 private:
  std::string_view instructions_;
};

// The set that this process uses: the best that the processor can run, or the one that the environment variable
// FSDP_PLAN_INSTRUCTIONS names. InputError if the named one is not in this program or not in this processor. Takes no
// heap.
[[nodiscard]] const HostKernelSet& host_kernel_set();
// All sets that this program holds and this processor can run: the best first, the baseline last.
[[nodiscard]] std::span<const HostKernelSet* const> host_kernel_sets();

// Scratch of a matmul. bf16 and fp16 are multiplied in fp32 tiles; 0 for fp64 and fp32. The order of m, n and k does
// not matter.
[[nodiscard]] std::int64_t host_matmul_scratch_bytes(DType type, std::int64_t m, std::int64_t n, std::int64_t k);
// "OpenBLAS 0.3.21 (Cooperlake)", with the processor it works for; "Eigen 3.4.0".
[[nodiscard]] std::string_view host_matmul_library();
// Heap that the library itself may take inside a matmul whose longest extent is `longest`, beside declared buffers.
[[nodiscard]] std::int64_t host_matmul_library_workspace(std::int64_t longest);

}  // namespace fsdp
