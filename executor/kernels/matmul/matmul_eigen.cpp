// Matmuls by Eigen alone, where the distribution has no OpenBLAS.
#include <Eigen/Core>
#include <algorithm>
#include <string>

#include "executor/kernels/host_kernel_set.h"
#include "executor/kernels/matmul/matmul.h"

namespace fsdp {
namespace {

constexpr std::int64_t kColumns = 1024,
                       kDepth = 512;  // of one call into Eigen, so that its packing buffers stay bounded

template <class M>
using Matrix =
    Eigen::Map<const Eigen::Matrix<M, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;
template <class M>
using Result = Eigen::Map<Eigen::Matrix<M, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;

// The part [rows, columns] of an operand as the matmul sees it, starting at (row, column), in its stored orientation.
template <class M>
Matrix<M> part(const Operand<M>& x, std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
  if (x.transpose == Transpose::yes)
    return Matrix<M>(x.data + column * x.stride + row, columns, rows, Eigen::OuterStride<>(x.stride));
  return Matrix<M>(x.data + row * x.stride + column, rows, columns, Eigen::OuterStride<>(x.stride));
}

template <class M>
void add_matmul(M alpha, const Operand<M>& a, const Matrix<M>& pa, const Operand<M>& b, const Matrix<M>& pb,
                Result<M> c) {
  const bool ta = a.transpose == Transpose::yes, tb = b.transpose == Transpose::yes;
  if (ta && tb) c.noalias() += alpha * (pa.transpose() * pb.transpose());
  else if (ta) c.noalias() += alpha * (pa.transpose() * pb);
  else if (tb) c.noalias() += alpha * (pa * pb.transpose());
  else c.noalias() += alpha * (pa * pb);
}

template <class M>
void add_all(std::int64_t m, std::int64_t n, std::int64_t k, M alpha, const Operand<M>& a, const Operand<M>& b, M beta,
             M* c, std::int64_t c_stride) {
  Result<M> all(c, m, n, Eigen::OuterStride<>(c_stride));
  if (beta == M(0)) all.setZero();
  else if (beta != M(1)) all *= beta;
  for (std::int64_t j = 0; j < n; j += kColumns) {
    const std::int64_t columns = std::min(kColumns, n - j);
    for (std::int64_t l = 0; l < k; l += kDepth) {
      const std::int64_t depth = std::min(kDepth, k - l);
      add_matmul(alpha, a, part(a, 0, l, m, depth), b, part(b, l, j, depth, columns),
                 Result<M>(c + j, m, columns, Eigen::OuterStride<>(c_stride)));
    }
  }
}

}  // namespace

void matmul(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Operand<float> a, Operand<float> b, float beta,
            float* c, std::int64_t c_stride) {
  add_all(m, n, k, alpha, a, b, beta, c, c_stride);
}

void matmul(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, Operand<double> a, Operand<double> b,
            double beta, double* c, std::int64_t c_stride) {
  add_all(m, n, k, alpha, a, b, beta, c, c_stride);
}

int library_threads() { return Eigen::nbThreads(); }
void use_library_threads(int) {}  // has none of its own

std::string_view host_matmul_library() {
  static const std::string text = "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." +
                                  std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION);
  return text;
}

// Eigen packs one panel of each operand: at most kDepth * kColumns of b and kDepth * 1024 rows of a, in fp64, with room
// to align.
std::int64_t host_matmul_library_workspace(std::int64_t) { return 2 * kDepth * kColumns * 8 + 4096; }

}  // namespace fsdp
