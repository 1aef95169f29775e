// The functions of cuBLASLt that matmuls use, from a library that was found at run time.
#pragma once

#include <cublasLt.h>

#include <string>

#include "executor/cuda/library.h"

namespace fsdp::cuda {

struct CublasLt {
  // MachineError if there is no library, or if it lacks a function.
  explicit CublasLt(const Library&);

  Library library;  // stays open as long as its functions are used
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  // MachineError unless it succeeded.
  void check(cublasStatus_t, const std::string& what) const;
};

}  // namespace fsdp::cuda
