// A run on several ranks against the same training on one, and against what was predicted of it.
#pragma once

#include <map>
#include <string>

#include "planner/tensor/local_model.h"
#include "simulator/analysis/order.h"
#include "simulator/records/measurement.h"
#include "tests/support/run_support.h"

namespace fsdp::testing {

inline PlanWords in_double(PlanWords w) {
  w.compute = w.reduce = w.master = DType::f64;
  return w;
}

// The same batches on one rank, in one micro-batch, one unit, nothing else asked for.
inline ShardingPlan unsharded(const ModelGraph& model, const ShardingPlan& plan) {
  ShardingPlan p = make_plan(
      model,
      {.wrap = "root", .micro_batches = {plan.sequences_per_rank() * plan.data_ranks()}, .seq_len = plan.seq_len});
  p.param_dtype = p.reduce_dtype = p.master_dtype = plan.master_dtype;
  p.optimizer = plan.optimizer;
  p.clip_norm = plan.clip_norm;
  p.clip_norm_type = plan.clip_norm_type;
  p.seed = plan.seed;
  return p;
}

// Of a collective over tensor ranks, by the model.
template <class AllReduce>
std::int64_t over_tensor(const Operation& op, const Program& p, const ShardingPlan& plan, const ModelGraph& model,
                         const AllReduce& all_reduce) {
  const std::int64_t tokens = plan.micro_batches.at(static_cast<std::size_t>(op.micro_batch)) * plan.seq_len;
  if (op.action == Action::clip_reduce) return all_reduce(1) * 8;
  if (op.graph_op < 0) {
    const Buffer& sum = p.buffers.at(static_cast<std::size_t>(p.steady_step.args_of(op).back().buffer));
    return all_reduce(model.parameters.at(static_cast<std::size_t>(sum.param)).numel()) * size_of(plan.reduce_dtype);
  }
  if (op.action == Action::all_reduce) return all_reduce(tokens) * (plan.param_dtype == DType::f64 ? 8 : 4);
  const OpShape& s = model.ops.at(static_cast<std::size_t>(op.graph_op)).shape;
  return (plan.tensor() - 1) * tokens * std::max(s.in, s.out) / plan.tensor() * size_of(plan.param_dtype);
}

// What each rank receives of a step's collectives by the ring formula, from the layouts alone.
inline std::int64_t expected_wire_bytes(const Program& p, const ShardingPlan& plan, const ModelGraph& model) {
  std::int64_t total = 0;
  const auto all_reduce = [](std::int64_t n, std::int64_t ranks,
                             std::int64_t me) {  // two phases over near-equal chunks
    const std::int64_t chunk = (n + ranks - 1) / ranks;
    const std::int64_t mine = std::max<std::int64_t>(0, std::min(n, (me + 1) * chunk) - std::min(n, me * chunk));
    return (ranks - 1) * mine + n - mine;
  };
  const std::int64_t tensor = plan.tensor(), member = p.rank % tensor;
  const bool ddp = plan.dialect == Dialect::ddp;
  // Ranks of a shard group: by the communicator that the plan's text says, not by layouts.
  const auto shards_of = [&](const Operation& op) {
    const bool own = op.comm == Communicator::own_shard || op.comm == Communicator::own_replicate;
    return own ? plan.own_shard() : plan.shard();
  };
  for (const Operation& op : p.steady_step.ops) {
    const auto u = static_cast<std::size_t>(op.unit);
    const std::int64_t reduced = op.unit < 0 ? 0 : p.layouts[u].reduce_elements;
    const DType reduce = ddp || op.unit < 0 ? plan.master_dtype : p.layouts[u].reduce_dtype;
    if (op.comm == Communicator::tensor) {
      total += over_tensor(op, p, plan, model, [&](std::int64_t n) { return all_reduce(n, tensor, member); });
      continue;
    }
    if (op.action == Action::all_gather) {
      const std::int64_t shards = shards_of(op),
                         ranks = op.comm == Communicator::reshard ? plan.units[u].reshard_after_forward.ranks : shards;
      total += (ranks - 1) * (p.layouts[u].shard_elements * shards / ranks) * size_of(p.layouts[u].param_dtype);
    }
    if (op.action == Action::reduce_scatter) total += (shards_of(op) - 1) * reduced * size_of(reduce);
    if (op.action == Action::all_reduce) {
      const std::int64_t shards = shards_of(op);
      total += all_reduce(reduced, plan.data_ranks() / shards, p.rank / tensor / shards) * size_of(reduce);
    }
    if (op.action == Action::clip_reduce) total += all_reduce(1, shards_of(op), p.rank / tensor % shards_of(op)) * 8;
    if (op.action == Action::reduce_loss) total += all_reduce(1, plan.ranks(), p.rank) * 8;
  }
  return total;
}

// Order, memory and bytes on the wire of every rank.
inline void check_as_predicted(const ModelGraph& model, const ShardingPlan& plan, const Measurement& m) {
  REQUIRE(m.ranks.size() == static_cast<std::size_t>(plan.ranks()));
  const ModelGraph local = local_model(model, plan);
  for (const RankMeasurement& r : m.ranks) {
    CAPTURE(r.rank);
    const Program program = lower(local, plan, native_implementation(), r.rank);
    CHECK(r.order == order_of(program.steady_step, plan, local));
    check_memory(r, program);
    CHECK(r.undeclared_bytes == 0);
    CHECK(r.wire_bytes == expected_wire_bytes(program, plan, local));
  }
}

inline void check_equal(const RunResult& many, const RunResult& one, double tolerance) {
  CHECK(distance(many.measurement.losses, one.measurement.losses) <= tolerance);
  REQUIRE(many.parameters.size() == one.parameters.size());
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    CAPTURE(one.parameters[i].name);
    CHECK(distance(many.first_gradients[i].values, one.first_gradients[i].values) <= tolerance);
    CHECK(distance(many.parameters[i].values, one.parameters[i].values) <= tolerance);
  }
}

inline bool equal_bits(const RunResult& a, const RunResult& b) {
  bool equal = a.measurement.losses == b.measurement.losses;
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    equal = equal && a.parameters[i].values == b.parameters[i].values;
  return equal;
}

// One per model and batch: what runs on one rank gives.
inline const RunResult& reference(const ModelGraph& model, const ShardingPlan& plan) {
  static std::map<std::string, RunResult> known;
  const ShardingPlan one = unsharded(model, plan);
  const std::string key = model.digest() + one.digest();
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, execute(model, one, five_steps())).first->second;
}

// Five steps equal those of one rank (in fp64; 1e-10 is what sums in another order leave room for), and what was
// predicted.
inline RunResult check_parity(const ModelGraph& model, const ShardingPlan& plan,
                              const RunOptions& options = five_steps(), double tolerance = 1e-10) {
  CAPTURE(to_json_text(plan));
  RunResult result = execute(model, plan, options);
  check_equal(result, reference(model, plan), tolerance);
  check_as_predicted(model, plan, result.measurement);
  return result;
}

inline int count(const ModelGraph& model, const ShardingPlan& plan, Action action) {
  const Program program = lower(local_model(model, plan), plan, native_implementation());
  return static_cast<int>(std::count_if(program.steady_step.ops.begin(), program.steady_step.ops.end(),
                                        [&](const Operation& op) { return op.action == action; }));
}

// Collectives of one kind that a rank's instruments saw in a step.
inline int executed(const RankMeasurement& rank, Action action) {
  return static_cast<int>(std::count_if(rank.order.begin(), rank.order.end(),
                                        [&](const OrderedOperation& o) { return o.action == action; }));
}

}  // namespace fsdp::testing
