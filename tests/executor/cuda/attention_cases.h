// Cases of attention's CUDA kernels, for whoever can run them: the emulator (executor_cuda_attention_emulated_test) or
// a GPU (executor_cuda_attention_test). Each case is compared with the host's kernel in fp64 on the same, already
// rounded numbers.
//
// How far they may be apart, element by element. u: half a unit in the last place of the storage type, relative (2^-8
// of bf16, 2^-11 of fp16; of fp32 and fp64 that of the arithmetic). e: what the arithmetic itself may do to a
// probability: the score is a sum of dim products (an error of dim half units, relative to the sum of their
// magnitudes), the exponential and the log-sum-exp add a few. A probability p is thus known to e p, and to u p once it
// is rounded, and a gradient of scores ds = p (dp - s), s = rowsum(do o), to
//   u |ds| + e p (sum |do v| + sum |do o|).
// Then, to first order, with a result rounded once to u of its size (of what was there too, if it is added to):
//   o_i   (u + e) sum_j p_ij |v_j|        dv_j  (u + e) sum_i p_ij |do_i|
//   dq_i  sum_j (error of ds_ij) |k_j| / sqrt(dim)     dk_j  sum_i (error of ds_ij) |q_i| / sqrt(dim)
// fp16 has least numbers of 2^-24: half of that is added wherever something is rounded to it.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "executor/cuda/attention_call.h"
#include "tests/support/kernels_support.h"

namespace fsdp::testing {

struct AttentionCase {
  DType type = DType::bf16;
  std::int64_t dim = 64, length = 1, heads = 1, kv_heads = 1, sequences = 1, window = 0;
  bool causal = true, alibi = false, packed = false, accumulate = false;
  unsigned wanted = 0b111;  // gradients of q, k, v
};

inline std::string name(const AttentionCase& c) {
  return std::string(fsdp::name(c.type)) + " dim " + std::to_string(c.dim) + " length " + std::to_string(c.length) +
         " heads " + std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " sequences " +
         std::to_string(c.sequences) + " window " + std::to_string(c.window) + (c.causal ? "" : " not causal") +
         (c.alibi ? " alibi" : "") + (c.packed ? " packed" : "") + (c.accumulate ? " accumulate" : "");
}

// Lengths around the sizes of tiles (32, 64 and 128 rows), every variant at least once on tensor cores (dim 64 and 128
// in 16 bits) and without them.
inline std::vector<AttentionCase> attention_cases() {
  using enum DType;
  return {
      {.type = bf16, .dim = 64, .length = 1, .heads = 2, .kv_heads = 2, .sequences = 2},
      {.type = bf16, .dim = 128, .length = 17, .heads = 2, .kv_heads = 1},
      {.type = f16, .dim = 64, .length = 63, .heads = 2, .kv_heads = 2, .packed = true},
      {.type = bf16, .dim = 128, .length = 64, .heads = 1, .kv_heads = 1, .accumulate = true},
      {.type = f16, .dim = 128, .length = 65, .heads = 2, .kv_heads = 1},
      {.type = bf16, .dim = 64, .length = 129, .heads = 4, .kv_heads = 2, .packed = true, .accumulate = true},
      {.type = bf16, .dim = 64, .length = 65, .heads = 2, .kv_heads = 1, .sequences = 2},
      {.type = bf16, .dim = 64, .length = 200, .heads = 1, .kv_heads = 1, .window = 40},
      {.type = f16, .dim = 128, .length = 129, .heads = 1, .kv_heads = 1, .window = 1},
      {.type = bf16, .dim = 64, .length = 100, .heads = 3, .kv_heads = 1, .alibi = true},
      {.type = f16, .dim = 64, .length = 129, .heads = 2, .kv_heads = 1, .causal = false},
      {.type = bf16, .dim = 64, .length = 33, .heads = 2, .kv_heads = 1, .wanted = 0b001},
      {.type = bf16, .dim = 64, .length = 33, .heads = 2, .kv_heads = 1, .wanted = 0b100},
      {.type = f32, .dim = 64, .length = 65, .heads = 2, .kv_heads = 1},
      {.type = f32, .dim = 128, .length = 129, .heads = 1, .kv_heads = 1, .packed = true, .accumulate = true},
      {.type = f32, .dim = 16, .length = 63, .heads = 3, .kv_heads = 3, .sequences = 2, .window = 7, .alibi = true},
      {.type = f64, .dim = 40, .length = 33, .heads = 4, .kv_heads = 2},
      {.type = f64, .dim = 1, .length = 64, .heads = 2, .kv_heads = 1, .causal = false},
      {.type = bf16, .dim = 80, .length = 65, .heads = 2, .kv_heads = 1},
      {.type = f16, .dim = 256, .length = 17, .heads = 2, .kv_heads = 2, .wanted = 0b010},
      {.type = bf16, .dim = 33, .length = 1, .heads = 1, .kv_heads = 1},
  };
}

// One case as an operation with the host's answer in fp64 and the bounds.
class AttentionProblem {
 public:
  struct Answer {
    Numbers value, bound;
    explicit Answer(std::size_t n) : value(n), bound(n) {}
  };

  AttentionProblem(const AttentionCase& c, unsigned seed)
      : c_(c),
        tokens_(c.sequences * c.length),
        q_row_((c.heads + (c.packed ? 2 * c.kv_heads : 0)) * c.dim),
        kv_row_(c.packed ? q_row_ : c.kv_heads * c.dim),
        out_(size(c.heads * c.dim)),
        lse_(count(c.sequences * c.heads * c.length)) {
    op.kind = OpKind::attention;
    op.shape.heads = c.heads, op.shape.kv_heads = c.kv_heads, op.shape.head_dim = c.dim, op.shape.window = c.window;
    op.shape.causal = c.causal, op.shape.alibi = c.alibi, op.shape.packed = c.packed;
    op.inputs = c.packed ? std::vector<std::int32_t>{0} : std::vector<std::int32_t>{0, 1, 2};
    op.outputs = {3};
    work.sequences = c.sequences, work.seq_len = c.length, work.element_bytes = size_of(c.type);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      inputs.push_back(
          rounded(c.type, random_numbers(size(i == 0 ? q_row_ : kv_row_), seed + static_cast<unsigned>(i))));
      before.push_back(rounded(c.type, random_numbers(inputs[i].size(), seed + 10 + static_cast<unsigned>(i))));
      gradients.emplace_back(inputs[i].size());
    }
    grad_out = rounded(c.type, random_numbers(size(c.heads * c.dim), seed + 20));
    answer();
  }

  Op op;
  Workload work;
  std::vector<Numbers> inputs, before;  // before: what gradients hold that are added to
  Numbers grad_out;
  std::vector<Answer> gradients;  // per input
  [[nodiscard]] const Answer& out() const { return out_; }
  [[nodiscard]] const Answer& lse() const { return lse_; }
  [[nodiscard]] bool wants(std::size_t i) const { return c_.packed || (c_.wanted >> i & 1u) != 0; }
  [[nodiscard]] std::int64_t rows() const { return c_.sequences * c_.heads * c_.length; }

 private:
  [[nodiscard]] static std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] std::size_t size(std::int64_t row) const { return count(tokens_ * row); }

  void answer() {
    run_host();
    for (std::int64_t s = 0; s < c_.sequences; ++s)
      for (std::int64_t h = 0; h < c_.heads; ++h) bound_head(s, h);
    if (c_.accumulate)
      for (std::size_t g = 0; g < gradients.size(); ++g)
        for (std::size_t i = 0; i < before[g].size(); ++i) gradients[g].value[i] += before[g][i];
    round(out_);
    for (Answer& g : gradients) round(g);
  }

  // The result is stored: what it is off by until then is rounded with it.
  void round(Answer& a) const {
    for (std::size_t i = 0; i < a.value.size(); ++i)
      a.bound[i] += rounding() * (std::abs(a.value[i]) + a.bound[i]) + least();
  }

  // The host's kernel in fp64. Backward is given the output as the storage type has it, as the GPU's is.
  void run_host() {
    Workload wide = work;
    wide.element_bytes = 8;
    const OpFacts facts = fsdp::facts(native_implementation(), op, wide);
    Block scratch(facts.forward_scratch_bytes), back_scratch(facts.backward_scratch_bytes);
    std::vector<KernelArg> forward, backward{{view_of(grad_out)}};
    for (Numbers& x : inputs) forward.push_back({view_of(x)});
    for (Numbers& x : inputs) backward.push_back({view_of(x)});
    forward.insert(forward.end(), {{view_of(out_.value)}, {view_of(lse_.value)}, {scratch.view()}});
    host_kernel_set().forward(op, wide, DType::f64, forward, 0);
    stored_out = rounded(c_.type, out_.value);
    backward.insert(backward.end(), {{view_of(stored_out)}, {view_of(lse_.value)}, {back_scratch.view()}});
    for (Answer& g : gradients) backward.push_back({view_of(g.value)});
    host_kernel_set().backward(op, wide, DType::f64, backward, 0);
  }

  [[nodiscard]] double arithmetic() const { return c_.type == DType::f64 ? 0x1p-53 : 0x1p-24; }
  [[nodiscard]] double rounding() const {
    return c_.type == DType::bf16 ? 0x1p-8 : c_.type == DType::f16 ? 0x1p-11 : arithmetic();
  }
  [[nodiscard]] double least() const { return c_.type == DType::f16 ? 0x1p-25 : 0; }

  // Adds the bounds of one head of one sequence, from the definition.
  void bound_head(std::int64_t s, std::int64_t h) {
    const std::int64_t d = c_.dim, n = c_.length, g = h / (c_.heads / c_.kv_heads), out_row = c_.heads * d;
    const std::int64_t k_at = c_.packed ? c_.heads * d : 0, v_at = c_.packed ? (c_.heads + c_.kv_heads) * d : 0;
    const std::size_t k_in = c_.packed ? 0 : 1, v_in = c_.packed ? 0 : 2;
    const auto q = [&](std::int64_t i) { return count((s * n + i) * q_row_ + h * d); };
    const auto k = [&](std::int64_t j) { return count((s * n + j) * kv_row_ + k_at + g * d); };
    const auto v = [&](std::int64_t j) { return count((s * n + j) * kv_row_ + v_at + g * d); };
    const auto o = [&](std::int64_t i) { return count((s * n + i) * out_row + h * d); };
    const double u = rounding(), factor = 1 / std::sqrt(static_cast<double>(d)), tiny = least();
    const double order = static_cast<double>(n) * arithmetic();  // of sums over the sequence
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = 0, sum_magnitude = 0;
      for (std::int64_t e = 0; e < d; ++e) {
        const double x = grad_out[o(i) + count(e)] * stored_out[o(i) + count(e)];
        sum += x, sum_magnitude += std::abs(x);
      }
      const double lse = lse_.value[count((s * c_.heads + h) * n + i)];
      double furthest = 0;
      for (std::int64_t j = 0; j < n; ++j) {
        if ((c_.causal && j > i) || (c_.window > 0 && i - j >= c_.window)) continue;
        double score = 0, magnitude = 0, dp = 0, dp_magnitude = 0;
        for (std::int64_t e = 0; e < d; ++e) {
          const double qk = inputs[0][q(i) + count(e)] * inputs[k_in][k(j) + count(e)] * factor;
          const double dv = grad_out[o(i) + count(e)] * inputs[v_in][v(j) + count(e)];
          score += qk, magnitude += std::abs(qk), dp += dv, dp_magnitude += std::abs(dv);
        }
        const double lowered = slope(h) * static_cast<double>(std::abs(i - j));
        const double p = std::exp(score - lowered - lse);
        const double e = arithmetic() * (static_cast<double>(d) * magnitude + 8 * (lowered + std::abs(lse) + 1));
        furthest = std::max(furthest, e);
        const double ds = p * (dp - sum), of_sums = static_cast<double>(d) * arithmetic();
        const double near = u * std::abs(ds) + (e + of_sums) * p * (dp_magnitude + sum_magnitude) + tiny;
        for (std::int64_t x = 0; x < d; ++x) {
          const std::size_t c = count(x);
          out_.bound[o(i) + c] += ((u + 2 * e + order) * p + tiny) * std::abs(inputs[v_in][v(j) + c]);
          gradients[v_in].bound[v(j) + c] += ((u + e + order) * p + tiny) * std::abs(grad_out[o(i) + c]);
          gradients[0].bound[q(i) + c] += near * factor * std::abs(inputs[k_in][k(j) + c]);
          gradients[k_in].bound[k(j) + c] += near * factor * std::abs(inputs[0][q(i) + c]);
        }
      }
      lse_.bound[count((s * c_.heads + h) * n + i)] = furthest + order;
    }
  }

  // Of the ALiBi paper, for any number of heads: powers of 2^(-8 / n), n the next power of two; the even ones first if
  // there are fewer heads.
  [[nodiscard]] double slope(std::int64_t h) const {
    if (!c_.alibi) return 0;
    std::int64_t n = 1;
    while (n < c_.heads) n *= 2;
    std::vector<double> powers;
    for (std::int64_t i = 1; i <= n; ++i)
      powers.push_back(std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(n)));
    if (n == c_.heads) return powers[count(h)];
    std::vector<double> chosen;
    for (std::size_t i = 1; i < powers.size(); i += 2) chosen.push_back(powers[i]);
    for (std::size_t i = 0; i < powers.size(); i += 2) chosen.push_back(powers[i]);
    return chosen[count(h)];
  }

 public:
  Numbers stored_out;

 private:
  AttentionCase c_;
  std::int64_t tokens_, q_row_, kv_row_;
  Answer out_, lse_;
};

// The worst element, in units of its bound; a NaN is infinitely far.
inline double worst(const Numbers& got, const AttentionProblem::Answer& a) {
  if (got.size() != a.value.size()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i])) return std::numeric_limits<double>::infinity();
    const double off = std::abs(got[i] - a.value[i]);
    if (off > 0) most = std::max(most, off / a.bound[i]);
  }
  return most;
}

inline Block poisoned(std::int64_t bytes) {
  Block b(bytes);
  std::memset(b.view().data, 0xff, static_cast<std::size_t>(bytes));  // NaN in every type
  return b;
}

struct AttentionResult {
  Numbers out, lse;
  std::vector<Numbers> gradients;  // empty: not wanted
};

// Runs a case on `machine`: to_device(BufferView) -> BufferView, to_host(device view, BufferView), forward(DType,
// AttentionForward), backward(DType, AttentionBackward). Outputs are NaN before.
template <class Machine>
AttentionResult run_attention(Machine& machine, const AttentionCase& c, AttentionProblem& p) {
  const DType math = c.type == DType::f64 ? DType::f64 : DType::f32;
  const std::int64_t row_bytes = p.rows() * size_of(math);
  const std::int64_t out_bytes = static_cast<std::int64_t>(p.out().value.size()) * size_of(c.type);
  AttentionResult r;
  std::vector<Block> in;
  std::vector<BufferView> in_device;
  for (const Numbers& x : p.inputs) in.push_back(encode(c.type, x));
  for (Block& b : in) in_device.push_back(machine.to_device(b.view()));
  {
    Block out = poisoned(out_bytes), lse = poisoned(row_bytes);
    const BufferView out_device = machine.to_device(out.view()), lse_device = machine.to_device(lse.view());
    std::vector<KernelArg> args;
    for (const BufferView v : in_device) args.push_back({v});
    args.insert(args.end(), {{out_device}, {lse_device}, {}});
    machine.forward(c.type, cuda::attention_forward_arguments(c.type, Call(p.op, p.work, args, 0, false)));
    machine.to_host(out_device, out.view()), machine.to_host(lse_device, lse.view());
    r.out = decode(c.type, out.view()), r.lse = decode(math, lse.view());
  }
  Block grad_out = encode(c.type, p.grad_out), out = encode(c.type, p.stored_out);
  Block lse = encode(math, p.lse().value), sums = poisoned(row_bytes);
  std::vector<KernelArg> args{{machine.to_device(grad_out.view())}};
  for (const BufferView v : in_device) args.push_back({v});
  args.insert(args.end(),
              {{machine.to_device(out.view())}, {machine.to_device(lse.view())}, {machine.to_device(sums.view())}});
  std::vector<Block> grads;
  std::vector<BufferView> grads_device;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::int64_t bytes = p.wants(i) ? in[i].view().bytes : 0;
    grads.push_back(bytes == 0 ? Block() : c.accumulate ? encode(c.type, p.before[i]) : poisoned(bytes));
  }
  for (Block& g : grads) {
    grads_device.push_back(g.view().data == nullptr ? BufferView{} : machine.to_device(g.view()));
    args.push_back({grads_device.back(), c.accumulate});
  }
  machine.backward(c.type, cuda::attention_backward_arguments(c.type, Call(p.op, p.work, args, 0, true)));
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].view().data != nullptr) machine.to_host(grads_device[i], grads[i].view());
    r.gradients.push_back(decode(c.type, grads[i].view()));
  }
  return r;
}

template <class Machine>
void check_attention_case(Machine& machine, const AttentionCase& c, unsigned seed) {
  INFO(name(c));
  AttentionProblem p(c, seed);
  const AttentionResult r = run_attention(machine, c, p);
  CHECK(worst(r.out, p.out()) <= 1);
  CHECK(worst(r.lse, p.lse()) <= 1);
  for (std::size_t i = 0; i < r.gradients.size(); ++i) {
    INFO("gradient of input ", i);
    if (p.wants(i)) CHECK(worst(r.gradients[i], p.gradients[i]) <= 1);
  }
}

}  // namespace fsdp::testing
