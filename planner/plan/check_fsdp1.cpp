#include "planner/plan/check_fsdp1.h"

#include <algorithm>
#include <string>

#include "models/graph/module_names.h"
#include "models/graph/op_ranges.h"
#include "planner/layout.h"
#include "planner/plan/refusal.h"

namespace fsdp {
namespace {

constexpr TorchVersion kEarly{1, 13};

void check_fsdp1_unit(const ShardingPlan& plan, std::size_t u, std::string_view where) {
  const Unit& unit = plan.units[u];
  const auto refuse_if = [&](bool broken, const char* name, const std::string& problem, const std::string& remedy) {
    if (broken) refuse(where, "units[" + std::to_string(u) + "]." + name, problem, remedy);
  };
  refuse_if(unit.modules.size() > 1, "modules",
            "fsdp1 wraps one module at a time, and this unit has " + std::to_string(unit.modules.size()),
            "make a unit of each, or of the module around them, or use fsdp2");
  refuse_if(unit.reshard_after_forward.ranks > 1, "reshard_after_forward",
            "fsdp1 cannot reshard to " + name(unit.reshard_after_forward) + " ranks",
            "use \"auto\", true or false, or fsdp2");
  const std::string remedy = "leave it out, or use fsdp2";
  refuse_if(!unit.reshard_after_backward, "reshard_after_backward",
            "fsdp1 frees parameters after backward whenever gradients are reduced", remedy);
  refuse_if(!unit.unshard_in_backward, "unshard_in_backward", "fsdp1 always gathers for backward what is not whole",
            remedy);
  refuse_if(unit.grad_sync.has_value(), "grad_sync",
            "fsdp1 reduces the gradients of all units or of none (no_sync of the root)",
            "set the plan's grad_sync, or use fsdp2");
  refuse_if(unit.gradient_divide_factor.has_value(), "gradient_divide_factor",
            "fsdp1 divides gradients by the number of ranks", remedy);
  refuse_if(!unit.forward_prefetch.empty(), "forward_prefetch",
            "fsdp1 prefetches the unit that ran next in the first iteration",
            "set the plan's forward_prefetch to 1, or use fsdp2");
  refuse_if(!unit.backward_prefetch.empty(), "backward_prefetch",
            "fsdp1 prefetches the unit that ran before in forward",
            "set the plan's backward_prefetch to 1, or use fsdp2");
}

void check_offload(const ShardingPlan& plan, std::string_view where) {
  if (plan.shard() == 1)
    refuse(where, "offload",
           "fsdp1 without sharding would copy all parameters to the device for every unit's forward and backward",
           "shard over at least 2 ranks, or set offload to false");
  if (plan.micro_batches.size() > 1 && plan.grad_sync == GradSync::every)
    refuse(where, "grad_sync",
           "fsdp1 cannot add up offloaded gradients that are reduced after every micro-batch: its results are wrong",
           "use last");
}

// Do operations of other modules lie between those of this one?
bool used_again(std::int32_t id, const ModelGraph& model) {
  if (id <= 0) return false;
  const Module& module = model.modules[static_cast<std::size_t>(id)];
  for (std::int32_t op = module.op_begin; op < module.op_end; ++op) {
    const std::int32_t owner = model.ops[static_cast<std::size_t>(op)].module;
    if (owner >= 0 && owner != id && !inside(model.modules[static_cast<std::size_t>(owner)].name, module.name))
      return true;
  }
  return false;
}

// Beside what a unit that runs more than once in a forward is not known here.
void check_used_again(const ShardingPlan& plan, std::size_t u, const ModelGraph& model, std::string_view where) {
  const std::string& module = plan.units[u].modules.front();
  const auto refuse_if = [&](bool broken, const char* beside) {
    if (broken)
      refuse(where, "units[" + std::to_string(u) + "].modules",
             "'" + module + "' runs more than once in a forward, which under fsdp1 is not known here beside " + beside,
             "leave it to the unit around it, or use fsdp2");
  };
  refuse_if(plan.torch != TorchVersion{}, "another PyTorch than the newest");
  refuse_if(plan.shard() == 1, "no sharding");
  refuse_if(plan.forward_prefetch > 0, "forward prefetch");
  refuse_if(!plan.checkpointed.empty(), "activation checkpointing");
  refuse_if(
      std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) { return !p.trainable; }),
      "frozen parameters");
}

// PyTorch refuses a unit of frozen and trained parameters with use_orig_params off, and otherwise computes gradients of
// the frozen ones, too.
void check_frozen(const ShardingPlan& plan, const PlanIds& ids, const ModelGraph& model, std::string_view where) {
  if (std::all_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) { return p.trainable; }))
    return;
  const std::vector<UnitLayout> layouts = unit_layouts(plan, ids, model, where);
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    const Parameter *frozen = nullptr, *trained = nullptr;
    for (const ShardedParam& p : layouts[u].params) {
      const Parameter& parameter = model.parameters[static_cast<std::size_t>(p.param)];
      (parameter.trainable ? trained : frozen) = &parameter;
    }
    if (frozen != nullptr && trained != nullptr)
      refuse(where, "units[" + std::to_string(u) + "].modules",
             "the frozen parameter '" + (frozen ? frozen->name : "") + "' and the trained '" +
                 (trained ? trained->name : "") + "' in one flat parameter of fsdp1 are not known here",
             "make units of their own of the trained modules (--wrap 'block|adapters'), or use fsdp2");
  }
}

void check_trained_outermost(const ShardingPlan& plan, std::string_view where) {
  const std::size_t n = plan.units.size();
  if (n < 2 || plan.units[n - 2].modules != std::vector<std::string>{""})
    refuse(where, "trained_outermost",
           "the last two units must both be the whole model: one of what is frozen and "
           "one around it of what is trained",
           "add another {\"modules\": [\"\"]}, or set it to false");
  if (!plan.ignored.empty())
    refuse(where, "ignored", "ignored parameters beside a unit around all others are not known here",
           "leave it out, or set trained_outermost to false");
}

// What tests/torch/early/record_fsdp1.py has of PyTorch 1.13.
void check_early(const ShardingPlan& plan, std::string_view where) {
  const auto refuse_if = [&](bool broken, const char* name, const std::string& problem, const std::string& remedy) {
    if (broken) refuse(where, name, problem, remedy);
  };
  refuse_if(plan.torch != kEarly, "dialect", "fsdp1 is known as it is in the newest PyTorch and in 1.13",
            "write fsdp1, or fsdp1@1.13");
  refuse_if(plan.use_orig_params, "use_orig_params", "that came with PyTorch 2.0, the plan is for 1.13",
            "set it to false, or use the dialect fsdp1");
  const std::string unknown = " not known of fsdp1 in PyTorch 1.13", remedy = "leave it out, or use the dialect fsdp1";
  refuse_if(plan.shard() == 1 || plan.replicate() > 1, "mesh", "replicas are" + unknown,
            "shard over all ranks, or use the dialect fsdp1");
  refuse_if(plan.forward_prefetch > 0, "forward_prefetch",
            "prefetch in forward is" + unknown + ", which prefetches for the first unit alone",
            "use 0, or use the dialect fsdp1");
  refuse_if(plan.offload, "offload", "offload is" + unknown, remedy);
  refuse_if(!plan.offload_activations.empty(), "offload_activations", "offload of activations is" + unknown, remedy);
  refuse_if(!plan.ignored.empty(), "ignored", "ignored modules are" + unknown, remedy);
  refuse_if(plan.float8.recipe != Float8Recipe::none, "float8", "8-bit products are" + unknown, remedy);
  for (const Unit& unit : plan.units)
    for (const std::string& checkpointed : plan.checkpointed)
      refuse_if(
          inside(unit.modules.front(), checkpointed), "checkpointed",
          "'" + checkpointed + "' holds the unit of '" + unit.modules.front() + "': units that run again are" + unknown,
          "checkpoint modules that are units, or lie inside of one");
}

// The same, of its model.
void check_early(const ModelGraph& model, std::string_view where) {
  if (std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) { return !p.trainable; }))
    refuse(where, "dialect", "frozen parameters are not known of fsdp1 in PyTorch 1.13", "use the dialect fsdp1");
}

void check_reentrant(const ShardingPlan& plan, std::string_view where) {
  const auto refuse_if = [&](bool broken, const char* name, const std::string& what) {
    if (broken)
      refuse(where, name, what + " beside reentrant checkpoints is not known here",
             "leave it out, or recompute by full (reentrant false)");
  };
  if (plan.checkpointed.empty())
    refuse(where, "reentrant", "there is no checkpoint that could be reentrant",
           "add activation checkpointing, or set it to false");
  if (plan.torch != TorchVersion{})
    refuse(where, "dialect", "reentrant checkpoints are known of the newest PyTorch alone", "use the dialect fsdp1");
  refuse_if(plan.checkpoint_policy != CheckpointPolicy::full, "checkpoint_policy", "keeping some of the results");
  refuse_if(!plan.offload_activations.empty(), "offload_activations", "offload of activations");
  refuse_if(!plan.ignored.empty(), "ignored", "ignoring parameters");
  refuse_if(plan.trained_outermost, "trained_outermost", "a unit of all that is trained");
  refuse_if(plan.float8.recipe != Float8Recipe::none, "float8", "products in 8 bits");
}

// PyTorch frees a unit around a checkpointed module when the backward of what runs again in there has ended, and fails
// on the rest of its parameters.
void check_reentrant(const ShardingPlan& plan, const PlanIds& ids, const ModelGraph& model, std::string_view where) {
  if (!model.trace.empty())
    refuse(where, "reentrant", "'" + model.name + "' is as PyTorch ran it, with the checkpoints that it had then",
           "set it to false");
  for (const std::int32_t id : ids.checkpointed) {
    const Module& m = model.modules[static_cast<std::size_t>(id)];
    const auto inputs = inputs_from_before(model, m.op_begin, m.op_end);
    if (std::none_of(inputs.begin(), inputs.end(), [&](std::int32_t t) {
          return model.tensors[static_cast<std::size_t>(t)].kind == TensorKind::activation;
        }))
      refuse(where, "checkpointed",
             "'" + m.name +
                 "' is called with ids alone, and a reentrant checkpoint hands gradients down only to inputs "
                 "that require some: PyTorch trains nothing in there",
             "name the blocks, or recompute by full (reentrant false)");
  }
  const std::vector<UnitLayout> layouts = unit_layouts(plan, ids, model, where);
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    const std::string& unit = plan.units[u].modules.front();
    for (const ShardedParam& p : layouts[u].params) {
      const Parameter& parameter = model.parameters[static_cast<std::size_t>(p.param)];
      for (const std::string& again : plan.checkpointed) {
        const auto within = [&](const std::string& name) { return name == again || inside(name, again); };
        const bool holds = std::any_of(parameter.modules.begin(), parameter.modules.end(), [&](std::int32_t m) {
          return within(model.modules[static_cast<std::size_t>(m)].name);
        });
        if (!within(unit) && holds)
          refuse(where, "units[" + std::to_string(u) + "].modules",
                 "the unit holds '" + parameter.name + "', which lies in '" + again +
                     "', whose checkpoint is reentrant: PyTorch frees the unit before the rest of its backward, and "
                     "fails",
                 "make a unit of '" + again + "' (--wrap block), or recompute by full (reentrant false)");
      }
    }
  }
}

}  // namespace

void check_fsdp1(const ShardingPlan& plan, std::string_view where) {
  const auto refuse_if = [&](bool broken, const char* name, const std::string& problem, const std::string& remedy) {
    if (broken) refuse(where, name, problem, remedy);
  };
  if (plan.torch != TorchVersion{}) check_early(plan, where);
  refuse_if(plan.grad_sync == GradSync::reduce_scatter_only, "grad_sync",
            "fsdp1 all-reduces over replicas whenever it reduce-scatters", "use every or last, or fsdp2");
  refuse_if(plan.forward_prefetch > 1, "forward_prefetch",
            "fsdp1 prefetches at most one unit, not " + std::to_string(plan.forward_prefetch), "use 0 or 1, or fsdp2");
  refuse_if(plan.backward_prefetch > 1, "backward_prefetch",
            "fsdp1 prefetches at most one unit, not " + std::to_string(plan.backward_prefetch), "use 0 or 1, or fsdp2");
  refuse_if(plan.backward_post && plan.backward_prefetch == 0, "backward_post",
            "there is no backward prefetch that could come later",
            "set backward_prefetch to 1, or backward_post to false");
  refuse_if(!plan.shard_dims.empty(), "shard_dims", "fsdp1 shards a unit's parameters as one flat vector",
            "leave it out, or use fsdp2");
  refuse_if(plan.reduce_scatter_buffers != 1, "reduce_scatter_buffers",
            "fsdp1 does not wait for the reduce-scatter before", "use 1");
  refuse_if(plan.separate_reduce_scatter, "separate_reduce_scatter", "fsdp1 gathers and reduces over one communicator",
            "use false, or fsdp2");
  refuse_if(plan.share_comm_context, "share_comm_context", "fsdp1 has one unit of the whole model",
            "leave it out, or use fsdp2");
  refuse_if(plan.force_sum_reduction, "force_sum_reduction", "fsdp1 always sums and divides before and after",
            "use false");
  if (plan.offload) check_offload(plan, where);
  if (plan.trained_outermost) check_trained_outermost(plan, where);
  if (plan.reentrant) check_reentrant(plan, where);
  for (std::size_t u = 0; u < plan.units.size(); ++u) check_fsdp1_unit(plan, u, where);
}

void check_fsdp1(const ShardingPlan& plan, const PlanIds& ids, const ModelGraph& model, std::string_view where) {
  if (plan.torch != TorchVersion{}) check_early(model, where);
  check_frozen(plan, ids, model, where);
  if (plan.reentrant) check_reentrant(plan, ids, model, where);
  const auto tied = std::find_if(model.parameters.begin(), model.parameters.end(),
                                 [](const Parameter& p) { return !p.aliases.empty(); });
  const bool waits = plan.grad_sync == GradSync::last && plan.micro_batches.size() > 1;
  if (plan.shard() == 1 && plan.use_orig_params && waits && plan.param_dtype != plan.master_dtype &&
      tied != model.parameters.end())
    refuse(where, "grad_sync",
           "PyTorch raises when it keeps the gradient of a tied weight (" +
               (tied == model.parameters.end() ? std::string() : tied->name) +
               ") for the next micro-batch: fsdp1 without sharding, with use_orig_params, in another dtype than the "
               "parameters'",
           "use every, or set use_orig_params to false");
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    if (used_again(ids.units[u].front(), model)) check_used_again(plan, u, model, where);
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    for (const std::string& ignored : plan.ignored) {
      const std::string& module = plan.units[u].modules.front();
      if (module == ignored || inside(module, ignored))
        refuse(where, "units[" + std::to_string(u) + "].modules",
               "'" + module + "' is ignored ('" + ignored + "'), and fsdp1 ignores no module that it wraps",
               "remove the unit, or do not ignore it");
    }
}

void check_trained(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  if (!plan.trained_outermost) return;
  const auto is_trained = [](const Parameter& p) { return p.trainable; };
  const bool all = std::all_of(model.parameters.begin(), model.parameters.end(), is_trained);
  if (all || std::none_of(model.parameters.begin(), model.parameters.end(), is_trained))
    refuse(where, "trained_outermost",
           std::string(all ? "every" : "no") + " parameter of '" + model.name + "' is trained",
           all ? "add --lora, or set it to false" : "set it to false");
}

void refuse_fsdp1_choices(const ShardingPlan& plan, std::string_view where) {
  const std::string dialect(name(plan.dialect));
  if (plan.backward_post)
    refuse(where, "backward_post", dialect + " has no prefetch after a unit's gradients", "leave it out, or use fsdp1");
  if (!plan.limit_all_gathers)
    refuse(where, "limit_all_gathers", dialect + " does not hold the host back", "leave it out, or use fsdp1");
  if (!plan.use_orig_params)
    refuse(where, "use_orig_params", dialect + " has no flat parameters", "leave it out, or use fsdp1");
  if (plan.trained_outermost)
    refuse(where, "trained_outermost", dialect + " shards no parameter outside of its modules' units",
           "leave it out, or use fsdp1");
  if (plan.reentrant)
    refuse(where, "reentrant", "reentrant checkpoints are known of fsdp1 alone, whose hooks they run twice",
           "leave it out, or use fsdp1");
}

}  // namespace fsdp
