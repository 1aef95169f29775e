// The CUDA kernels of ops, emulated on the processor, against the host's kernels; the same cases run on a GPU in
// executor_cuda_kernels_gpu_test.
#include "emulated_kernels.h"

#include <doctest/doctest.h>

#include "cuda_op_cases.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const EmulatedKernels& emulated() {
  static const EmulatedKernels kernels;
  return kernels;
}

Subject subject() {
  Subject s = host_subject();
  return {emulated(), native_cuda_implementation(), s.allocate, s.finish};
}

}  // namespace

TEST_CASE("swiglu, gelu and sums") {
  for (const CudaOpCase& c : elementwise_cases()) check_op(subject(), c);
}

TEST_CASE("norms") {
  for (const CudaOpCase& c : norm_cases()) check_op(subject(), c);
}

TEST_CASE("embeddings") {
  for (const CudaOpCase& c : embedding_cases()) check_op(subject(), c);
}

TEST_CASE("rotary embedding") {
  for (const CudaOpCase& c : rotary_cases()) check_op(subject(), c);
}

TEST_CASE("cross-entropy") {
  for (const CudaOpCase& c : cross_entropy_cases()) check_op(subject(), c);
}

TEST_CASE("mixtures of experts") {
  for (const CudaOpCase& c : moe_cases()) check_op(subject(), c);
}
