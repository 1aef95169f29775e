#include "executor/cuda/toolkit/kernels/matmul/cublaslt.h"

#include "executor/cuda/errors.h"
#include "models/input/error.h"

namespace fsdp::cuda {

CublasLt::CublasLt(const Library& from) : library(from) {
  if (!library) throw MachineError("matrix products on the GPU need cuBLASLt: " + library.why());
  const auto take = [this](auto& function, const char* symbol) {
    library.set(function, symbol);
    if (function == nullptr) throw MachineError("cuBLASLt (" + library.path() + ") has no " + symbol);
  };
  take(create, "cublasLtCreate");
  take(destroy, "cublasLtDestroy");
  take(status_name, "cublasLtGetStatusName");
  take(desc_create, "cublasLtMatmulDescCreate");
  take(desc_destroy, "cublasLtMatmulDescDestroy");
  take(desc_set, "cublasLtMatmulDescSetAttribute");
  take(layout_create, "cublasLtMatrixLayoutCreate");
  take(layout_destroy, "cublasLtMatrixLayoutDestroy");
  take(layout_set, "cublasLtMatrixLayoutSetAttribute");
  take(preference_create, "cublasLtMatmulPreferenceCreate");
  take(preference_destroy, "cublasLtMatmulPreferenceDestroy");
  take(preference_set, "cublasLtMatmulPreferenceSetAttribute");
  take(heuristic, "cublasLtMatmulAlgoGetHeuristic");
  take(matmul, "cublasLtMatmul");
}

void CublasLt::check(cublasStatus_t status, const std::string& what) const {
  if (status != CUBLAS_STATUS_SUCCESS) throw MachineError(refusal(-1, what, status_name(status), ""));
}

}  // namespace fsdp::cuda
