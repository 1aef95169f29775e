// The functions of cuBLASLt that matmuls use, on the processor and on host memory, strictly: a wrong size of an
// attribute, operands that do not fit together, an address less aligned than was promised or a workspace smaller than
// was said are errors. As the library's documentation defines them: column-major d = alpha op(a) op(b) + beta c, a bias
// added along each column, in the scale type. Work is done at once, or in the order of its stream where the program has
// streams (fakes/cuda_on_host/runtime.cpp).
#include <cublasLt.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "executor/arithmetic/element.h"

__attribute__((weak)) void push_on_stream(CUstream_st*, std::function<void()>);  // of the program, if it has one

namespace {

using Values = std::map<int, std::vector<unsigned char>>;

struct Attributes {
  Values values;
  cublasStatus_t set(int what, const void* data, std::size_t bytes, std::size_t expected) {
    if (data == nullptr || expected == 0 || bytes != expected) return CUBLAS_STATUS_INVALID_VALUE;
    const auto* from = static_cast<const unsigned char*>(data);
    values[what].assign(from, from + bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  template <class T>
  [[nodiscard]] T get(int what, T otherwise) const {
    const auto at = values.find(what);
    if (at != values.end()) std::memcpy(&otherwise, at->second.data(), sizeof otherwise);
    return otherwise;
  }
};

struct Desc : Attributes {
  cublasComputeType_t compute{};
  cudaDataType_t scale{};
  [[nodiscard]] bool transposed(int which) const { return get<std::int32_t>(which, CUBLAS_OP_N) == CUBLAS_OP_T; }
};
struct Layout : Attributes {
  cudaDataType_t type{};
  std::int64_t rows = 0, columns = 0, ld = 0;
  [[nodiscard]] std::int64_t batch() const { return get<std::int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1); }
  [[nodiscard]] std::int64_t stride() const {
    return get<std::int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0);
  }
};
struct Promises {  // an algorithm: what it was chosen for
  std::uint64_t workspace;
  std::uint32_t a, b, d, magic;
};
constexpr std::uint32_t kMagic = 0xc0b1a517u;

template <class Mine, class Theirs>
Mine& mine(Theirs* handle) {
  return *reinterpret_cast<Mine*>(handle);
}

struct Extents {
  std::int64_t m, n, k;
  bool fit;
};
Extents extents(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  const bool ta = desc.transposed(CUBLASLT_MATMUL_DESC_TRANSA), tb = desc.transposed(CUBLASLT_MATMUL_DESC_TRANSB);
  const std::int64_t m = ta ? a.columns : a.rows, k = ta ? a.rows : a.columns, n = tb ? b.rows : b.columns;
  bool fit = (tb ? b.columns : b.rows) == k && d.rows == m && d.columns == n && a.type == b.type && b.type == d.type;
  for (const Layout* l : {&a, &b, &d}) fit = fit && l->ld >= l->rows && l->batch() == d.batch();
  if (d.batch() > 1) fit = fit && d.stride() >= d.ld * (d.columns - 1) + d.rows;
  const bool wide = d.type == CUDA_R_64F;
  fit = fit && desc.scale == (wide ? CUDA_R_64F : CUDA_R_32F) && (desc.compute == CUBLAS_COMPUTE_64F) == wide;
  return {m, n, k, fit};
}

template <class T>
void multiply(const Desc& desc, const Extents& e, fsdp::Math<T> alpha, const T* a, const Layout& la, const T* b,
              const Layout& lb, fsdp::Math<T> beta, T* d, const Layout& ld) {
  using M = fsdp::Math<T>;
  const bool ta = desc.transposed(CUBLASLT_MATMUL_DESC_TRANSA), tb = desc.transposed(CUBLASLT_MATMUL_DESC_TRANSB);
  const bool biased =
      desc.get<std::uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT) == CUBLASLT_EPILOGUE_BIAS;
  const auto* bias = static_cast<const T*>(desc.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr));
  for (std::int64_t g = 0; g < ld.batch(); ++g)
    for (std::int64_t j = 0; j < e.n; ++j)
      for (std::int64_t i = 0; i < e.m; ++i) {
        M sum = 0;
        for (std::int64_t l = 0; l < e.k; ++l)
          sum += fsdp::load(a[g * la.stride() + (ta ? l + i * la.ld : i + l * la.ld)]) *
                 fsdp::load(b[g * lb.stride() + (tb ? j + l * lb.ld : l + j * lb.ld)]);
        T& to = d[g * ld.stride() + i + j * ld.ld];
        sum *= alpha;
        if (beta != M(0)) sum += beta * fsdp::load(to);
        if (biased) sum += fsdp::load(bias[i]);
        fsdp::store(to, sum);
      }
}

std::atomic<int> last_target{0};  // multiprocessors that the last matmul counted on, 0: all

bool aligned(const void* p, std::uint32_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

}  // namespace

extern "C" {

int cublaslt_on_host_multiprocessors() { return last_target; }  // for tests

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_OTHER";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* to, cublasComputeType_t compute, cudaDataType_t scale) {
  auto* d = new Desc;
  d->compute = compute, d->scale = scale;
  *to = reinterpret_cast<cublasLtMatmulDesc_t>(d);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete &mine<Desc>(d);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                              const void* data, size_t bytes) {
  const std::map<int, std::size_t> sizes{{CUBLASLT_MATMUL_DESC_TRANSA, 4},
                                         {CUBLASLT_MATMUL_DESC_TRANSB, 4},
                                         {CUBLASLT_MATMUL_DESC_EPILOGUE, 4},
                                         {CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8},
                                         {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 4}};
  return mine<Desc>(d).set(what, data, bytes, sizes.count(what) > 0 ? sizes.at(what) : 0);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* to, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  auto* l = new Layout;
  l->type = type, l->rows = static_cast<std::int64_t>(rows), l->columns = static_cast<std::int64_t>(columns),
  l->ld = ld;
  *to = reinterpret_cast<cublasLtMatrixLayout_t>(l);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  delete &mine<Layout>(l);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t what,
                                                const void* data, size_t bytes) {
  const std::map<int, std::size_t> sizes{{CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 4},
                                         {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 8}};
  return mine<Layout>(l).set(what, data, bytes, sizes.count(what) > 0 ? sizes.at(what) : 0);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* to) {
  *to = reinterpret_cast<cublasLtMatmulPreference_t>(new Attributes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete &mine<Attributes>(p);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void* data,
                                                    size_t bytes) {
  const std::map<int, std::size_t> sizes{
      {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 8},   {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 4},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 4},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 4}};
  return mine<Attributes>(p).set(what, data, bytes, sizes.count(what) > 0 ? sizes.at(what) : 0);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int requested, cublasLtMatmulHeuristicResult_t* results, int* count) {
  *count = 0;
  if (requested < 1 || !extents(mine<Desc>(desc), mine<Layout>(a), mine<Layout>(b), mine<Layout>(d)).fit)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto& wishes = mine<Attributes>(preference);
  const Promises promises{wishes.get<std::uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0),
                          wishes.get<std::uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 256),
                          wishes.get<std::uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 256),
                          wishes.get<std::uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 256), kMagic};
  static_assert(sizeof promises <= sizeof results[0].algo);
  std::memcpy(&results[0].algo, &promises, sizeof promises);
  results[0].workspaceSize = promises.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc_handle, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Desc& desc = mine<Desc>(desc_handle);
  const Layout &la = mine<Layout>(a_layout), &lb = mine<Layout>(b_layout), &ld = mine<Layout>(d_layout);
  Promises promises{};
  std::memcpy(&promises, algorithm, sizeof promises);
  const Extents e = extents(desc, la, lb, ld);
  last_target = desc.get<std::int32_t>(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 0);
  if (promises.magic != kMagic || !e.fit || c != d || workspace_bytes < promises.workspace ||
      !aligned(workspace, 256) || !aligned(a, promises.a) || !aligned(b, promises.b) || !aligned(d, promises.d))
    return CUBLAS_STATUS_INVALID_VALUE;
  // Descriptors and factors are read now, matrices when the stream is there.
  const auto run = [&](auto element) {
    using T = decltype(element);
    using M = fsdp::Math<T>;
    std::function<void()> work = [=, by = *static_cast<const M*>(alpha), and_by = *static_cast<const M*>(beta)] {
      std::memset(workspace, 0xff, workspace_bytes);  // it may write all of it
      multiply(desc, e, by, static_cast<const T*>(a), la, static_cast<const T*>(b), lb, and_by, static_cast<T*>(d), ld);
    };
    if (stream != nullptr && push_on_stream != nullptr) push_on_stream(stream, std::move(work));
    else work();
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (ld.type) {
    case CUDA_R_16BF: return run(fsdp::BFloat16{});
    case CUDA_R_16F: return run(fsdp::Float16{});
    case CUDA_R_32F: return run(float{});
    case CUDA_R_64F: return run(double{});
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

}  // extern "C"
