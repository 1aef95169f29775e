#include "planner/plan/check_tensor.h"

#include <string>

#include "planner/plan/refusal.h"

namespace fsdp {

void check_tensor(const ShardingPlan& plan, std::string_view where) {
  const std::int64_t n = plan.tensor();
  const TensorPlan& t = plan.tensor_plan;
  if (n == 1 && (!t.modules.empty() || !t.loss_parallel))
    refuse(where, "tensor_plan", "says how modules are split, but the mesh has no tensor dimension",
           "add {\"name\": \"tensor\", \"size\": 8} to the mesh, or leave it out");
  if (n == 1) return;
  if (plan.dialect != Dialect::fsdp2)
    refuse(where, "mesh", "tensor parallelism beside " + std::string(name(plan.dialect)) + " is not modelled",
           "use fsdp2, or a tensor dimension of 1");
  if (plan.torch != TorchVersion{} && plan.torch.before(2, 15))
    refuse(where, "dialect", "tensor parallelism is known as it is in PyTorch 2.15 only", "use fsdp2");
  if (t.modules.empty())
    refuse(where, "tensor_plan", "is missing, and the mesh has a tensor dimension",
           "let `fsdp-plan plan --tensor " + std::to_string(n) + "` write it, or use a tensor dimension of 1");
  if (plan.seq_len % n != 0)
    refuse(where, "seq_len",
           std::to_string(plan.seq_len) + " tokens cannot be split over " + std::to_string(n) + " tensor ranks",
           "use a multiple of " + std::to_string(n));
  const auto refuse_if = [&](bool used, const std::string& field, const std::string& what) {
    if (used)
      refuse(where, field, what + " is not known with tensor parallelism",
             "leave it out, or use a tensor dimension of 1");
  };
  refuse_if(plan.loss_chunks > 1, "loss_chunks", "a loss in parts");
  refuse_if(plan.offload, "offload", "keeping shards in host memory");
  refuse_if(!plan.ignored.empty(), "ignored", "leaving parameters to themselves");
  refuse_if(!plan.shard_dims.empty(), "shard_dims", "sharding another dimension than 0");
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    if (plan.units[u].reshard_after_forward.ranks > 1)
      refuse(where, "units[" + std::to_string(u) + "].reshard_after_forward",
             "PyTorch does not keep a unit over a part of the ranks where its parameters are split over tensor ranks",
             "use auto, true or false");
}

void check_tensor_recomputation(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  for (const std::string& name : plan.checkpointed) {
    const std::int32_t m = model.find_module(name);
    if (m >= 0 && !model.modules[static_cast<std::size_t>(m)].block)
      refuse(where, "checkpointed",
             "'" + name + "' is a part of a block, whose recomputation is not known with tensor parallelism",
             "recompute whole blocks, or use a tensor dimension of 1");
  }
}

void check_tensor_ranks(std::int64_t tensor, std::int64_t ranks, Dialect dialect) {
  if (tensor == 1) return;
  if (tensor < 1 || ranks % tensor != 0)
    throw InputError(setting("tensor"),
                     std::to_string(tensor) + " tensor ranks do not divide " + std::to_string(ranks) + " GPUs",
                     "use a divisor of " + std::to_string(ranks));
  if (dialect != Dialect::fsdp2)
    throw InputError(setting("tensor"), "tensor parallelism beside " + std::string(name(dialect)) + " is not modelled",
                     "use the fsdp2 dialect, or leave it out");
}

}  // namespace fsdp
