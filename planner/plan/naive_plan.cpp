#include "planner/plan/naive_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/graph/module_names.h"
#include "models/graph/output_layer.h"
#include "models/input/error.h"
#include "planner/plan/check_tensor.h"
#include "planner/tensor/families.h"
#include "planner/wrap.h"

namespace fsdp {

void set_reshard(ShardingPlan& plan, Reshard reshard) {
  if (reshard == Reshard::automatic && plan.dialect != Dialect::ddp) return;
  for (Unit& unit : plan.units) unit.reshard_after_forward = reshard;
}

std::vector<ShardDim> expert_shard_dims(const ModelGraph& model, Dialect dialect, std::int64_t shards) {
  std::vector<ShardDim> dims;
  if (dialect != Dialect::fsdp2) return dims;
  for (const Op& op : model.ops) {
    if (op.kind != OpKind::expert_linear) continue;
    const Parameter& p = model.parameters[static_cast<std::size_t>(op.params[0])];
    if (shards > p.shape[0] && p.shape[1] % shards == 0) dims.push_back({p.name, 1});
  }
  return dims;
}

void set_expert_shard(ShardingPlan& plan, const ModelGraph& model, std::int64_t ranks, const Origin& where) {
  std::vector<std::string> experts;  // modules that hold them
  for (const Op& op : model.ops) {
    if (op.kind != OpKind::expert_linear) continue;
    const std::int32_t owner = model.parameters[static_cast<std::size_t>(op.params[0])].modules.front();
    const std::string& name = model.modules[static_cast<std::size_t>(owner)].name;
    if (experts.empty() || experts.back() != name) experts.push_back(name);
  }
  if (experts.empty()) throw InputError(where, "'" + model.name + "' has no experts", "leave it out");
  for (const std::string& module : experts) {
    const auto around = std::find_if(plan.units.begin(), plan.units.end(), [&](const Unit& u) {
      return std::any_of(u.modules.begin(), u.modules.end(),
                         [&](const std::string& m) { return m.empty() || m == module || inside(module, m); });
    });
    if (around == plan.units.end()) continue;  // `check` says that the root is missing
    if (around->modules == std::vector<std::string>{module}) {
      around->shard = ranks;
      continue;
    }
    const auto same = std::find_if(plan.units.begin(), around, [&](const Unit& u) {  // a unit has one group for a mesh
      return u.group_of == around->modules.front();
    });
    if (same != around) {
      same->modules.push_back(module);
      continue;
    }
    Unit group{{module}};
    group.shard = ranks;
    group.group_of = around->modules.front();
    plan.units.insert(around, std::move(group));
  }
  plan.shard_dims = expert_shard_dims(model, plan.dialect, ranks);
}

ShardingPlan naive_plan(const ModelGraph& model, const PlanOptions& options) {
  if (options.ranks < 1)
    throw InputError(setting("gpus"), "there are " + std::to_string(options.ranks) + " ranks", "use at least 1");
  const bool ddp = options.dialect == Dialect::ddp;
  const std::int64_t replicate =
      ddp && options.replicate == 1 ? options.ranks : options.replicate;  // ddp replicates over all ranks
  check_tensor_ranks(options.tensor, options.ranks, options.dialect);
  const std::int64_t data_ranks = options.ranks / options.tensor;
  if (replicate < 1 || data_ranks % replicate != 0) {
    throw InputError(
        setting("replicate"),
        std::to_string(data_ranks) + " ranks cannot be split into " + std::to_string(replicate) + " equal replicas",
        "use a divisor of " + std::to_string(data_ranks));
  }
  ShardingPlan plan;
  plan.dialect = options.dialect;
  plan.model_name = model.name;
  plan.model_digest = model.digest();
  plan.wrap = "block";
  plan.mesh = {{"replicate", replicate}, {"shard", data_ranks / replicate}};
  set_tensor(plan, model, options.tensor);
  plan.units = wrap_blocks(model, 1);
  for (Unit& unit : plan.units) unit.reshard_after_forward = options.reshard;
  plan.micro_batches = options.micro_batches;
  plan.seq_len = options.seq_len;
  plan.shard_dims = expert_shard_dims(model, plan.dialect, plan.shard());
  if (ddp) plan.param_dtype = plan.reduce_dtype = plan.master_dtype;  // DDP keeps and reduces one full-precision copy
  return plan;
}

bool run_head_in_chunks(ShardingPlan& plan, const ModelGraph& model) {
  const std::int32_t found = chunked_head(model);
  if (found < 0) return false;
  const Op& head = model.ops[static_cast<std::size_t>(found)];
  if (!model.parameters[static_cast<std::size_t>(head.params[0])].aliases.empty()) return false;
  const std::string& name = model.modules[static_cast<std::size_t>(head.module)].name;
  for (Unit& u : plan.units) {
    if (u.modules.back() != name) continue;
    u.reshard_after_forward = Reshard::no, u.reshard_after_backward = false, u.grad_sync = GradSync::last;
    plan.loop.chunk_head = true;
    return true;
  }
  return false;
}

bool can_run_head_in_chunks(const std::vector<Unit>& units, const ModelGraph& model) {
  ShardingPlan plan;
  plan.units = units;
  return run_head_in_chunks(plan, model);
}

}  // namespace fsdp
