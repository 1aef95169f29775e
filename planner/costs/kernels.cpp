// Kernels. Formula (GPU):   seconds = launches * overhead + max(flops / (peak * efficiency), bytes / memory rate)
// with the efficiency of matrix products, of attention forward or of attention backward; every other op is bound by its bytes
// (OpFacts counts them). What it uses of the machine follows: the share of its time that arithmetic, or memory, alone would take.
//
// Calibrated entries replace the formula: a line per op kind and direction, and for matrix products a curve over flops for each
// of the three products y = x W^T, dx = dy W, dW = dy^T x.
#include "planner/costs/kernels.h"

#include <algorithm>
#include <string>

#include "planner/costs/curve.h"
#include "planner/costs/rates.h"

namespace fsdp {

Gradients needed_gradients(const Op& op, const ModelGraph& model) {
  const auto tensor = [&](std::int32_t t) { return model.tensors[static_cast<std::size_t>(t)].requires_grad; };
  const auto parameter = [&](std::int32_t p) { return model.parameters[static_cast<std::size_t>(p)].trainable; };
  return {op.inputs.empty() || tensor(op.inputs[0]), op.params.empty() || parameter(op.params[0])};
}

namespace {

struct Work {
  double flops = 0, bytes = 0;
  double launches = 1;
  Gradients needed;
};

Work work_of(const Op& op, Direction direction, const Workload& w, const CostContext& c) {
  const OpFacts f = facts(c.implementation, op, w);
  if (direction == Direction::forward)
    return {forward_flops(op, w), static_cast<double>(f.forward_traffic_bytes), static_cast<double>(f.forward_launches), {}};
  Work all{backward_flops(op, w), static_cast<double>(f.backward_traffic_bytes), static_cast<double>(f.backward_launches),
           needed_gradients(op, c.model)};
  if (op.kind == OpKind::linear && all.needed.input != all.needed.weight) {  // one product of two
    all.flops /= 2;
    all.bytes /= 2;
    all.launches -= 1;
  }
  return all;
}

// Fraction of the matrix units' peak that this op reaches; 0: it does not run on them.
double efficiency(OpKind kind, Direction direction, const Costs& costs) {
  switch (kind) {
    case OpKind::linear:
    case OpKind::opaque: return costs.matmul_efficiency;
    case OpKind::attention:
      return direction == Direction::forward ? costs.attention_forward_efficiency : costs.attention_backward_efficiency;
    default: return 0;
  }
}

double by_formula(const Op& op, Direction direction, const Work& work, const CostContext& c, double* arithmetic) {
  const double rate = efficiency(op.kind, direction, c.costs) * matrix_peak(c.plan.param_dtype, c.cluster.gpu);
  *arithmetic = rate > 0 ? work.flops / rate : 0;
  return work.launches * c.costs.kernel_overhead.count() + std::max(*arithmetic, work.bytes / memory_rate(c.cluster, c.costs));
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

// 0: not calibrated. The two backward products are each half of backward's flops.
double by_calibration(const Op& op, Direction direction, const Work& work, const Costs& costs) {
  const auto& curve = costs.matmul_curve;
  if (op.kind == OpKind::linear && direction == Direction::forward && !curve[0].empty()) return interpolate(curve[0], work.flops);
  if (op.kind == OpKind::linear && direction == Direction::backward && !curve[1].empty() && !curve[2].empty()) {
    const double product = work.needed.input && work.needed.weight ? work.flops / 2 : work.flops;
    return (work.needed.input ? interpolate(curve[1], product) : 0) + (work.needed.weight ? interpolate(curve[2], product) : 0);
  }
  const KernelRate* rate = calibrated_rate(op.kind, direction, costs);
  return rate ? by_line(*rate, work) : 0;
}

}  // namespace

Demand kernel_demand(const Op& op, Direction direction, std::int64_t sequences, const CostContext& c) {
  const Workload w{sequences, c.plan.seq_len, size_of(c.plan.param_dtype), c.plan.loss_chunks};
  const Work work = work_of(op, direction, w, c);
  Demand d;
  d.flops = Flops(work.flops);
  d.host = c.costs.host_per_operation + Seconds(c.implementation.host_seconds_per_launch * work.launches);
  double arithmetic = 0;
  double seconds = by_calibration(op, direction, work, c.costs);
  if (seconds == 0) {
    if (c.cluster.host || memory_rate(c.cluster, c.costs) <= 0)
      require_calibrated(
          false, "'" + std::string(direction == Direction::forward ? "forward " : "backward ") + std::string(name(op.kind)) + "'",
          c.costs);
    seconds = by_formula(op, direction, work, c, &arithmetic);
  } else {
    arithmetic = seconds;  // measured whole: taken to keep the multiprocessors busy
  }
  d.alone = Seconds(seconds);
  if (seconds <= 0) return d;
  d.use[static_cast<int>(Resource::compute)] = c.cluster.host ? 1 : std::min(1.0, arithmetic / seconds);
  if (!c.cluster.host)
    d.use[static_cast<int>(Resource::memory)] = std::min(1.0, work.bytes / seconds / memory_rate(c.cluster, c.costs));
  return d;
}

}  // namespace fsdp
