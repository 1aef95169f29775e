#include "planner/costs/traced.h"

#include <algorithm>

#include "models/index.h"
#include "planner/costs/attention.h"
#include "planner/costs/matmul.h"
#include "planner/costs/rates.h"

namespace fsdp {
namespace {

double times(std::int64_t extent, std::int64_t sequences) {
  return extent >= 0 ? static_cast<double>(extent) : -static_cast<double>(extent) * static_cast<double>(sequences);
}

struct TracedTime {
  double seconds = 0, arithmetic = 0, bytes = 0, flops = 0, resident = 0, second_round = 0;
};

void add_product(TracedTime& t, const TracedProduct& p, std::int64_t sequences, const CostContext& c) {
  const GpuSpec& gpu = c.cluster.gpu;
  const DType type = c.plan.param_dtype;
  const double peak = matrix_peak(type, gpu), m = times(p.m, sequences), n = times(p.n, sequences),
               k = times(p.k, sequences), count = times(p.count, sequences);
  const double rate = c.costs.matmul_efficiency * c.costs.sustained_clock * c.slowest * peak;
  const auto e = static_cast<double>(size_of(type));
  const MatmulTime one = matmul_time({m, n, k, e, e, n, k, peak / matrix_peak(DType::bf16, gpu), count}, rate, gpu.sms,
                                     memory_rate(c.cluster, c.costs));
  t.seconds += one.seconds;
  t.arithmetic += std::min(one.arithmetic, one.seconds);
  t.bytes += one.bytes;
  t.flops += 2 * m * n * k * count;
  if (!persistent_matmuls(c)) return;
  t.resident = std::max(t.resident, std::min(1.0, one.tiles / static_cast<double>(gpu.sms)));
  t.second_round += second_round(one, c);
}

// Backward makes 2.5 times the flops of the forward (op_work.cpp). A mask that is written out hides nothing from the
// kernel that takes it, which computes the whole square at about the speed of FlashAttention 1 (kernels.cpp).
void add_attention(TracedTime& t, const TracedAttention& a, Direction direction, std::int64_t sequences,
                   const CostContext& c) {
  const Workload w{static_cast<std::int64_t>(times(a.sequences, sequences)), a.queries, size_of(c.plan.param_dtype), 1};
  OpShape shape;
  shape.heads = a.heads, shape.kv_heads = a.kv_heads, shape.head_dim = a.head_dim, shape.causal = a.causal;
  const AttentionKernel kernel =
      a.masked ? AttentionKernel::triton
               : attention_of(AttentionKernel::sdpa, c.plan.torch, c.plan.param_dtype, a.head_dim);
  const double flops = 4 * static_cast<double>(w.sequences) * static_cast<double>(a.heads * a.head_dim) *
                       static_cast<double>(a.queries) * static_cast<double>(a.keys) * (a.causal ? 0.5 : 1) *
                       (direction == Direction::backward ? 2.5 : 1);
  const double peak = matrix_peak(c.plan.param_dtype, c.cluster.gpu);
  const double bytes = static_cast<double>(a.bytes.at(sequences));
  const double arithmetic = attention_arithmetic(kernel, direction, flops, peak, shape, w, c.cluster.gpu, c.costs);
  t.seconds += std::max(arithmetic, bytes / memory_rate(c.cluster, c.costs));
  t.arithmetic += arithmetic;
  t.bytes += bytes;
  t.flops += flops;
}

}  // namespace

Demand traced_demand(const Op& op, Direction direction, std::int64_t sequences, const CostContext& c) {
  const TracedKind& kind = c.model.trace.kinds.at(at(op.shape.traced));
  const double memory = memory_rate(c.cluster, c.costs);
  if (c.cluster.host || memory <= 0) require_calibrated(false, "the operations of a model that PyTorch ran", c.costs);
  Demand d;
  if (direction == Direction::backward && !kind.backward) return d;
  const TracedWork& work = direction == Direction::forward ? kind.forward.work : kind.backward->work;
  TracedTime t;
  for (const TracedProduct& p : work.products) add_product(t, p, sequences, c);
  if (work.attention) add_attention(t, *work.attention, direction, sequences, c);
  const double bytes = static_cast<double>(work.bytes.at(sequences)), launches = static_cast<double>(work.launches);
  t.bytes += bytes;
  t.seconds += bytes / memory + launches * c.costs.kernel_overhead.count();
  d.flops = Flops(t.flops);
  d.host =
      (c.costs.host_per_operation + Seconds(c.implementation.host_seconds_per_launch * launches)) * c.costs.host_scale;
  d.alone = Seconds(t.seconds);
  d.resident = t.resident;
  if (t.resident > 0) d.second_round = t.second_round / t.seconds;
  if (t.seconds <= 0) return d;
  d.use[static_cast<int>(Resource::compute)] =
      std::min(1.0, t.arithmetic / t.seconds) * (t.resident > 0 ? t.resident : 1);
  d.use[static_cast<int>(Resource::memory)] = std::min(1.0, t.bytes / t.seconds / memory);
  return d;
}

}  // namespace fsdp
