// Matmuls through cuda::MatmulRunner, as linear and expert_linear make them, against the host's kernels in fp64 on
// the same numbers: on a GPU (executor_cuda_matmul_test) or with a library that only interprets
// (executor_cuda_cublaslt_test).
//
// A matmul of depth k is off by at most k half units of its arithmetic relative to the sum of its terms' magnitudes
// (which the same matmul of magnitudes gives), and by half a unit of the storage type of what is stored; of TF32 the
// operands are off by 2^-11 each.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "executor/cuda/toolkit/kernels/matmul/matmul_runner.h"
#include "tests/support/kernels_support.h"

namespace fsdp::testing {

struct MatmulCase {
  DType type = DType::bf16;
  std::int64_t in = 0, out = 0, seq_len = 0;
  bool experts = false, transposed = false, bias = false, accumulate = false, tf32 = false;
  bool bias_apart = false;  // where the library cannot read it: one element beyond an aligned address
};

inline std::string name(const MatmulCase& c) {
  return std::string(fsdp::name(c.type)) + " " + std::to_string(c.in) + " -> " + std::to_string(c.out) + " tokens " +
         std::to_string(c.seq_len) + (c.experts ? " experts" : "") + (c.transposed ? " transposed" : "") +
         (c.bias ? " bias" : "") + (c.accumulate ? " accumulate" : "") + (c.tf32 ? " tf32" : "") +
         (c.bias_apart ? " apart" : "");
}

struct Arguments {
  std::vector<Numbers> inputs, params, grads, outputs;  // x; W, b; dx, dW; y
  Numbers grad_output;
};

inline Arguments magnitudes(Arguments a) {
  const auto positive = [](Numbers& x) {
    std::transform(x.begin(), x.end(), x.begin(), [](double v) { return std::abs(v); });
  };
  for (auto* group : {&a.inputs, &a.params, &a.grads, &a.outputs})
    std::for_each(group->begin(), group->end(), positive);
  positive(a.grad_output);
  return a;
}

using Views = std::span<const BufferView>;
inline std::vector<KernelArg> forward_args(Views in, Views params, BufferView y) {
  std::vector<KernelArg> args;
  for (const BufferView v : in) args.push_back({v});
  for (const BufferView v : params) args.push_back({v});
  args.insert(args.end(), {{y}, {}, {}});
  return args;
}
inline std::vector<KernelArg> backward_args(BufferView dy, Views in, Views params, Views grads, bool accumulate) {
  std::vector<KernelArg> args{{dy}};
  for (const BufferView v : in) args.push_back({v});
  args.push_back({});
  for (const BufferView v : params) args.push_back({v});
  args.insert(args.end(), {{}, {}});
  for (const BufferView v : grads) args.push_back({v, accumulate});
  if (params.size() > 1) args.push_back({});  // the gradient of a bias is a column sum, not a matmul
  return args;
}

inline std::vector<BufferView> views(std::vector<Numbers>& numbers) {
  std::vector<BufferView> v;
  for (Numbers& x : numbers) v.push_back(view_of(x));
  return v;
}

inline void run_host(const Op& op, Workload work, bool accumulate, Arguments& a) {
  work.element_bytes = 8;
  host_kernel_set().forward(op, work, DType::f64, forward_args(views(a.inputs), views(a.params), view_of(a.outputs[0])),
                            0);
  host_kernel_set().backward(
      op, work, DType::f64,
      backward_args(view_of(a.grad_output), views(a.inputs), views(a.params), views(a.grads), accumulate), 0);
}

// `machine`: to_device(BufferView) -> BufferView, to_host(device view, BufferView), as GpuMemory.
template <class Machine>
void check_matmul_case(Machine&& machine, const cuda::Library& cublas_lt, const MatmulCase& c, unsigned seed) {
  INFO(name(c));
  Op op;
  op.kind = c.experts ? OpKind::expert_linear : OpKind::linear;
  op.inputs = {0}, op.outputs = {1},
  op.params = c.bias ? std::vector<std::int32_t>{0, 1} : std::vector<std::int32_t>{0};
  op.shape.in = c.in, op.shape.out = c.out, op.shape.transposed = c.transposed;
  if (c.experts) op.shape.experts = {.count = 4, .top_k = 2, .capacity_factor = 1.25};
  const Workload work{.sequences = 1, .seq_len = c.seq_len, .element_bytes = size_of(c.type), .loss_chunks = 1};
  const std::int64_t rows = c.experts ? 4 * op.shape.experts.capacity(c.seq_len) : c.seq_len;
  const std::int64_t weights = (c.experts ? 4 : 1) * c.in * c.out;
  const auto numbers = [&](std::int64_t n) {
    return rounded(c.type, random_numbers(static_cast<std::size_t>(n), ++seed));
  };
  Arguments host{.inputs = {numbers(rows * c.in)},
                 .params = {numbers(weights)},
                 .grads = {numbers(rows * c.in), numbers(weights)},
                 .outputs = {numbers(rows * c.out)},
                 .grad_output = numbers(rows * c.out)};
  if (c.bias) host.params.push_back(numbers(c.out));

  const auto put = [&](const Numbers& x) {
    Block b = encode(c.type, x);
    return machine.to_device(b.view());
  };
  std::vector<BufferView> in, params, grads;
  for (const Numbers& x : host.inputs) in.push_back(put(x));
  for (const Numbers& x : host.params) params.push_back(put(x));
  if (c.bias_apart) {
    Numbers shifted = host.params[1];
    shifted.insert(shifted.begin(), 0.0);
    const BufferView whole = put(shifted);
    params[1] = {whole.data + size_of(c.type), whole.bytes - size_of(c.type)};
  }
  for (const Numbers& x : host.grads) grads.push_back(put(x));
  const BufferView y = put(host.outputs[0]), dy = put(host.grad_output);
  Block room(32 << 20);
  const cuda::MatmulRoom workspace{.workspace = machine.to_device(room.view()).data,
                                   .workspace_bytes = room.view().bytes};
  cuda::MatmulRunner runner(cublas_lt, c.tf32);
  const auto forward = forward_args(in, params, y), backward = backward_args(dy, in, params, grads, c.accumulate);
  const Call forward_call(op, work, forward, 0, false), backward_call(op, work, backward, 0, true);
  const auto both = {
      (c.experts ? cuda::expert_linear_forward_calls : cuda::linear_forward_calls)(c.type, forward_call),
      (c.experts ? cuda::expert_linear_backward_calls : cuda::linear_backward_calls)(c.type, backward_call)};
  for (const cuda::LinearCalls& calls : both)
    for (const cuda::MatmulCall& p : calls.matmuls) runner.multiply(p, workspace, nullptr);

  // What a product is added to: cuBLASLt's kernels for Hopper round the product to the type of the result before they
  // add, as PyTorch does, where the product and the sum are two kernels.
  const bool adds_bias = c.bias && c.bias_apart;
  Numbers before_y(host.outputs[0].size()), none;
  for (std::size_t i = 0; adds_bias && i < before_y.size(); ++i)
    before_y[i] = host.params[1][i % static_cast<std::size_t>(c.out)];
  const std::vector<Numbers> before_grads = host.grads;
  Arguments bound = magnitudes(host);
  run_host(op, work, c.accumulate, host);
  run_host(op, work, c.accumulate, bound);
  const double storage = c.type == DType::bf16 ? 0x1p-8 : c.type == DType::f16 ? 0x1p-11 : 0;
  const double arithmetic = c.type == DType::f64 ? 0x1p-53 : 0x1p-24;
  const auto compare = [&](BufferView device, const Numbers& expected, const Numbers& size, std::int64_t depth,
                           const Numbers& before) {
    Block b(device.bytes);
    machine.to_host(device, b.view());
    const Numbers got = decode(c.type, b.view());
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double relative = 2 * static_cast<double>(depth + 2) * arithmetic + (c.tf32 ? 0x1p-10 : 0);
      const double product = before.empty() ? 0 : std::abs(expected[i] - before[i]);  // where it is rounded, too
      const double off =
          std::abs(got[i] - expected[i]) / (relative * size[i] + storage * (std::abs(expected[i]) + product));
      worst = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(worst, off);
    }
    CHECK(worst <= 1);
  };
  compare(y, host.outputs[0], bound.outputs[0], c.in, adds_bias ? before_y : none);
  compare(grads[0], host.grads[0], bound.grads[0], c.out, c.accumulate ? before_grads[0] : none);
  compare(grads[1], host.grads[1], bound.grads[1], rows, c.accumulate ? before_grads[1] : none);
}

inline std::vector<MatmulCase> matmul_cases() {
  std::vector<MatmulCase> cases;
  using enum DType;
  for (const DType type : {bf16, f16, f32, f64}) {
    cases.push_back({.type = type, .in = 64, .out = 128, .seq_len = 96});
    cases.push_back({.type = type, .in = 33, .out = 17, .seq_len = 5});  // rows that are not aligned
    cases.push_back({.type = type, .in = 64, .out = 48, .seq_len = 50, .bias = true});
    cases.push_back({.type = type, .in = 64, .out = 48, .seq_len = 50, .bias = true, .bias_apart = true});
    cases.push_back({.type = type, .in = 40, .out = 72, .seq_len = 31, .transposed = true, .bias = true});
    cases.push_back({.type = type, .in = 128, .out = 64, .seq_len = 256, .accumulate = true});
    cases.push_back({.type = type, .in = 32, .out = 64, .seq_len = 100, .experts = true});
    cases.push_back({.type = type, .in = 32, .out = 64, .seq_len = 100, .experts = true, .accumulate = true});
  }
  cases.push_back({.type = f32, .in = 128, .out = 64, .seq_len = 256, .tf32 = true});
  return cases;
}

}  // namespace fsdp::testing
