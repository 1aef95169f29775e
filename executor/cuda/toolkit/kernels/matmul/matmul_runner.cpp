#include "executor/cuda/toolkit/kernels/matmul/matmul_runner.h"

#include <map>
#include <utility>

#include "executor/cuda/toolkit/kernels/matmul/cublaslt.h"
#include "executor/cuda/toolkit/kernels/matmul/matmul_bias.h"
#include "models/input/error.h"

namespace fsdp::cuda {
namespace {

struct Types {
  cudaDataType_t storage, scale;  // scale: of alpha and beta
  cublasComputeType_t compute;
};
Types types_of(DType type, bool tf32) {
  switch (type) {
    case DType::bf16: return {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case DType::f16: return {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case DType::f32: return {CUDA_R_32F, CUDA_R_32F, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F};
    case DType::f64: return {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case DType::i64:
    case DType::f8: break;
  }
  throw MachineError("matrix products on the GPU: no products of this element type");
}

// Descriptors that end with their owner.
template <class Handle>
class Owned {
 public:
  using Destroy = cublasStatus_t (*)(Handle);
  Owned() = default;
  Owned(Handle handle, Destroy destroy) : handle_(handle), destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Owned(Owned&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)), destroy_(o.destroy_) {}
  Owned& operator=(Owned&& o) noexcept {
    std::swap(handle_, o.handle_);
    std::swap(destroy_, o.destroy_);
    return *this;
  }
  [[nodiscard]] Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
  Destroy destroy_ = nullptr;
};
using Desc = Owned<cublasLtMatmulDesc_t>;
using Layout = Owned<cublasLtMatrixLayout_t>;
using Preference = Owned<cublasLtMatmulPreference_t>;

// A matmul as the library has been told of it, and the algorithm that it named.
struct Chosen {
  Desc desc;
  Layout first, second, d;
  cublasLtMatmulAlgo_t algorithm{};
  bool bias_in_epilogue = false, found = false;
};

class Chooser {
 public:
  Chooser(const CublasLt& lt, cublasLtHandle_t handle, const MatmulKey& key, const void* bias,
          std::int64_t workspace_bytes)
      : lt_(lt),
        handle_(handle),
        key_(key),
        bias_(bias),
        workspace_bytes_(workspace_bytes),
        types_(types_of(key.matmul.type, key.tf32)),
        shape_(column_major(key.matmul)) {}

  // With the bias in the epilogue where the library has such a matmul, else without one.
  [[nodiscard]] Chosen choose() const {
    if (key_.bias_in_epilogue)
      if (Chosen fused = attempt(true); fused.found) return fused;
    Chosen plain = attempt(false);
    if (!plain.found)
      throw MachineError("cuBLASLt (" + lt_.library.path() + ") has no matrix product " + text(key_.matmul));
    return plain;
  }

 private:
  [[nodiscard]] Chosen attempt(bool epilogue) const {
    Chosen c;
    c.bias_in_epilogue = epilogue;
    c.desc = desc(epilogue);
    c.first = layout(shape_.first), c.second = layout(shape_.second), c.d = layout(shape_.d);
    const Preference wishes = preference();
    cublasLtMatmulHeuristicResult_t result{};
    int results = 0;
    const cublasStatus_t status = lt_.heuristic(handle_, c.desc.get(), c.first.get(), c.second.get(), c.d.get(),
                                                c.d.get(), wishes.get(), 1, &result, &results);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) check(status);
    c.found = status == CUBLAS_STATUS_SUCCESS && results == 1 && result.state == CUBLAS_STATUS_SUCCESS;
    c.algorithm = result.algo;
    return c;
  }

  [[nodiscard]] Desc desc(bool epilogue) const {
    cublasLtMatmulDesc_t made = nullptr;
    check(lt_.desc_create(&made, types_.compute, types_.scale));
    Desc desc(made, lt_.desc_destroy);
    const auto set = [&](cublasLtMatmulDescAttributes_t what, auto value) {
      check(lt_.desc_set(made, what, &value, sizeof value));
    };
    const auto operation = [](bool transpose) {
      return static_cast<std::int32_t>(transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(shape_.transpose_first));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(shape_.transpose_second));
    if (epilogue) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_);
    }
    if (key_.multiprocessors > 0)
      set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, static_cast<std::int32_t>(key_.multiprocessors));
    return desc;
  }

  [[nodiscard]] Layout layout(const StoredMatrix& m) const {
    cublasLtMatrixLayout_t made = nullptr;
    check(lt_.layout_create(&made, types_.storage, static_cast<std::uint64_t>(m.rows),
                            static_cast<std::uint64_t>(m.columns), m.ld));
    Layout layout(made, lt_.layout_destroy);
    const auto batch = static_cast<std::int32_t>(shape_.batch);
    if (batch == 1) return layout;
    check(lt_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    check(lt_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.batch_stride, sizeof m.batch_stride));
    return layout;
  }

  [[nodiscard]] Preference preference() const {
    cublasLtMatmulPreference_t made = nullptr;
    check(lt_.preference_create(&made));
    Preference preference(made, lt_.preference_destroy);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      check(lt_.preference_set(made, what, &value, sizeof value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes_));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key_.align_b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key_.align_a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key_.align_c);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key_.align_c);
    return preference;
  }

  void check(cublasStatus_t status) const { lt_.check(status, "matrix product " + text(key_.matmul)); }

  const CublasLt& lt_;
  cublasLtHandle_t handle_;
  const MatmulKey& key_;
  const void* bias_;
  const std::int64_t workspace_bytes_;
  const Types types_;
  const ColumnMajorMatmul shape_;
};

}  // namespace

struct MatmulRunner::State {
  State(const Library& library, bool use_tf32) : lt(library), tf32(use_tf32) {
    lt.check(lt.create(&handle), "cuBLASLt for this GPU");
  }
  ~State() {
    chosen.clear();
    lt.destroy(handle);
  }
  State(const State&) = delete;

  CublasLt lt;
  bool tf32 = false;
  cublasLtHandle_t handle = nullptr;
  std::int64_t workspace_bytes = -1;
  std::map<MatmulKey, Chosen> chosen;
};

MatmulRunner::MatmulRunner(const Library& cublas_lt, bool tf32) : state_(std::make_unique<State>(cublas_lt, tf32)) {}
MatmulRunner::~MatmulRunner() = default;
MatmulRunner::MatmulRunner(MatmulRunner&&) noexcept = default;
MatmulRunner& MatmulRunner::operator=(MatmulRunner&&) noexcept = default;

std::int64_t MatmulRunner::algorithms() const { return static_cast<std::int64_t>(state_->chosen.size()); }

void MatmulRunner::multiply(const MatmulCall& call, const MatmulRoom& room, CUstream_st* stream) {
  State& s = *state_;
  const Matmul& p = call.matmul;
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  if (p.accumulate && p.bias)
    throw MachineError("matrix product " + text(p) + ": a bias or what is there is added, not both");
  const AlignedRoom workspace = aligned_room(room.workspace, room.workspace_bytes);
  if (s.workspace_bytes != workspace.bytes) s.chosen.clear(), s.workspace_bytes = workspace.bytes;
  const MatmulKey key = key_of(call, room.multiprocessors, s.tf32);
  auto at = s.chosen.find(key);
  if (at == s.chosen.end())
    at = s.chosen.emplace(key, Chooser(s.lt, s.handle, key, call.bias, workspace.bytes).choose()).first;
  const Chosen& c = at->second;
  const std::string what = "matrix product " + text(p);

  const bool bias_first = p.bias && !c.bias_in_epilogue;
  if (bias_first) launch_bias_rows(p.type, call.bias, p.m * p.batch, p.n, call.c, stream);
  if (p.bias && !bias_first)
    s.lt.check(s.lt.desc_set(c.desc.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call.bias, sizeof call.bias), what);
  const bool adds = p.accumulate || bias_first;
  const double one64 = 1, beta64 = adds ? 1 : 0;
  const float one32 = 1, beta32 = adds ? 1 : 0;
  const bool wide = p.type == DType::f64;
  const void *alpha = wide ? static_cast<const void*>(&one64) : &one32,
             *beta = wide ? static_cast<const void*>(&beta64) : &beta32;
  s.lt.check(
      s.lt.matmul(s.handle, c.desc.get(), alpha, call.b, c.first.get(), call.a, c.second.get(), beta, call.c, c.d.get(),
                  call.c, c.d.get(), &c.algorithm, workspace.data, static_cast<std::size_t>(workspace.bytes), stream),
      what);
}

}  // namespace fsdp::cuda
