// torchtitan's TOML (v0.2.2 and before): keys of its JobConfig.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "planner/emit/formats.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

struct Flavor {
  std::string_view ours, name, flavor;
};
constexpr Flavor kFlavors[] = {{"llama3-8b", "llama3", "8B"},
                               {"llama3.1-8b", "llama3", "8B"},
                               {"llama3-70b", "llama3", "70B"},
                               {"llama3.1-70b", "llama3", "70B"},
                               {"llama3.1-405b", "llama3", "405B"}};

std::string_view titan_dtype(DType t) {
  switch (t) {
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: return "float32";
  }
}

// torchtitan's three reshard policies, as the plan they make: {blocks and embedding, last group}.
std::optional<std::string> reshard_policy(const ShardingPlan& plan, const std::vector<Unit>& titan) {
  const auto matches = [&](bool inner, bool last) {
    for (std::size_t u = 0; u + 1 < titan.size(); ++u) {
      if (reshards(plan.units[u]) != (titan[u].reshard_after_forward == Reshard::no ? last : inner)) return false;
    }
    return !reshards(plan.units.back());
  };
  if (matches(true, false)) return "default";
  if (matches(true, true)) return "always";
  if (matches(false, false)) return "never";
  return std::nullopt;
}

struct Checkpointing {
  std::string mode = "none", option = "2";
  bool exact = true;
};

// "selective" with a number N recomputes blocks N-1, 2N-1, ...; N = 1 is every block, which "full" says.
Checkpointing checkpointing(const ShardingPlan& plan, const ModelGraph& model) {
  const std::vector<std::string> blocks = block_names(model);
  if (plan.checkpointed.empty()) return {};
  const bool per_op = plan.checkpoint_policy == CheckpointPolicy::selective_op;
  if (plan.checkpointed == blocks)
    return per_op ? Checkpointing{"selective", "op", true} : Checkpointing{"full", "2", true};
  if (per_op) return {"none", "2", false};
  for (std::size_t n = 2; n <= blocks.size(); ++n) {
    std::vector<std::string> here;
    for (std::size_t b = n - 1; b < blocks.size(); b += n) here.push_back(blocks[b]);
    if (here == plan.checkpointed) return {"selective", std::to_string(n), true};
    if ((blocks.size() + n - 1) / n == plan.checkpointed.size() &&
        plan.checkpointed == checkpointed_modules(model, "every-" + std::to_string(n), "plan")) {
      return {"selective", std::to_string(n), false};
    }
  }
  return {"none", "2", false};
}

// Choices of fsdp2 that torchtitan makes by itself.
void missing_choices(const ShardingPlan& plan, std::vector<std::string>& list) {
  const auto add_if = [&](bool missing, const char* what) {
    if (missing) list.emplace_back(what);
  };
  const auto any = [&](auto differs) { return std::any_of(plan.units.begin(), plan.units.end(), differs); };
  add_if(any([](const Unit& u) { return u.reshard_after_forward.ranks > 1; }),
         "resharding to a part of the ranks: units reshard over all of them");
  add_if(any([](const Unit& u) { return !u.forward_prefetch.empty() || !u.backward_prefetch.empty(); }),
         "prefetch lists of units");
  add_if(any([](const Unit& u) { return !u.reshard_after_backward || !u.unshard_in_backward; }),
         "units that stay whole or sharded around backward");
  add_if(any([](const Unit& u) { return u.grad_sync.has_value(); }), "gradient sync per unit");
  add_if(any([](const Unit& u) { return u.gradient_divide_factor.has_value(); }), "divide factors of gradients");
  add_if(!plan.ignored.empty(), "ignored parameters");
  add_if(!plan.shard_dims.empty(), "parameters sharded on another dimension");
  add_if(plan.reduce_scatter_buffers > 1, "more than one reduce-scatter input at a time");
  add_if(plan.separate_reduce_scatter, "a communicator for reduce-scatter");
  add_if(plan.force_sum_reduction, "the forced sum");
  add_if(plan.loss_chunks > 1, "a loss computed in parts");
  add_if(plan.torch != TorchVersion{}, "the release of PyTorch");
}

std::vector<std::string> missing(const ShardingPlan& plan, bool known, bool units_equal,
                                 const std::optional<std::string>& reshard, const Checkpointing& ac) {
  std::vector<std::string> list;
  const bool fsdp2 = plan.dialect == Dialect::fsdp2;
  if (!known) list.push_back("the model: none of torchtitan's flavors; register it and set [model] name and flavor");
  if (fsdp2 && !units_equal)
    list.push_back(
        "the plan's units: torchtitan makes one unit per block, one of the embedding and one of norm + "
        "output (our --wrap titan); use --emit pytorch for the units");
  if (fsdp2 && units_equal && !reshard)
    list.push_back("reshard after forward per unit: default, always and never are all there is");
  if (!ac.exact && ac.mode == "none") list.push_back("recomputation of these modules: it is left off here");
  if (!ac.exact && ac.mode != "none")
    list.push_back("which block recomputation starts at: torchtitan recomputes the last of every " + ac.option +
                   " blocks, the plan the first");
  if (fsdp2 && plan.forward_prefetch > 0)
    list.push_back(fmt::format("forward prefetch of {} units", plan.forward_prefetch));
  if (fsdp2 && plan.backward_prefetch != 1)
    list.push_back(fmt::format("backward prefetch of {} units (FSDP2 prefetches one)", plan.backward_prefetch));
  missing_choices(plan, list);
  const auto& mb = plan.micro_batches;
  if (std::any_of(mb.begin(), mb.end(), [&](auto s) { return s != mb.front(); }))
    list.push_back("micro-batches of different sizes: the largest is written");
  if (mb.size() > 1 && plan.grad_sync != GradSync::every)
    list.push_back(fmt::format("gradient sync '{}': torchtitan reduces after every micro-batch", name(plan.grad_sync)));
  if (fsdp2 && plan.reduce_dtype != DType::f32)
    list.push_back(fmt::format("gradient reduction in {}: float32 only", name(plan.reduce_dtype)));
  if (plan.param_dtype != DType::bf16 && plan.param_dtype != DType::f32)
    list.push_back(fmt::format("computing in {}: bfloat16 and float32 only", name(plan.param_dtype)));
  if (plan.optimizer.kind == OptimizerKind::sgd) list.push_back("SGD: its optimizers are Adam and AdamW");
  if (plan.clip_norm && plan.clip_norm_type != 2) list.push_back("the norm that is clipped: it takes the 2-norm");
  if (!plan.clip_norm) list.push_back("no clipping: it computes the norm in every step; max_norm is set beyond reach");
  list.push_back("a constant learning rate: set [lr_scheduler] to the schedule you want");
  return list;
}

}  // namespace

Emitted emit_torchtitan(const ShardingPlan& plan, const ModelGraph& model) {
  const Flavor* flavor =
      std::find_if(std::begin(kFlavors), std::end(kFlavors), [&](const Flavor& f) { return f.ours == model.name; });
  const bool known = flavor != std::end(kFlavors);
  std::vector<Unit> titan;
  if (!block_names(model).empty()) titan = wrap_titan(model);
  bool units_equal = titan.size() == plan.units.size();
  for (std::size_t u = 0; units_equal && u < titan.size(); ++u) units_equal = titan[u].modules == plan.units[u].modules;
  const std::optional<std::string> reshard = units_equal ? reshard_policy(plan, titan) : std::nullopt;
  const Checkpointing ac = checkpointing(plan, model);
  const std::int64_t local = *std::max_element(plan.micro_batches.begin(), plan.micro_batches.end());
  Emitted out;
  out.cannot_express = missing(plan, known, units_equal, reshard, ac);
  if (has_frozen_parameters(model)) out.cannot_express.push_back("parameters that are not trained: it trains all");
  out.text = header(plan, model, "torchtitan config (TOML, v0.2.2 and before): CONFIG_FILE=THIS_FILE ./run_train.sh",
                    out.cannot_express);
  out.text +=
      fmt::format("\n[model]\nname = {}\nflavor = {}\n", quoted(known ? std::string(flavor->name) : model.family),
                  quoted(known ? std::string(flavor->flavor) : model.name));
  out.text +=
      fmt::format("\n[optimizer]\nname = \"AdamW\"\nlr = {}\nbeta1 = {}\nbeta2 = {}\neps = {}\nweight_decay = {}\n",
                  number(plan.optimizer.lr), number(plan.optimizer.beta1), number(plan.optimizer.beta2),
                  number(plan.optimizer.eps), number(plan.optimizer.weight_decay));
  out.text += "\n[lr_scheduler]\nwarmup_steps = 0\n";
  out.text += fmt::format("\n[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\nmax_norm = {}\n",
                          local, local * static_cast<std::int64_t>(plan.micro_batches.size()) * plan.ranks(),
                          plan.seq_len, number(plan.clip_norm.value_or(1e30)));
  out.text += fmt::format(
      "enable_cpu_offload = {}\ndtype = \"{}\"\nmixed_precision_param = \"{}\"\nmixed_precision_reduce = \"float32\"\n",
      plan.offload, titan_dtype(plan.master_dtype),
      titan_dtype(plan.param_dtype == DType::bf16 ? DType::bf16 : DType::f32));
  out.text += fmt::format(
      "\n[parallelism]\ndata_parallel_replicate_degree = {}\ndata_parallel_shard_degree = "
      "{}\nfsdp_reshard_after_forward = "
      "\"{}\"\n",
      plan.replicate(), plan.shard(), reshard.value_or("default"));
  out.text += fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n", ac.mode);
  if (ac.mode == "selective") out.text += fmt::format("selective_ac_option = \"{}\"\n", ac.option);
  out.text += "\n[compile]\nenable = false\n";
  return out;
}

}  // namespace fsdp
