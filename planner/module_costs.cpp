#include "planner/module_costs.h"

#include <set>

#include "planner/lower.h"
#include "planner/tensor/local_model.h"

namespace fsdp {
namespace {

struct OpCost {
  Seconds forward, backward;
};

// Kernel times by op of the graph, from the demands of a lowered step without checkpointing.
std::vector<OpCost> op_costs(const CostContext& c) {
  ShardingPlan plan = c.plan;
  plan.checkpointed.clear();
  plan.micro_batches.resize(1);
  const CostContext context{c.model, plan, c.implementation, c.cluster, c.costs};
  const Program program = lower(c.model, plan, c.implementation);
  const Demands demands = demands_of(program.steady_step, program, context);
  std::vector<OpCost> costs(c.model.ops.size());
  bool forward = true;  // all of it comes before any of backward
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const Operation& op = program.steady_step.ops[i];
    if (op.graph_op < 0) continue;
    forward = forward && op.action != Action::backward;
    OpCost& cost = costs[static_cast<std::size_t>(op.graph_op)];
    (forward ? cost.forward : cost.backward) += demands[i].alone;
  }
  return costs;
}

Bytes saved_bytes(const Module& module, const CostContext& c, const Workload& workload) {
  std::set<std::int32_t> kept;
  std::int64_t bytes = 0;
  for (std::int32_t i = module.op_begin; i < module.op_end; ++i) {
    const Op& op = c.model.ops[static_cast<std::size_t>(i)];
    const OpFacts f = facts(c.implementation, op, workload, c.model);
    for (std::size_t t = 0; t < op.inputs.size(); ++t)
      if ((f.saved_inputs >> t) & 1) kept.insert(op.inputs[t]);
    for (std::size_t t = 0; t < op.outputs.size(); ++t)
      if ((f.saved_outputs >> t) & 1) kept.insert(op.outputs[t]);
    bytes += f.saved_extra_bytes;
  }
  for (const std::int32_t t : kept) {
    const Tensor& tensor = c.model.tensors[static_cast<std::size_t>(t)];
    const std::int64_t element = tensor.kind == TensorKind::ids ? size_of(DType::i64)
                                 : tensor.dtype                 ? size_of(*tensor.dtype)
                                                                : workload.element_bytes;
    bytes += elements(tensor, workload) * element;
  }
  return Bytes(bytes);
}

// Elements of a parameter on every rank together, each shard padded to the longest chunk.
std::int64_t padded(const Parameter& p, std::int64_t shards) {
  const std::int64_t rows = p.shape.front();
  return (rows + shards - 1) / shards * shards * (p.numel() / rows);
}

}  // namespace

std::vector<ModuleCost> module_costs(const CostContext& c) {
  if (differs_from_local(c.model, c.plan, c.implementation)) {
    const ModelGraph local = local_model(c.model, c.plan, c.implementation);
    return module_costs({local, c.plan, c.implementation, c.cluster, c.costs});
  }
  const std::vector<OpCost> ops = op_costs(c);
  const std::int64_t shards = c.plan.shard();
  const Workload workload{c.plan.micro_batches.front(), c.plan.seq_len, size_of(c.plan.param_dtype), c.plan.loss_chunks,
                          c.plan.loop.loss_in_model};
  std::vector<ModuleCost> costs(c.model.modules.size());
  std::vector<std::int64_t> padded_elements(costs.size(), 0), kept_bytes(costs.size(), 0);
  for (const Parameter& p : c.model.parameters) {
    for (std::int32_t m = p.modules.front(); m >= 0; m = c.model.modules[static_cast<std::size_t>(m)].parent) {
      costs[static_cast<std::size_t>(m)].parameters += p.numbers();
      padded_elements[static_cast<std::size_t>(m)] += padded(p, shards);
      kept_bytes[static_cast<std::size_t>(m)] += padded(p, shards) / shards * size_of(c.plan.kept_dtype(p.trainable));
    }
  }
  CollectiveCall call = call_shape(Communicator::shard, c.plan, c.cluster);
  for (std::size_t m = 0; m < costs.size(); ++m) {
    ModuleCost& cost = costs[m];
    const Module& module = c.model.modules[m];
    cost.module = static_cast<std::int32_t>(m);
    cost.shard = Bytes(kept_bytes[m]);
    for (std::int32_t i = module.op_begin; i < module.op_end; ++i) {
      cost.forward += ops[static_cast<std::size_t>(i)].forward;
      cost.backward += ops[static_cast<std::size_t>(i)].backward;
    }
    cost.saved = saved_bytes(module, c, workload);
    if (cost.parameters == 0 || shards == 1) continue;
    call.kind = CollectiveKind::all_gather;
    call.bytes = Bytes(padded_elements[m] * size_of(c.plan.param_dtype));
    cost.all_gather = collective_demand(call, c.cluster, c.costs).alone;
    call.kind = CollectiveKind::reduce_scatter;
    call.bytes = Bytes(padded_elements[m] * size_of(c.plan.reduce_dtype));
    cost.reduce_scatter = collective_demand(call, c.cluster, c.costs).alone;
  }
  return costs;
}

}  // namespace fsdp
