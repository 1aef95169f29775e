// Matmuls by the distribution's OpenBLAS.
#include <cblas.h>

#include <algorithm>
#include <limits>
#include <string>

#include "executor/kernels/host_kernel_set.h"
#include "executor/kernels/matmul/matmul.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

// Ranks are threads of one process, so the library must not start threads of its own: set before the first matmul,
// once.
void one_thread() {
  static const bool set = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(set);
}

blasint dimension(std::int64_t n) {
  if (n > std::numeric_limits<blasint>::max())
    throw MachineError("matrix product: a dimension of " + std::to_string(n) + " is more than this OpenBLAS can index");
  return static_cast<blasint>(n);
}

template <class M>
CBLAS_TRANSPOSE order(const Operand<M>& x) {
  return x.transpose == Transpose::yes ? CblasTrans : CblasNoTrans;
}

// The interface wants strides >= 1 even for empty matrices.
template <class M>
blasint stride(const Operand<M>& x) {
  return dimension(x.stride > 0 ? x.stride : 1);
}

}  // namespace

void matmul(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Operand<float> a, Operand<float> b, float beta,
            float* c, std::int64_t c_stride) {
  if (m == 0 || n == 0) return;
  one_thread();
  cblas_sgemm(CblasRowMajor, order(a), order(b), dimension(m), dimension(n), dimension(k), alpha, a.data, stride(a),
              b.data, stride(b), beta, c, dimension(c_stride));
}

void matmul(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, Operand<double> a, Operand<double> b,
            double beta, double* c, std::int64_t c_stride) {
  if (m == 0 || n == 0) return;
  one_thread();
  cblas_dgemm(CblasRowMajor, order(a), order(b), dimension(m), dimension(n), dimension(k), alpha, a.data, stride(a),
              b.data, stride(b), beta, c, dimension(c_stride));
}

int library_threads() { return openblas_get_num_threads(); }

void use_library_threads(int threads) {
  one_thread();  // else the next matmul would
  openblas_set_num_threads(threads);
}

// "OpenBLAS 0.3.21 (Cooperlake)", where the text of its build begins with "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH
// ...".
std::string_view host_matmul_library() {
  static const std::string text = [] {
    const std::string_view build = openblas_get_config();
    const std::size_t first = build.find(' ');
    const std::string_view version =
        build.substr(0, first == std::string_view::npos ? first : build.find(' ', first + 1));
    return std::string(version) + " (" + openblas_get_corename() + ")";
  }();
  return text;
}

// Its large matmuls use mapped buffers of its own, made at the first call. On AVX-512 processors matmuls of at most
// 100^3 multiplications take another path (dgemm_small_kernel_nn_skylakex.c), which packs the last n mod 32 columns of
// the second operand on the heap: at most 31 columns of k elements. With threads of its own, which runs never use but a
// benchmark does, it keeps a table of them there.
std::int64_t host_matmul_library_workspace(std::int64_t longest) {
  const std::int64_t threads = library_threads() > 1 ? std::int64_t{1} << 20 : 0;
  return 31 * 8 * std::min<std::int64_t>(longest, 1'000'000) + 64 + threads;
}

}  // namespace fsdp
