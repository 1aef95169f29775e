// Matmuls on fp32 or fp64 with leading dimensions and factors: what HostKernels::matmul and the attention kernel are
// built from. One definition in matmul_openblas.cpp or matmul_eigen.cpp; CMake compiles one of them.
#pragma once

#include <cstdint>

#include "executor/arithmetic/element.h"
#include "executor/backend.h"
#include "executor/kernels/transpose.h"

namespace fsdp {

// A matrix as it is stored: row-major, `stride` elements from row to row; transposed: the matmul uses its transpose.
template <class M>
struct Operand {
  const M* data = nullptr;
  std::int64_t stride = 0;
  Transpose transpose = Transpose::no;
};

// c[m, n] = alpha * a[m, k] * b[k, n] + beta * c, one thread. beta 0: c is not read.
void matmul(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Operand<float> a, Operand<float> b, float beta,
            float* c, std::int64_t c_stride);
void matmul(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, Operand<double> a, Operand<double> b,
            double beta, double* c, std::int64_t c_stride);

// How many threads the library would use for the next matmul; 1 once the first has run.
[[nodiscard]] int library_threads();
// For benchmarks of one rank: later matmuls may use so many, where the library can.
void use_library_threads(int threads);

// HostKernels::matmul for a known storage type.
template <class T>
void multiply(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, T* c,
              bool accumulate, BufferView scratch);

}  // namespace fsdp
