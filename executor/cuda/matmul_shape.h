// Matmuls as the operations want them (row-major) and as cuBLASLt takes them (column-major), as plain data; and
// which matmuls `linear` and `expert_linear` are made of. Needs no CUDA: matmul_runner.cpp hands these descriptions to
// the library, tests interpret them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "executor/kernels/call.h"
#include "executor/kernels/transpose.h"
#include "models/dtype.h"

namespace fsdp::cuda {

// c[m, n] = op(a)[m, k] op(b)[k, n] (+ c) (+ bias[n] on every row), row-major and dense, `batch` of them one after the
// other. An operand whose Transpose is yes is stored as its transpose, as in HostKernelSet::matmul.
struct Matmul {
  DType type = DType::f32;
  Transpose ta = Transpose::no, tb = Transpose::no;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  bool accumulate = false, bias = false;  // never both
  friend auto operator<=>(const Matmul&, const Matmul&) = default;
};
[[nodiscard]] std::string text(const Matmul&);  // "bf16 4096 x 14336 x 4096"

// A matrix as column-major storage: element (i, j) is at i + j * ld.
struct StoredMatrix {
  std::int64_t rows = 0, columns = 0, ld = 0, batch_stride = 0;
  friend bool operator==(const StoredMatrix&, const StoredMatrix&) = default;
};

// d = op(first) op(second) (+ d) (+ bias on every column). Row-major c is column-major c^T = op(b)^T op(a)^T: `first`
// is the matmul's b.
struct ColumnMajorMatmul {
  bool transpose_first = false, transpose_second = false;
  StoredMatrix first, second, d;
  std::int64_t batch = 1;
};
[[nodiscard]] ColumnMajorMatmul column_major(const Matmul&);

// What an algorithm is chosen for, once: the matmul, how far its addresses are aligned, and what the GPU is to be used
// for.
struct MatmulKey {
  Matmul matmul;
  std::uint32_t align_a = 0, align_b = 0, align_c = 0;  // bytes: powers of two up to 256; c: and a bias in the epilogue
  bool bias_in_epilogue = false;  // its address allows it: the library reads it 16 bytes at a time
  int multiprocessors = 0;        // that the matmul should count on; 0: all
  bool tf32 = false;              // fp32 matmuls may round their operands to TF32
  friend auto operator<=>(const MatmulKey&, const MatmulKey&) = default;
};
[[nodiscard]] std::uint32_t alignment(const void*);  // the largest power of two up to 256 that divides the address

struct MatmulCall {
  Matmul matmul;
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
};
[[nodiscard]] MatmulKey key_of(const MatmulCall&, int multiprocessors, bool tf32);

// to[c] (+)= sum over rows of from[row, c].
struct ColumnSumCall {
  DType type = DType::f32;
  const void* from = nullptr;
  std::int64_t rows = 0, columns = 0;
  void* to = nullptr;
  bool accumulate = false;
};
// The part of a workspace that starts at a multiple of 256 bytes, as the library wants it; always 256 bytes less than
// all of it, so that what is chosen does not depend on where it lies.
struct AlignedRoom {
  void* data = nullptr;
  std::int64_t bytes = 0;
};
[[nodiscard]] AlignedRoom aligned_room(void* workspace, std::int64_t bytes);

struct LinearCalls {  // in this order
  std::vector<MatmulCall> matmuls;
  std::vector<ColumnSumCall> sums;
};
// Forward y = x W^T + b; backward dx = dy W, dW = dy^T x, db = column sums of dy, each where wanted (W transposed: y =
// x W + b and so on). Of experts: one matmul over all their slots, batched. MachineError for buffers of other sizes
// than the model's.
[[nodiscard]] LinearCalls linear_forward_calls(DType, const Call&);
[[nodiscard]] LinearCalls linear_backward_calls(DType, const Call&);
[[nodiscard]] LinearCalls expert_linear_forward_calls(DType, const Call&);
[[nodiscard]] LinearCalls expert_linear_backward_calls(DType, const Call&);

}  // namespace fsdp::cuda
