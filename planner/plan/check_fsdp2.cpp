// Which release has what: read from the wheels of 2.6 to 2.15 (torch/distributed/fsdp/_fully_shard).
#include "planner/plan/check_fsdp2.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "models/graph/module_names.h"
#include "models/index.h"
#include "planner/layout.h"
#include "planner/plan/refusal.h"

namespace fsdp {
namespace {

constexpr TorchVersion kOldest{2, 6}, kNewest{2, 15};  // fully_shard became public in 2.6

std::string text(TorchVersion v) { return std::to_string(v.major) + "." + std::to_string(v.minor); }

bool may_overflow(const ShardingPlan& plan) {
  return plan.reduce_dtype != DType::f32 && plan.reduce_dtype != DType::bf16;
}

void check_version(const ShardingPlan& plan, std::string_view where) {
  const TorchVersion v = plan.torch;
  if (v == TorchVersion{}) return;
  if (v.before(kOldest.major, kOldest.minor) || !v.before(kNewest.major, kNewest.minor + 1))
    refuse(where, "dialect", "fully_shard of PyTorch " + text(v) + " is not known here",
           "use " + text(kOldest) + " to " + text(kNewest) + ", or fsdp2 for the newest");
  const auto since = [&](bool used, int minor, const char* name, const char* what) {
    if (used && v.before(2, minor))
      refuse(where, name,
             std::string(what) + " came with PyTorch 2." + std::to_string(minor) + ", the plan is for " + text(v),
             "leave it out, or use fsdp2@2." + std::to_string(minor));
  };
  since(plan.reduce_scatter_buffers > 1, 13, "reduce_scatter_buffers", "more than one reduce-scatter input at a time");
  since(plan.separate_reduce_scatter, 13, "separate_reduce_scatter", "a communicator for reduce-scatter");
  since(plan.force_sum_reduction, 8, "force_sum_reduction", "the forced sum");
  for (const Unit& u : plan.units)
    since(u.gradient_divide_factor.has_value(), 8, "gradient_divide_factor", "a divide factor for all reductions");
}

void check_names(const ShardingPlan& plan, const std::vector<std::string>& names, std::string_view where,
                 const std::string& at) {
  for (const std::string& name : names) {  // a further group of a unit has no hooks of its own
    const auto named = [&](const Unit& u) { return !u.group_of && !u.modules.empty() && u.modules.front() == name; };
    const bool found = std::any_of(plan.units.begin(), plan.units.end(), named);
    if (!found) refuse(where, at, "no unit's first module is '" + name + "'", "name units by their first module");
  }
}

void check_fsdp2_unit(const ShardingPlan& plan, std::size_t u, std::string_view where) {
  const Unit& unit = plan.units[u];
  const std::string at = "units[" + std::to_string(u) + "].";
  const std::int64_t n = unit.reshard_after_forward.ranks, shards = plan.shard();
  if (n > 1 && (n > shards || shards % n != 0))
    refuse(where, at + "reshard_after_forward",
           std::to_string(n) + " ranks do not divide the " + std::to_string(shards) + " of a shard group",
           "use a divisor of it, true or false");
  if (unit.grad_sync == GradSync::reduce_scatter_only && plan.replicate() < 2 && plan.own_shard() == 0)
    refuse(where, at + "grad_sync",
           "reduce-scatter-only leaves out the all-reduce over replicas, but there is one replica",
           "use every or last");
  check_names(plan, unit.forward_prefetch, where, at + "forward_prefetch");
  check_names(plan, unit.backward_prefetch, where, at + "backward_prefetch");
  if (!unit.gradient_divide_factor) return;
  const double f = *unit.gradient_divide_factor;
  if (!std::isfinite(f) || f <= 0)
    refuse(where, at + "gradient_divide_factor", std::to_string(f) + " is out of range", "use a finite number above 0");
  if (shards == 1 && (may_overflow(plan) || plan.force_sum_reduction) && !plan.torch.before(2, 10))
    refuse(where, at + "gradient_divide_factor",
           "PyTorch would not divide the gradients of one shard by it once, as it says",
           "leave it out, or shard over at least 2 ranks");
  if (shards == 1 && plan.torch.before(2, 10))
    refuse(where, at + "gradient_divide_factor",
           "dividing the gradients of one shard in a collective of one rank, as PyTorch did before 2.10, is not known "
           "here",
           "leave it out, or shard over at least 2 ranks");
}

// Before 2.15 a pre-forward hook casts what the first module of a unit is called with, and none that runs in a
// recomputation does: what experts are weighted with in fp32 (Mixtral) is then known for whole blocks alone.
void check_experts(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  if (!plan.torch.before(2, 15) || plan.param_dtype == DType::f32) return;
  const auto in_block = [&](std::string_view name) {
    return std::any_of(model.modules.begin(), model.modules.end(),
                       [&](const Module& m) { return m.block && inside(name, m.name); });
  };
  for (const Op& op : model.ops) {
    if (op.kind != OpKind::moe_combine || !op.shape.wide_weight) continue;
    const std::string& experts = model.modules[static_cast<std::size_t>(op.module)].name;
    for (std::size_t u = 0; u < plan.units.size(); ++u)
      for (const std::string& module : plan.units[u].modules)
        if ((module == experts || inside(experts, module)) && in_block(module))
          refuse(where, "units[" + std::to_string(u) + "].modules",
                 "how PyTorch " + text(plan.torch) + " casts the weights of choices of '" + experts +
                     "', in a unit smaller than a block, is not known here",
                 "use units of whole blocks, or fsdp2");
  }
}

bool backward_reads_weights(OpKind kind) { return kind != OpKind::embedding && kind != OpKind::position_embedding; }

}  // namespace

void check_fsdp2(const ShardingPlan& plan, std::string_view where) {
  check_version(plan, where);
  if (plan.reduce_scatter_buffers < 1 || plan.reduce_scatter_buffers > 1024)
    refuse(where, "reduce_scatter_buffers", std::to_string(plan.reduce_scatter_buffers) + " reduce-scatter inputs",
           "use 1 to 1024");
  for (std::size_t i = 0; i < plan.shard_dims.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (plan.shard_dims[i].parameter == plan.shard_dims[k].parameter)
        refuse(where, "shard_dims", "'" + plan.shard_dims[i].parameter + "' is listed twice", "remove one");
  for (std::size_t u = 0; u < plan.units.size(); ++u) check_fsdp2_unit(plan, u, where);
}

void check_fsdp2(const ShardingPlan& plan, const ModelGraph& model, const std::vector<UnitLayout>& layouts,
                 std::string_view where) {
  check_experts(plan, model, where);
  const std::vector<std::int32_t> unit_of = unit_of_parameters(layouts, model);
  if (std::none_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) { return p.trainable; }))
    refuse(where, "model_digest", "no parameter of '" + model.name + "' is trained", "train at least one");
  for (std::size_t p = 0; p < model.parameters.size(); ++p)
    if (plan.clip_norm && unit_of[p] < 0 && model.parameters[p].trainable)
      refuse(where, "clip_norm",
             "PyTorch cannot take one norm over sharded and ignored parameters ('" + model.parameters[p].name +
                 "'): its gradients are of two kinds of tensors",
             "set it to null, or ignore only parameters that are not trained");
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    if (layouts[u].uses.size() > 1 && plan.micro_batches.size() > 1 &&
        plan.units[u].grad_sync.value_or(plan.grad_sync) != GradSync::every)
      refuse(where, "grad_sync",
             "'" + plan.units[u].modules.front() +
                 "' runs more than once in a forward; gradients that wait for a later "
                 "micro-batch are not known for it",
             "use every");
    const std::int64_t n = plan.units[u].reshard_after_forward.ranks;
    for (const ShardedParam& p : layouts[u].params)
      if (p.dim > 0 && n > 1 && n < plan.shard())
        refuse(where, "units[" + std::to_string(u) + "].reshard_after_forward",
               "PyTorch cannot gather '" + model.parameters[static_cast<std::size_t>(p.param)].name +
                   "', sharded on dimension " + std::to_string(p.dim) + ", from a part of the ranks",
               "use true or false, or shard it on dimension 0");
  }
  for (const Op& op : model.ops) {
    for (const std::int32_t p : op.params) {
      const std::int32_t u = unit_of[static_cast<std::size_t>(p)];
      if (u >= 0 && backward_reads_weights(op.kind) && !plan.units[static_cast<std::size_t>(u)].unshard_in_backward)
        refuse(where, "units[" + std::to_string(u) + "].unshard_in_backward",
               "the backward of its " + std::string(name(op.kind)) + " needs '" +
                   model.parameters[static_cast<std::size_t>(p)].name + "'",
               "use true, or a unit of embeddings alone");
    }
  }
}

void refuse_sharding_choices(const ShardingPlan& plan, std::string_view where) {
  const std::string dialect(name(plan.dialect));
  const auto refuse_if = [&](bool broken, const std::string& name, const std::string& problem) {
    if (broken) refuse(where, name, problem, "leave it out, or use fsdp2");
  };
  refuse_if(plan.torch != TorchVersion{}, "dialect", dialect + " is known as it is in the newest PyTorch only");
  refuse_if(plan.offload, "offload", dialect + " keeps everything on the device");
  refuse_if(!plan.ignored.empty(), "ignored", dialect + " reduces the gradients of every parameter");
  refuse_if(!plan.shard_dims.empty(), "shard_dims", dialect + " does not shard parameters");
  refuse_if(plan.reduce_scatter_buffers != 1, "reduce_scatter_buffers", dialect + " has no reduce-scatter");
  refuse_if(plan.separate_reduce_scatter, "separate_reduce_scatter", dialect + " has no reduce-scatter");
  refuse_if(plan.force_sum_reduction, "force_sum_reduction", dialect + " averages as it always does");
  refuse_if(plan.share_comm_context, "share_comm_context", dialect + " has one unit of the whole model");
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const Unit& unit = plan.units[u];
    const std::string at = "units[" + std::to_string(u) + "].";
    refuse_if(unit.reshard_after_forward.ranks > 1, at + "reshard_after_forward",
              dialect + " keeps parameters whole and cannot reshard them");
    refuse_if(!unit.reshard_after_backward, at + "reshard_after_backward", dialect + " never gives parameters up");
    refuse_if(!unit.unshard_in_backward, at + "unshard_in_backward", dialect + " gathers nothing");
    refuse_if(unit.grad_sync.has_value(), at + "grad_sync", dialect + " reduces all gradients or none");
    refuse_if(unit.gradient_divide_factor.has_value(), at + "gradient_divide_factor",
              dialect + " divides by the number of ranks");
    refuse_if(!unit.forward_prefetch.empty(), at + "forward_prefetch", dialect + " gathers nothing");
    refuse_if(!unit.backward_prefetch.empty(), at + "backward_prefetch", dialect + " gathers nothing");
  }
}

void check_ignored(const ShardingPlan& plan, const ModelGraph& model, const std::vector<UnitLayout>& layouts,
                   std::string_view where) {
  if (plan.ignored.empty()) return;
  if (plan.param_dtype != plan.master_dtype)
    refuse(where, "ignored",
           "ignored parameters stay in " + std::string(name(plan.master_dtype)) +
               ", and nothing casts what meets them from " + std::string(name(plan.param_dtype)),
           "set param_dtype to master_dtype, or leave it out");
  const std::vector<std::int32_t> unit_of = unit_of_parameters(layouts, model);
  if (std::all_of(unit_of.begin(), unit_of.end(), [](std::int32_t u) { return u < 0; }))
    refuse(where, "ignored", "every parameter is ignored", "leave some to the units");
}

void check_activations(const ShardingPlan& plan, std::string_view where) {
  const std::vector<std::string>& names = plan.offload_activations;
  if (names.empty()) return;
  const auto refuse_if = [&](bool broken, const std::string& problem, const std::string& remedy) {
    if (broken) refuse(where, "offload_activations", problem, remedy);
  };
  refuse_if(plan.dialect == Dialect::ddp, "activations in host memory are not known here under ddp",
            "leave it out, or use fsdp1 or fsdp2");
  refuse_if(plan.tensor() > 1, "activations of tensor ranks in host memory are not known here",
            "leave it out, or set the tensor dimension to 1");
  refuse_if(plan.checkpoint_policy != CheckpointPolicy::full,
            "with a selective policy what is kept would go to host memory as well, which is not known here",
            "leave it out, or use the checkpoint_policy full");
  for (std::size_t i = 0; i < names.size(); ++i) {
    refuse_if(
        std::find(plan.checkpointed.begin(), plan.checkpointed.end(), names[i]) == plan.checkpointed.end(),
        "'" + names[i] + "' is not recomputed, and would send all that it saves to host memory, not its input alone",
        "name modules of `checkpointed`");
    refuse_if(std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
                  names.begin() + static_cast<std::ptrdiff_t>(i),
              "'" + names[i] + "' is named twice", "name it once");
  }
}

void check_activations(const ShardingPlan& plan, const PlanIds& ids, const ModelGraph& model, std::string_view where) {
  if (ids.offload_activations.empty()) return;
  if (!model.trace.empty())
    refuse(where, "offload_activations", "of an exported model it is not known what a module was called with",
           "leave it out");
  for (std::size_t k = 0; k < ids.offload_activations.size(); ++k) {
    const Module& m = model.modules[at(ids.offload_activations[k])];
    for (std::int32_t i = m.op_begin; i < m.op_end; ++i)
      for (const std::int32_t t : model.ops[at(i)].inputs)
        if (t == model.ids || t == model.targets)
          refuse(where, "offload_activations",
                 "'" + plan.offload_activations[k] + "' reads the batch, which is not known here to go to host memory",
                 "name modules that read activations alone, such as blocks");
  }
}

}  // namespace fsdp
