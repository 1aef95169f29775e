// The cuda backend's own dispatch (stream_kernels.cpp), its own matmuls and kernels, on one stream of a CUDA runtime
// (runtime.cpp) and a cuBLASLt of ours: everything that a kernel set does, against the host's.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <set>

#include "executor/cuda/toolkit/kernels/stream_kernels.h"
#include "models/implementation.h"
#include "tests/executor/cuda/kernel_set_cases.h"
#include "tests/executor/cuda_on_host/dispatch_support.h"

namespace fsdp::testing {
namespace {

// One stream, as executor_cuda_kernels_test has a GPU's.
class Machine {
 public:
  explicit Machine(bool with_libraries = true) {
    if (with_libraries) context_.libraries = &libraries();
    context_.multiprocessors = 4;
    REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
    kernels_ = std::make_unique<cuda::StreamKernels>(stream_, context_);
  }
  ~Machine() { cudaStreamDestroy(stream_); }
  Machine(const Machine&) = delete;
  [[nodiscard]] const KernelSet& kernels() const { return *kernels_; }
  [[nodiscard]] Subject subject() const {
    Subject s = host_subject();
    return {*kernels_, native_cuda_implementation(), s.allocate,
            [this] { REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess); }};
  }

 private:
  cuda::KernelContext context_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::StreamKernels> kernels_;
};

// What the cases of cuda_op_cases.h leave out.
CudaOpCase linear_case(bool experts, bool transposed, bool bias) {
  CudaOpCase c;
  c.name = experts ? "expert_linear" : bias ? "linear with a bias" : "linear";
  c.op.kind = experts ? OpKind::expert_linear : OpKind::linear;
  c.op.shape.in = 24, c.op.shape.out = 40, c.op.shape.transposed = transposed;
  if (experts) c.op.shape.experts = {.count = 4, .top_k = 2, .capacity_factor = 1.3};
  c.op.inputs = {0}, c.op.outputs = {1}, c.op.params.resize(bias ? 2 : 1);
  c.work.sequences = 2, c.work.seq_len = 9;
  const std::int64_t slots = experts ? 4 * c.op.shape.experts.capacity(18) : 18;
  c.inputs = {random_numbers(static_cast<std::size_t>(slots * 24), 91)};
  c.params = {random_numbers(static_cast<std::size_t>(24 * 40 * (experts ? 4 : 1)), 92)};
  if (bias) c.params.push_back(random_numbers(40, 93));
  c.ids = {false};
  c.outputs = {{static_cast<std::size_t>(slots * 40)}};
  return c;
}
CudaOpCase attention_case(std::int64_t dim, bool packed) {
  CudaOpCase c;
  c.name = "attention";
  c.op.kind = OpKind::attention, c.op.shape = {.packed = packed};
  c.op.shape.heads = 2, c.op.shape.kv_heads = 1, c.op.shape.head_dim = dim, c.op.shape.causal = true;
  c.work.sequences = 2, c.work.seq_len = 9;
  const auto of = [&](std::int64_t heads, unsigned seed) {
    c.inputs.push_back(random_numbers(static_cast<std::size_t>(18 * heads * dim), seed));
  };
  if (packed) of(4, 94);
  else of(2, 94), of(1, 95), of(1, 96);
  c.op.inputs.resize(c.inputs.size());
  c.op.outputs = {9};
  c.ids.assign(c.inputs.size(), false);
  c.outputs = {{static_cast<std::size_t>(18 * 2 * dim)}};
  return c;
}

std::vector<CudaOpCase> all_op_cases() {
  std::vector<CudaOpCase> all;
  for (const auto& cases :
       {elementwise_cases(), norm_cases(), embedding_cases(), rotary_cases(), cross_entropy_cases(), moe_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  for (const bool transposed : {false, true})
    for (const bool bias : {false, true}) all.push_back(linear_case(false, transposed, bias));
  all.push_back(linear_case(true, false, false));
  for (const bool packed : {false, true})
    all.push_back(attention_case(6, packed)), all.push_back(attention_case(64, packed));
  return all;
}

TEST_CASE("every kind of op through the dispatch agrees with the host's kernels") {
  const Machine machine;
  std::set<OpKind> seen;
  for (const CudaOpCase& c : all_op_cases()) {
    seen.insert(c.op.kind);
    check_op(machine.subject(), c, {.type = DType::f32});
    check_op(machine.subject(), c, {.type = DType::bf16, .before = 3.0});
  }
  const auto& rules = native_cuda_implementation().rules;
  const auto known = std::count_if(rules.begin(), rules.end(), [](OpRule r) { return r != nullptr; });
  CHECK(seen.size() ==
        static_cast<std::size_t>(known) - 2);  // all but opaque ones and redistributions, which are copies
}

TEST_CASE("conversions, layouts, optimizers, clipping and data through the dispatch") {
  const Machine machine;
  check_conversions(machine.subject());
  check_layouts(machine.subject());
  check_updates(machine.subject());
  check_clipping(machine.subject());
  check_data(machine.subject());
}

TEST_CASE("an op without a kernel, and a product without cuBLASLt, are refused in words") {
  const Machine machine(false);
  Op opaque;
  opaque.kind = OpKind::opaque;
  CHECK_THROWS_WITH_AS(machine.kernels().forward(opaque, {1, 1, 4}, DType::f32, std::vector<KernelArg>(2), 0),
                       doctest::Contains("the cuda backend has no kernel for it"), MachineError);
  CHECK_THROWS_WITH_AS((void)run_op(machine.subject(), linear_case(false, false, false), {}),
                       doctest::Contains("matrix products on a GPU need cuBLASLt"), MachineError);
}

}  // namespace
}  // namespace fsdp::testing
