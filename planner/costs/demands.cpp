// Operation -> demand. Kernels are priced by kernels.cpp, collectives by collectives.cpp; copies, casts, gradient norms
// and the optimizer by the bytes they read and write, which their arguments say: AdamW in fp32 reads p, g, m, v and
// writes p, m, v = 28 bytes per parameter (cost-model practice, also for a fused kernel).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "models/input/error.h"
#include "planner/costs.h"
#include "planner/costs/kernels.h"
#include "planner/costs/rates.h"
#include "planner/costs/shape_classes.h"

namespace fsdp {

namespace {

// Bytes that an operation reads and writes: every argument once per access. Of the gather buffer a copy-in writes one
// slot and a copy-out reads it all; of a unit's shard the optimizer touches what is trained.
double traffic_bytes(const Operation& op, const Step& step, const Program& program) {
  const bool one_slot = op.action == Action::gather_copy_in;
  double bytes = 0;
  for (const Arg& a : step.args_of(op)) {
    if (a.buffer < 0 || (one_slot && a.access != Access::read)) continue;
    const Buffer& buffer = program.buffers[static_cast<std::size_t>(a.buffer)];
    std::int64_t part = a.bytes >= 0 ? a.bytes : buffer.bytes;
    if (op.action == Action::optimizer && op.unit >= 0 && buffer.kind == BufferKind::parameter_shard)
      part = std::min(part, program.layouts[static_cast<std::size_t>(op.unit)].reduce_elements * size_of(buffer.dtype));
    bytes += static_cast<double>(part) * (a.access == Access::accumulate ? 2 : 1);
  }
  return one_slot ? 2 * bytes : bytes;
}

// Bytes that the optimizer's kernels move over those of one fused pass. SGD, of many parameters at once or of one:
// decay reads two and writes one; momentum is scaled in place, added to and subtracted from the parameter
// (docs/costs.md).
double optimizer_traffic(const CostContext& c) {
  const Optimizer& o = c.plan.optimizer;
  if (o.kind == OptimizerKind::adamw) return c.implementation.optimizer_traffic;
  if (facts_of(o.kind).eight_bit_block > 0) return 1;  // compiled into one pass
  if (c.implementation.optimizer_form == OptimizerForm::fused) return 1;
  const double decay = o.weight_decay != 0 ? 3 : 0;
  return o.momentum != 0 ? (decay + 2 + 3 + 3) / 5 : (decay + 3) / 3;
}

// torchao casts a weight to 8 bits before it is gathered, in eager operators, whatever is compiled. Bytes per fp32
// value: absolute values 8, the largest of them 4; scaled 8, clamped 8, cast 5. Of a bf16 one half of the first two,
// and 6 more, as it is in fp32 before it is scaled. The scale itself is five operators on a number. Ahead of time the
// largest values of all weights are one pass.
struct EagerOperators {
  double bytes = 0, launches = 1;
};
EagerOperators eager_operators(const Operation& op, const Step& step, const Program& program) {
  const double bytes = traffic_bytes(op, step, program);
  const auto args = step.args_of(op);
  if (op.action == Action::largest_value) return op.unit >= 0 ? EagerOperators{3 * bytes, 2} : EagerOperators{bytes, 6};
  const bool to_8_bits = op.action == Action::cast_shard && !args.empty() &&
                         program.buffers[static_cast<std::size_t>(args.back().buffer)].dtype == DType::f8;
  if (!to_8_bits) return {bytes, 1};
  const bool scales_ahead = program.buffers[static_cast<std::size_t>(args[1].buffer)].bytes > size_of(DType::f32);
  const bool wide = program.buffers[static_cast<std::size_t>(args[0].buffer)].dtype == DType::f32;
  return {(wide ? 21.0 / 5 : 27.0 / 3) * bytes, (scales_ahead ? 3.0 : 8.0) + (wide ? 0 : 1)};
}

KernelRate traffic_rate(Action action, const CostContext& c) {
  switch (action) {
    case Action::cast_shard:
    case Action::largest_value:
    case Action::cast_gradient:
    case Action::accumulate_gradient:
    case Action::finish_gradient: return rate_or_default(c.costs.cast, "casts", c.cluster, c.costs);
    case Action::optimizer: {
      KernelRate r = rate_or_default(c.costs.optimizer, "the optimizer", c.cluster, c.costs);
      if (!c.cluster.host) r.byte_rate = r.byte_rate * (1 / optimizer_traffic(c));
      return r;
    }
    case Action::clip_local_norm:
    case Action::clip_scale: return rate_or_default(c.costs.norm, "gradient norms", c.cluster, c.costs);
    default: return copy_rate(c.cluster, c.costs);
  }
}

// Tokens come over the host link; on the host they are memory like any other.
Demand link_demand(double bytes, const CostContext& c) {
  const double link = host_copy_rate(c.cluster.gpu);
  if (c.cluster.host || link <= 0) return traffic_demand(bytes, copy_rate(c.cluster, c.costs), c.cluster, c.costs);
  Demand d;
  d.alone = Seconds(c.costs.kernel_overhead.count() + bytes / link);
  if (bytes > 0) d.use[static_cast<int>(Resource::host_link)] = std::min(1.0, bytes / link / d.alone.count());
  return d;
}

bool crosses_link(Action a) {
  return a == Action::shard_to_device || a == Action::gradient_to_host || a == Action::offload_activation ||
         a == Action::fetch_activation || a == Action::offload_state || a == Action::fetch_state;
}

CollectiveKind kind_of(Action action) {
  if (action == Action::all_gather) return CollectiveKind::all_gather;
  return action == Action::reduce_scatter ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
}

// Bytes as nccl-tests counts them: the full tensor for all-gather and reduce-scatter, the buffer for all-reduce.
Demand priced_collective(const Operation& op, const Step& step, const Program& program, const CostContext& c) {
  CollectiveCall call = op.comm == Communicator::reshard
                            ? reshard_shape(c.plan.units[static_cast<std::size_t>(op.unit)].reshard_after_forward.ranks,
                                            c.plan, c.cluster)
                            : call_shape(op.comm, c.plan, c.cluster);
  call.kind = kind_of(op.action);
  double bytes = 0;
  if (op.action == Action::all_gather && op.unit < 0) {  // over `tensor`: what is written
    bytes = static_cast<double>(program.buffers[static_cast<std::size_t>(step.args_of(op).back().buffer)].bytes);
  } else if (op.action != Action::all_gather) {
    const auto args = step.args_of(op);
    if (!args.empty() && args[0].buffer >= 0)
      bytes = static_cast<double>(args[0].bytes >= 0 ? args[0].bytes
                                                     : program.buffers[static_cast<std::size_t>(args[0].buffer)].bytes);
  } else {
    const UnitLayout& unit = program.layouts[static_cast<std::size_t>(op.unit)];
    bytes = static_cast<double>(unit.gathered_bytes() * unit.shards);
  }
  call.bytes = Bytes(static_cast<std::int64_t>(bytes));
  return collective_demand(call, c.cluster, c.costs);
}

// torchao's optimizers call compiled code for each parameter: torch.compile wraps it again and checks its guards
// (docs/costs.md).
double compiled_steps(const Operation& op, const Program& program, const CostContext& c) {
  constexpr double kSecondsPerParameter = 4e-4;
  if (facts_of(c.plan.optimizer.kind).eight_bit_block == 0) return 0;
  if (op.unit < 0) return kSecondsPerParameter;
  const auto& params = program.layouts[static_cast<std::size_t>(op.unit)].params;
  return kSecondsPerParameter *
         static_cast<double>(std::count_if(params.begin(), params.end(), [](auto& p) { return p.trainable; }));
}

Seconds host_time(const Operation& op, double kernels, const Program& program, const CostContext& c) {
  // Without copies (fsdp1) a unit's hook ends with the all-gather, whose output its parameters become views of.
  const bool views = c.plan.dialect == Dialect::fsdp1 && op.action == Action::all_gather;
  const bool hook = op.action == Action::gather_copy_out || op.action == Action::scatter_copy_in || views;
  const double launches = op.host_only || op.action == Action::read_loss ? 0 : kernels;
  const double compiled = op.action == Action::optimizer ? compiled_steps(op, program, c) : 0;
  return (c.costs.host_per_operation + Seconds(c.implementation.host_seconds_per_launch * launches + compiled +
                                               (hook ? c.implementation.host_seconds_per_unit_hook : 0))) *
         c.costs.host_scale;
}

// Passes over memory that an optimizer on the CPU takes, of those of one in a single pass (docs/costs.md): AdamW not
// fused works one parameter after the other, with two tensors made anew for each, whose pages the kernel clears.
double host_passes(const Operation& op, const CostContext& c) {
  constexpr double kLoop = 5.1 * 28 / 32;  // of the bytes counted 4 are of a tensor that it makes
  if (op.action != Action::optimizer) return 1;
  if (c.plan.optimizer.kind == OptimizerKind::sgd) return optimizer_traffic(c);
  return c.implementation.optimizer_temp_bytes_per_element == 0 ? 1 : kLoop;
}

// Work of the CPU on offloaded shards: AdamW's 28 bytes per parameter and the like, over what a rank's threads move or
// its share of the node's memory bandwidth, whichever is less (docs/costs.md). torchrun starts each rank with one
// thread where it starts several on a node.
Seconds host_work(const Operation& op, const Step& step, const Program& program, const CostContext& c) {
  constexpr double kNode = 280e9, kThread = 25e9;  // bytes per second
  const double once = traffic_bytes(op, step, program);
  if (once == 0) return {};
  if (c.cluster.host)  // measured as a whole
    return Seconds(once / rate_or_default(c.costs.optimizer, "the optimizer", c.cluster, c.costs).byte_rate.count());
  const double bytes = once * host_passes(op, c);
  const auto ranks = static_cast<double>(std::min<std::int64_t>(c.plan.ranks(), c.cluster.gpus_per_node));
  const double share = bytes * ranks / kNode;
  const int threads = c.plan.loop.host_threads;
  if (threads == 0 && ranks == 1) return Seconds(share);
  // A thread takes as long for an element of 16 bits as for one of 32.
  const double as_wide = op.action == Action::optimizer ? 4.0 / static_cast<double>(size_of(c.plan.master_dtype)) : 1;
  return Seconds(std::max(share, bytes * std::max(1.0, as_wide) / (kThread * std::max(1, threads))));
}

// What moves the parts of products (asynchronous tensor parallelism): copies in the rank's own memory, and over NVLink
// by copy engines, which take no multiprocessor, at the bus of copy_engine_price; each byte is read here by another
// rank as well as written. Ranks wait for the slowest at the first of an op's barriers; PyTorch's Python code issues it
// all.
bool moves_parts(const Operation& op) {
  return (op.action >= Action::tensor_barrier && op.action <= Action::sum_parts) ||
         (op.action == Action::reorder_tokens && op.products == Products::rows);
}
Demand part_demand(const Operation& op, const Step& step, const Program& program, const CostContext& c) {
  const double bytes = traffic_bytes(op, step, program);
  const bool link = op.action == Action::pull_part || op.action == Action::exchange_part;
  const double moved = op.action == Action::share_part ? 2 * bytes : bytes;
  Demand d = link ? Demand{} : traffic_demand(moved, copy_rate(c.cluster, c.costs), c.cluster, c.costs);
  if (op.action == Action::tensor_barrier) d = {};
  if (link) {
    const double bus = c.cluster.intra_bus.count(), memory = memory_rate(c.cluster, c.costs);
    d.alone = c.costs.kernel_overhead + Seconds(bytes / bus);
    d.use[static_cast<int>(Resource::intra_link)] = std::min(1.0, bytes / bus / d.alone.count());
    d.use[static_cast<int>(Resource::memory)] = std::min(1.0, 2 * bytes / memory / d.alone.count());
  }
  const double barriers = op.action == Action::share_part || op.action == Action::exchange_part ? 2
                          : op.action == Action::tensor_barrier                                 ? 1
                                                                                                : 0;
  if (barriers > 0) {
    const double before = d.alone.count(), after = before + barriers * symmetric_barrier(c.cluster).count();
    for (double& use : d.use) use *= before / after;
    d.alone = Seconds(after);
  }
  d.launches = barriers + (op.action == Action::tensor_barrier ? 0 : 1);
  d.host =
      (c.costs.host_per_operation + Seconds(c.implementation.host_seconds_per_part * d.launches)) * c.costs.host_scale;
  return d;
}

// Until the host goes on once it has read the loss. Small collectives of any kind are priced as all-reduces of 8 bytes.
Seconds between_steps(const CostContext& c) {
  const Implementation& i = c.implementation;
  if (i.host_seconds_between_steps == 0 && i.collectives_between_steps == 0) return {};
  CollectiveCall call = call_shape(Communicator::world, c.plan, c.cluster);
  call.kind = CollectiveKind::all_reduce;
  call.bytes = Bytes(8);
  const Seconds each = call.ranks > 1 ? collective_demand(call, c.cluster, c.costs).alone : Seconds();
  return Seconds(i.host_seconds_between_steps) * c.costs.host_scale + each * i.collectives_between_steps;
}

Direction direction_of(Action a) { return a == Action::backward ? Direction::backward : Direction::forward; }

Demand price_uncrowded(const Operation& op, const Step& step, const Program& program, const CostContext& c) {
  if (is_kernel(op.action)) {
    const Op& graph_op = c.model.ops.at(static_cast<std::size_t>(op.graph_op));
    const std::int64_t parts = op.products == Products::rows ? c.plan.tensor() : op.part >= 0 ? c.plan.loss_chunks : 1;
    return kernel_demand(graph_op, direction_of(op.action),
                         c.plan.micro_batches.at(static_cast<std::size_t>(op.micro_batch)), c, {parts, op.products});
  }
  if (op.action == Action::update_metrics)
    return metrics_demand(c.model.ops.at(static_cast<std::size_t>(op.graph_op)),
                          c.plan.micro_batches.at(static_cast<std::size_t>(op.micro_batch)), c);
  if (moves_parts(op)) return part_demand(op, step, program, c);
  Demand d;
  const EagerOperators eager = eager_operators(op, step, program);
  if (is_collective(op.action)) d = priced_collective(op, step, program, c);
  else if (op.action == Action::load_batch) d = link_demand(traffic_bytes(op, step, program), c);
  else if (crosses_link(op.action))  // read here, written there: over the link once
    d = link_demand(traffic_bytes(op, step, program) / 2, c);
  else if (!op.host_only && op.action != Action::read_loss)
    d = traffic_demand(eager.bytes, traffic_rate(op.action, c), c.cluster, c.costs);
  if (eager.launches > 1) d.alone += c.costs.kernel_overhead * (eager.launches - 1);
  d.host = host_time(op, eager.launches, program, c);
  if (op.action == Action::read_loss) d.host_after = between_steps(c);
  if (!op.host_only && !c.cluster.host) d.launches = eager.launches;
  if (op.host_only) d.host = d.host + host_work(op, step, program, c);
  return d;
}

Demand price(const Operation& op, const Step& step, const Program& program, const CostContext& c) {
  Demand d = price_uncrowded(op, step, program, c);
  if (!op.host_only) crowd(d, is_collective(op.action), c.cluster, c.costs);
  return d;
}

void check_platform(const CostContext& c) {
  const std::string& expected = c.cluster.host ? std::string("host") : c.cluster.gpu.name;
  if (!c.costs.platform.empty() && c.costs.platform != expected)
    throw InputError(setting("costs"),
                     "these costs are of platform '" + c.costs.platform + "', the cluster's is '" + expected + "'",
                     "pass costs of that platform, or leave --costs out");
}

// Costs and clusters are read within ranges, but a curve may rise so steeply that no number holds what it says of
// larger sizes.
void check_finite(const Demand& d, std::size_t i, const Operation& op, const CostContext& c) {
  constexpr double kMostSeconds = 1e12;  // the simulator adds them up
  const auto finite = [](Seconds s) { return s.count() >= 0 && s.count() < kMostSeconds; };
  if (finite(d.alone) && finite(d.host)) return;
  const bool datasheet = !c.cluster.host && c.costs == default_costs(c.cluster);
  throw InputError(
      setting(datasheet ? "cluster" : "costs"),
      fmt::format("operation {} ({}) would take {:.3g} s", i, name(op.action),
                  (finite(d.alone) ? d.host : d.alone).count()),
      datasheet ? "correct the rates of the cluster file" : "calibrate again, or leave out what is unreal");
}

// Operations with equal keys have equal demands. Collectives and copies of a unit depend on its sizes alone, kernels on
// the shape of the op and the sequences of the micro-batch; everything else is priced each time.
class Memo {
 public:
  Memo(const Program& program, const CostContext& c)
      : plan_(c.plan), model_(c.model), classes_(shape_classes(c.model, program.layouts, c.plan)) {
    const std::size_t kernels = kPerOp * classes_.op_classes * classes_.batch_classes;
    indices_.assign(kernels + static_cast<std::size_t>(kActions) * classes_.unit_classes, kNone);
  }

  // -1: not memoised.
  [[nodiscard]] std::ptrdiff_t slot(const Operation& op) const {
    if (op.part >= 0 && op.products == Products::all && op.action < Action::tensor_barrier) return -1;
    if (const auto kind = of_op(op)) {
      const auto graph_op = static_cast<std::size_t>(op.graph_op), batch = static_cast<std::size_t>(op.micro_batch);
      const std::size_t row = classes_.of_op[graph_op] * kPerOp + *kind;
      return static_cast<std::ptrdiff_t>(row * classes_.batch_classes + classes_.of_batch[batch]);
    }
    if (op.unit < 0 || !by_unit_alone(op)) return -1;
    const std::size_t kernels = kPerOp * classes_.op_classes * classes_.batch_classes;
    return static_cast<std::ptrdiff_t>(kernels + static_cast<std::size_t>(op.action) * classes_.unit_classes +
                                       classes_.of_unit[static_cast<std::size_t>(op.unit)]);
  }

  // Of a slot: the index in Demands of what was priced for it, kNone so far.
  [[nodiscard]] std::int32_t& index(std::ptrdiff_t slot) { return indices_[static_cast<std::size_t>(slot)]; }

 private:
  // What an op of the model, on so many sequences, has a price for each: its kernels, and where it is a redistribution
  // of rows both of its collectives and the copy that goes with either, or what its parts take.
  static constexpr std::size_t kPerOp = 15;
  [[nodiscard]] std::optional<std::size_t> of_op(const Operation& op) const {
    if (is_kernel(op.action)) {
      const auto direction = static_cast<std::size_t>(direction_of(op.action));
      if (op.products == Products::saved) return 14;
      return op.products == Products::all ? direction : op.products == Products::weight ? 5 : 6 + direction;
    }
    if (op.graph_op < 0) return std::nullopt;
    if (op.action >= Action::tensor_barrier)
      return 8 + static_cast<std::size_t>(op.action) - static_cast<std::size_t>(Action::tensor_barrier);
    if (op.action == Action::reorder_tokens && op.products == Products::rows) return 13;
    const Redistribution kind = model_.ops[static_cast<std::size_t>(op.graph_op)].shape.redistribution;
    if (kind != Redistribution::gather && kind != Redistribution::scatter) return std::nullopt;
    return op.action == Action::all_gather ? 2 : op.action == Action::reduce_scatter ? 3 : 4;
  }

  // Offload casts parameter by parameter, and what is kept over a part of the ranks is gathered in another way than the
  // shards are.
  bool by_unit_alone(const Operation& op) const {
    if (plan_.offload || plan_.units[static_cast<std::size_t>(op.unit)].reshard_after_forward.ranks > 1) return false;
    switch (op.action) {
      case Action::cast_shard: return !plan_.float8.all_gather;  // else weight by weight
      case Action::gather_copy_in:
      case Action::all_gather:
      case Action::gather_copy_out:
      case Action::reduce_scatter: return true;
      default: return false;
    }
  }

  const ShardingPlan& plan_;
  const ModelGraph& model_;
  ShapeClasses classes_;
  std::vector<std::int32_t> indices_;  // by slot
};

// Layers repeat: what is priced each time is most often equal to what was priced a layer before.
struct RecentDemands {
  static constexpr std::size_t kMost = 16;
  std::array<std::int32_t, kMost> indices{};
  std::size_t count = 0;
};
std::int32_t add_like_recent(Demands& demands, RecentDemands& recent, const Demand& priced) {
  for (std::size_t k = 0; k < std::min(recent.count, RecentDemands::kMost); ++k)
    if (demands.at_index(recent.indices[k]) == priced) return demands.add_again(recent.indices[k]);
  return recent.indices[recent.count++ % RecentDemands::kMost] = demands.add(priced);
}

}  // namespace

Demand demand_of(const Operation& op, const Step& step, const Program& program, const CostContext& c) {
  check_platform(c);
  return price(op, step, program, c);
}

Demands demands_of(const Step& step, const Program& program, const CostContext& c) {
  check_platform(c);
  Memo memo(program, c);
  Demands demands;
  RecentDemands recent;
  demands.reserve(step.ops.size());
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    const std::ptrdiff_t slot = memo.slot(op);
    if (slot >= 0 && memo.index(slot) >= 0) {
      demands.add_again(memo.index(slot));
      continue;
    }
    const Demand priced = price(op, step, program, c);
    check_finite(priced, i, op, c);
    const std::int32_t index = add_like_recent(demands, recent, priced);
    if (slot >= 0) memo.index(slot) = index;
  }
  return demands;
}

}  // namespace fsdp
