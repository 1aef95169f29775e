// Time of the kernels of an op. Formula (GPU):   seconds = launches * overhead + max(arithmetic, bytes / memory rate),
// with arithmetic from matmul.h and attention.h. Every other op is bound by its bytes, which OpFacts count together
// with the fraction of the memory rate that its kernels reach. An op uses compute and memory for the share of its time
// that arithmetic, or memory traffic, alone would take.
//
// Calibrated entries replace the formula: a line per op kind and direction, and for matmuls a curve over flops for each
// of y = x W^T, dx = dy W, dW = dy^T x.
#include "planner/costs/kernels.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "models/graph/output_layer.h"
#include "models/input/error.h"
#include "planner/costs/attention.h"
#include "planner/costs/curve.h"
#include "planner/costs/matmul.h"
#include "planner/costs/rates.h"
#include "planner/costs/traced.h"

namespace fsdp {

namespace {

struct Work {
  double flops = 0, bytes = 0;
  double launches = 1;
  Gradients needed;
  OpFacts facts;
};

Work work_of(const Op& op, Direction direction, Products products, const Workload& w, const CostContext& c) {
  const OpFacts f = facts(c.implementation, op, w);
  if (direction == Direction::forward)
    return {forward_flops(op, w),
            static_cast<double>(f.forward_traffic_bytes),
            static_cast<double>(f.forward_launches),
            {},
            f};
  Work all{backward_flops(op, w), static_cast<double>(f.backward_traffic_bytes),
           static_cast<double>(f.backward_launches), needed_gradients(op, c.model), f};
  if (products == Products::rows) all.needed.weight = false;
  if (products == Products::weight) all.needed.input = false;
  if (is_matmul(op.kind) && all.needed.input != all.needed.weight) {  // one matmul of two
    all.flops /= 2;
    all.bytes /= 2;
    all.launches -= 1;
  }
  return all;
}

struct KernelTime {
  double seconds = 0, arithmetic = 0;  // launches not included
  double resident = 0;                 // Demand::resident
  double second_round = 0;             // seconds
};

DType dtype_of(const Op& op, const CostContext& c) { return op.shape.dtype.value_or(c.plan.param_dtype); }
// Of its products.
DType multiplied_in(const Op& op, const CostContext& c) {
  return op.shape.in_fp32 && size_of(dtype_of(op, c)) == 2 ? DType::f32 : dtype_of(op, c);
}

double matrix_rate(const Op& op, const CostContext& c) {
  const double peak = matrix_peak(multiplied_in(op, c), c.cluster.gpu);
  return c.costs.matmul_efficiency * c.costs.sustained_clock * c.slowest * peak;
}

// False: products as wide as activations are.
bool in_float8(const Op& op, const CostContext& c) {
  if (op.shape.float8 == Float8Recipe::none) return false;
  const GpuSpec& gpu = c.cluster.gpu;
  if (op.shape.float8 == Float8Recipe::mxfp8 && gpu.compute_capability < 100)
    throw InputError(setting("float8"), "mxfp8 needs a Blackwell GPU, and " + gpu.name + " is none",
                     "use a GPU such as b200, or rowwise");
  if (gpu.fp8.count() <= 0)
    throw InputError(setting("float8"), gpu.name + " multiplies no 8-bit numbers",
                     "use a GPU that does, such as h100-sxm-80, or leave it out");
  return true;
}

// Share of the 8-bit rate that torchao's products reach. Those of backward accumulate in full fp32 (use_fast_accum of
// the gradients is false), which costs Hopper's units 10 to 20 % (torchao issue 2377); scales by row run PyTorch's own
// kernel in forward, at 90 to 100 % of cuBLAS's (PyTorch issue 147971). The middles. TransformerEngine accumulates as
// torchao's tensorwise does (_2X_ACC_FPROP, _DGRAD and _WGRAD in its pytorch/module/base.py). Products with a scale per
// 32 numbers: cuBLAS 13.1 does 2850 TFLOP/s at 8192 cubed on a B200 (Triton pull request 9044) of the 3433 that it
// reaches with one per tensor; CUTLASS 3100 to 3201 (flashinfer pull request 2464). PyTorch calls cuBLAS.
double float8_share(Float8Recipe recipe, Direction direction, const GpuSpec& gpu) {
  if (recipe == Float8Recipe::mxfp8) return 2850.0 / 3433;
  if (direction == Direction::backward) return gpu.compute_capability == 90 ? 1 / 1.15 : 1;
  return recipe == Float8Recipe::tensorwise || recipe == Float8Recipe::delayed ? 1 : 0.95;
}

// y = x W^T, dx = dy W, dW = dy^T x: the same three extents, each contracted in turn. Other bytes (a bias, casts) are
// added. Of experts: one such matmul per expert, over its slots, in one grouped launch.
KernelTime matmul_op_time(const Op& op, Direction direction, Work& work, const Workload& w, const CostContext& c) {
  const GpuSpec& gpu = c.cluster.gpu;
  const bool grouped = op.kind == OpKind::expert_linear;
  const double count = grouped ? static_cast<double>(op.shape.experts.multiplied()) : 1;
  const double tokens = static_cast<double>(rows(op.shape.experts, w)) / count;
  const double in = static_cast<double>(op.shape.in), out = static_cast<double>(op.shape.out);
  const double e = static_cast<double>(size_of(multiplied_in(op, c))), memory = memory_rate(c.cluster, c.costs);
  const bool float8 = in_float8(op, c);
  const double float8_rate =
      c.costs.fp8_matmul_efficiency * c.slowest * gpu.fp8.count() * float8_share(op.shape.float8, direction, gpu);
  const double sixteen = matrix_peak(DType::bf16, gpu);
  KernelTime t;
  double moved = 0;
  const auto add = [&](double m, double n, double k, bool eight = true) {
    eight = eight && float8;
    const double rate = eight ? float8_rate : matrix_rate(op, c);
    const double speed = (eight ? gpu.fp8.count() : matrix_peak(multiplied_in(op, c), gpu)) / sixteen;
    const MatmulTime one = matmul_time({m, n, k, eight ? 1 : e, e, in, out, speed, count}, rate, gpu.sms, memory);
    t.seconds += one.seconds;
    t.arithmetic += std::min(one.arithmetic, one.seconds);
    moved += one.bytes;
    if (!persistent_matmuls(c)) return;
    t.resident = std::max(t.resident, std::min(1.0, one.tiles / static_cast<double>(gpu.sms)));
    t.second_round += second_round(one, c);
  };
  if (direction == Direction::forward) {
    add(tokens, out, in);
  } else {
    if (work.needed.input) add(tokens, in, out);
    if (work.needed.weight) add(out, in, tokens, op.shape.float8 != Float8Recipe::rowwise_with_gw_hp);
  }
  // In 8 bits the facts count what is moved beside the products; else the products' bytes, too.
  const double beside = float8 ? work.bytes : std::max(0.0, work.bytes - moved);
  work.bytes = moved + beside;
  t.seconds += beside / memory;
  return t;
}

// Scores that are written out are matmuls over the whole square, whatever is masked in it, and twice
// as many in backward, which has the probabilities; then come the softmax and the copies, which only move bytes.
KernelTime attention_time(const Op& op, Direction direction, const Work& work, const Workload& w,
                          const CostContext& c) {
  const GpuSpec& gpu = c.cluster.gpu;
  const double copied = static_cast<double>(direction == Direction::forward ? work.facts.forward_copied_bytes
                                                                            : work.facts.backward_copied_bytes);
  const double peak = matrix_peak(dtype_of(op, c), gpu), memory = memory_rate(c.cluster, c.costs);
  const double moving = (work.bytes - copied) / memory, copying = copied / memory;
  const auto unmasked = [&op] {
    Op all = op;
    all.shape.causal = false;
    all.shape.window = 0;
    return all;
  };
  if (work.facts.attention == AttentionKernel::math) {
    const double square = forward_flops(unmasked(), w) * (direction == Direction::forward ? 1 : 2);
    const double arithmetic = square / matrix_rate(op, c);
    return {arithmetic + moving + copying, arithmetic, 0};
  }
  if (work.facts.attention == AttentionKernel::masked) {
    // FlashAttention-2's paper measures xformers' kernel, PyTorch's memory-efficient one, at about the speed of
    // FlashAttention 1. A bias hides nothing from it: it computes the whole square.
    const Op all = unmasked();
    const double square = direction == Direction::forward ? forward_flops(all, w) : backward_flops(all, w);
    const double arithmetic =
        attention_arithmetic(AttentionKernel::triton, direction, square, peak, all.shape, w, gpu, c.costs);
    return {std::max(arithmetic, moving) + copying, arithmetic, 0};
  }
  AttentionKernel kernel = attention_of(work.facts.attention, c.plan.torch, dtype_of(op, c), op.shape.head_dim);
  // Flash has no heads of values of another size, but the memory-efficient kernel has, at the speed of the first flash.
  if (op.shape.v_head_dim > 0 && kernel != AttentionKernel::flex && !is_cudnn(kernel, gpu))
    kernel = AttentionKernel::triton;
  const double arithmetic = attention_arithmetic(kernel, direction, work.flops, peak, op.shape, w, gpu, c.costs);
  return {std::max(arithmetic, moving) + copying, arithmetic, 0};
}

// An expert's feed-forward whose matrices have adapters: three products, and two of each adapter, one after the other;
// twice as many of adapters in backward.
KernelTime expert_in_turn_time(const Op& op, Direction direction, Work& work, const Workload& w, const CostContext& c) {
  const OpShape& s = op.shape;
  const double n = static_cast<double>(rows(s.experts, w)), rank = static_cast<double>(s.width);
  const double memory = memory_rate(c.cluster, c.costs), e = static_cast<double>(w.element_bytes);
  KernelTime t;
  const auto add = [&](double m, double columns, double k) {
    const MatmulTime one = matmul_time({.m = m, .n = columns, .k = k, .element_bytes = e, .result_bytes = e},
                                       matrix_rate(op, c), c.cluster.gpu.sms, memory);
    t.seconds += one.seconds;
    t.arithmetic += std::min(one.arithmetic, one.seconds);
    work.bytes += one.bytes;
  };
  const double elementwise = work.bytes;
  const auto adapted = [&](std::int64_t in_, std::int64_t out_) {
    const auto in = static_cast<double>(in_), out = static_cast<double>(out_);
    if (direction == Direction::forward) return add(n, out, in), add(n, rank, in), add(n, out, rank);
    add(n, in, out);
    add(n, rank, out), add(out, rank, n);
    add(n, in, rank), add(rank, in, n);
  };
  adapted(s.in, s.out), adapted(s.in, s.out), adapted(s.out, s.in);
  t.seconds += elementwise / memory;
  return t;
}

KernelTime by_formula(const Op& op, Direction direction, Work& work, const Workload& w, const CostContext& c) {
  const double memory = memory_rate(c.cluster, c.costs);
  KernelTime t;
  switch (op.kind) {
    case OpKind::linear:
    case OpKind::expert_linear: t = matmul_op_time(op, direction, work, w, c); break;
    case OpKind::attention: t = attention_time(op, direction, work, w, c); break;
    case OpKind::opaque:
      if (is_expert_in_turn(op)) {
        t = expert_in_turn_time(op, direction, work, w, c);
        break;
      }
      t.arithmetic = work.flops / matrix_rate(op, c);
      t.seconds = std::max(t.arithmetic, work.bytes / memory);
      break;
    default:
      t.seconds = work.bytes /
                  (memory * (direction == Direction::forward ? work.facts.forward_rate : work.facts.backward_rate));
  }
  t.seconds += work.launches * c.costs.kernel_overhead.count();
  return t;
}

const KernelRate* calibrated_rate(OpKind kind, Direction direction, const Costs& costs) {
  const auto i = static_cast<std::size_t>(2 * static_cast<int>(kind) + (direction == Direction::backward ? 1 : 0));
  if (i >= costs.kernels.size()) return nullptr;
  const KernelRate& r = costs.kernels[i];
  return r.flops_rate.count() > 0 || r.byte_rate.count() > 0 ? &r : nullptr;
}

double by_line(const KernelRate& rate, const Work& work) {
  const double arithmetic = rate.flops_rate.count() > 0 ? work.flops / rate.flops_rate.count() : 0;
  const double moving = rate.byte_rate.count() > 0 ? work.bytes / rate.byte_rate.count() : 0;
  return rate.overhead.count() + std::max(arithmetic, moving);
}

// 0: not calibrated, or in another dtype or in 8 bits, in which a GPU multiplies at another rate. Each of the two
// matmuls of backward has half of its flops. Experts are multiplied one after the other.
double by_calibration(const Op& op, Direction direction, const Work& work, const Workload& w, const CostContext& c) {
  const Costs& costs = c.costs;
  if (is_matmul(op.kind) && in_float8(op, c)) return 0;
  if (!c.cluster.host && (is_matmul(op.kind) || op.kind == OpKind::attention) &&
      costs.measured_dtype.value_or(multiplied_in(op, c)) != multiplied_in(op, c))
    return 0;
  const auto& curve = costs.matmul_curve;
  const auto matmul_time = [&](std::size_t which, double flops) {
    const double rows =
        static_cast<double>(op.kind == OpKind::expert_linear ? op.shape.experts.capacity(w.tokens()) : w.tokens());
    const auto in = static_cast<double>(op.shape.in), out = static_cast<double>(op.shape.out);
    const double beyond =
        static_cast<double>(w.element_bytes) * (rows * in + in * out + rows * out - 3 * std::pow(flops / 2, 2.0 / 3));
    const auto& rate = costs.matmul_beyond_cube[which];
    return interpolate(curve[which], flops) / c.slowest + (rate ? std::max(0.0, beyond) / rate->count() : 0);
  };
  const double count = op.kind == OpKind::expert_linear ? static_cast<double>(op.shape.experts.multiplied()) : 1;
  if (is_matmul(op.kind) && direction == Direction::forward && !curve[0].empty())
    return count * matmul_time(0, work.flops / count);
  if (is_matmul(op.kind) && direction == Direction::backward && !curve[1].empty() && !curve[2].empty()) {
    const double flops = (work.needed.input && work.needed.weight ? work.flops / 2 : work.flops) / count;
    return count * ((work.needed.input ? matmul_time(1, flops) : 0) + (work.needed.weight ? matmul_time(2, flops) : 0));
  }
  const KernelRate* rate = calibrated_rate(op.kind, direction, costs);
  return rate ? by_line(*rate, work) / (is_matmul(op.kind) ? c.slowest : 1) : 0;
}

// Kernels that take element by element, a thread each, are bound by the multiprocessors:
//   scatter_add                 32 G elements/s on an H20, which has 78 of Hopper (FlagGems pull request 4502: 1,024 x
//                               65,536 of fp16 in 2.07 ms)
//   gather, scatter_, index,    index_select 155 G elements/s of bf16 on an H100, which has 132 (pytorch issue 151612),
//   index_put_                  gather by an expanded index 150 G (issue 121389, on a GPU that it leaves out). Since
//                               pull request 151490 of April 2025 gather copies whole rows.
// Of the latter this is what they take longer than their bytes, which are counted already. Clocks are left out.
double element_time(const OpFacts& f, Direction direction, Products products, const Workload& w, const CostContext& c) {
  constexpr double kAdded = 32e9 / 78, kIndexed = 155e9 / 132;  // elements/s of a multiprocessor
  const double sms = static_cast<double>(c.cluster.gpu.sms);
  if (sms <= 0) return 0;
  const bool forward = direction == Direction::forward;
  const auto added = static_cast<double>(forward ? f.forward_scattered : f.backward_scattered);
  const auto indexed = static_cast<double>(forward ? f.forward_indexed : f.backward_indexed);
  const double moved = 2 * static_cast<double>(w.element_bytes) * indexed / memory_rate(c.cluster, c.costs);
  return (products == Products::saved ? 0 : added / (kAdded * sms)) + std::max(0.0, indexed / (kIndexed * sms) - moved);
}

// What the host takes to issue so many kernels, and how many they are.
void add_launches(Demand& d, double launches, double seconds_each, std::int32_t reads, const CostContext& c) {
  d.host_waits = reads > 0;
  d.host =
      (c.costs.host_per_operation + Seconds(seconds_each * launches + c.implementation.host_seconds_per_read * reads)) *
      c.costs.host_scale;
  if (!c.cluster.host) d.launches = launches;
}

}  // namespace

Demand metrics_demand(const Op& loss, std::int64_t sequences, const CostContext& c) {
  const AfterBackward metrics =
      facts(c.implementation, loss, {sequences, c.plan.seq_len, size_of(dtype_of(loss, c)), c.plan.loss_chunks})
          .after_backward;
  const double bytes = static_cast<double>(metrics.traffic_bytes), launches = metrics.launches;
  const KernelRate memory{{}, {}, BytesPerSecond(memory_rate(c.cluster, c.costs))};
  Demand d = traffic_demand(bytes, c.cluster.host ? copy_rate(c.cluster, c.costs) : memory, c.cluster, c.costs);
  d.alone += c.costs.kernel_overhead * launches;
  add_launches(d, launches, c.implementation.host_seconds_per_launch, 0, c);
  return d;
}

Demand kernel_demand(const Op& op, Direction direction, std::int64_t sequences, const CostContext& c, KernelPart part) {
  if (op.shape.traced != kNone) return traced_demand(op, direction, sequences, c);
  const Workload all{sequences, c.plan.seq_len, size_of(dtype_of(op, c)), c.plan.loss_chunks,
                     c.plan.loop.loss_in_model};
  const Workload w = part.parts > 1 ? part_of(all, part.parts) : all;
  Work work = work_of(op, direction, part.products, w, c);
  Demand d;
  d.flops = Flops(work.flops);
  KernelTime t;
  if (op.kind == OpKind::cast) t.seconds = by_line(rate_or_default(c.costs.cast, "casts", c.cluster, c.costs), work);
  else
    t.seconds = t.arithmetic =
        by_calibration(op, direction, work, w, c);  // measured as a whole: assumed to keep the SMs busy
  if (t.seconds == 0) {
    if (c.cluster.host || memory_rate(c.cluster, c.costs) <= 0)
      require_calibrated(false,
                         "'" + std::string(direction == Direction::forward ? "forward " : "backward ") +
                             std::string(name(op.kind)) + "'",
                         c.costs);
    t = by_formula(op, direction, work, w, c);
    const double by_element = element_time(work.facts, direction, part.products, w, c);
    t.seconds += by_element;
    t.arithmetic += by_element;
  }
  const double seconds = t.seconds;
  const std::int32_t reads = direction == Direction::forward ? work.facts.forward_reads : work.facts.backward_reads;
  const bool rows = part.products == Products::rows;
  add_launches(d, work.launches,
               rows ? c.implementation.host_seconds_per_part : c.implementation.host_seconds_per_launch, reads, c);
  d.alone = Seconds(seconds);
  d.resident = t.resident;
  if (t.resident > 0) d.second_round = t.second_round / seconds;
  if (seconds <= 0) return d;
  d.use[static_cast<int>(Resource::compute)] =
      c.cluster.host ? 1 : std::min(1.0, t.arithmetic / seconds) * (t.resident > 0 ? t.resident : 1);
  if (!c.cluster.host)
    d.use[static_cast<int>(Resource::memory)] = std::min(1.0, work.bytes / seconds / memory_rate(c.cluster, c.costs));
  return d;
}

}  // namespace fsdp
