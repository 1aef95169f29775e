// torchtitan: a Python configuration (since February 2026), its arguments, and the TOML of v0.2.2 and before. All three
// set the same keys.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "planner/emit/formats.h"
#include "planner/tensor/families.h"
#include "planner/tensor/styles.h"
#include "planner/wrap.h"
#include "planner/wrap/titan_flavors.h"

namespace fsdp {
namespace {

constexpr double kOutOfReach = 1e30;  // a norm that no gradient has

std::string_view titan_dtype(DType t) {
  switch (t) {
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: return "float32";
  }
}

// torchtitan's three reshard policies: does a group of the inner ones reshard, does the last one (norm and output)?
struct ReshardPolicy {
  const char* name;
  bool inner, last;
};
constexpr ReshardPolicy kPolicies[] = {{"default", true, false}, {"always", true, true}, {"never", false, false}};

bool is_last(const Unit& titan) { return titan.reshard_after_forward == Reshard::no; }

// Torchtitan's units under a policy; its root keeps its parameters, like PyTorch's.
std::vector<Unit> units_under(const ReshardPolicy& policy, std::vector<Unit> titan) {
  for (std::size_t u = 0; u + 1 < titan.size(); ++u)
    titan[u].reshard_after_forward = (is_last(titan[u]) ? policy.last : policy.inner) ? Reshard::yes : Reshard::no;
  titan.back().reshard_after_forward = Reshard::automatic;
  return titan;
}

bool reshard_alike(const std::vector<Unit>& a, const std::vector<Unit>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Unit& x, const Unit& y) {
    return reshards(x) == reshards(y) && x.reshard_after_forward.ranks <= 1 && y.reshard_after_forward.ranks <= 1;
  });
}

// The policy of the plan; without one, the nearest, which is no policy of the plan.
struct ChosenPolicy {
  ReshardPolicy policy = kPolicies[0];
  bool exact = false;
};
ChosenPolicy reshard_policy(const ShardingPlan& plan, const std::vector<Unit>& titan, bool units_equal) {
  const auto partly = [](const Unit& u) { return u.reshard_after_forward.ranks > 1; };
  const std::vector<Unit>& units = plan.units;
  if (units_equal) {
    for (const ReshardPolicy& p : kPolicies)
      if (reshard_alike(units_under(p, titan), units)) return {p, true};
    return {};
  }
  const auto inner = [&](bool value) {
    return std::all_of(units.begin(), units.end() - 1, [&](const Unit& u) { return reshards(u) == value; });
  };
  const bool usual = !reshards(units.back()) && std::none_of(units.begin(), units.end(), partly);
  if (units.size() > 1 && inner(false)) return {kPolicies[2], usual};
  return {kPolicies[0], usual && inner(true)};
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
    const std::string option = std::to_string(n);
    const auto recomputes = [&](std::size_t count, const std::string& policy) {
      return plan.checkpointed.size() == count && plan.checkpointed == checkpointed_modules(model, policy, "plan");
    };
    if (recomputes(blocks.size() / n, "last-of-" + option)) return {"selective", option, true};
    if (recomputes((blocks.size() + n - 1) / n, "every-" + option)) return {"selective", option, false};
  }
  return {"none", "2", false};
}

void write_units(Inexactness& out, const std::vector<Unit>& titan, bool units_equal, const ChosenPolicy& reshard) {
  ShardingPlan& written = out.written;
  if (written.dialect == Dialect::ddp)
    return out.unknown("units",
                       "gradients are reduced in units: DistributedDataParallel fills buckets of bucket_cap_mb");
  if (written.shard() == 1)
    out.unknown("mesh", "fully_shard over one rank: torchtitan shards over two or more, and replicates with ddp");
  if (!units_equal) {
    if (titan.empty()) return out.unknown("units", "the plan's units: the model has no blocks for torchtitan to wrap");
    written.units = units_under(reshard.policy, titan);
    written.wrap = "titan";
    out.changed("units",
                "the plan's units: torchtitan makes one unit per block, one of the embedding and one of norm + "
                "output (our --wrap titan); use --emit pytorch for the units");
  }
  if (reshard.exact) return;
  const std::vector<Unit> under = units_under(reshard.policy, titan);
  if (units_equal)
    for (std::size_t u = 0; u < under.size(); ++u)
      written.units[u].reshard_after_forward = under[u].reshard_after_forward;
  out.changed("reshard_after_forward",
              fmt::format("reshard after forward per unit, of the root or to a part of the ranks: default, always and "
                          "never are all there is; \"{}\" is written",
                          reshard.policy.name));
}

void write_recomputation(Inexactness& out, const ModelGraph& model, const Checkpointing& ac) {
  if (ac.exact) return;
  if (ac.mode == "none")
    return out.changes(&ShardingPlan::checkpointed, std::vector<std::string>{}, "checkpointed",
                       "recomputation of these modules: it is left off here, which keeps all activations");
  const std::string policy = "last-of-" + ac.option;
  out.changes(&ShardingPlan::checkpointed, checkpointed_modules(model, policy, "plan"), "checkpointed",
              "which block recomputation starts at: torchtitan recomputes the last of every " + ac.option +
                  " blocks, the plan the first; --activation-checkpointing " + policy + " is the same");
}

void write_types(Inexactness& out) {
  const ShardingPlan plan = out.written;
  if (plan.dialect == Dialect::fsdp2 && plan.reduce_dtype != DType::f32)
    out.changes(&ShardingPlan::reduce_dtype, DType::f32, "reduce_dtype",
                fmt::format("gradient reduction in {}: float32 only", name(plan.reduce_dtype)));
  if (plan.param_dtype != DType::bf16 && plan.param_dtype != DType::f32)
    out.changes(&ShardingPlan::param_dtype, DType::f32, "param_dtype",
                fmt::format("computing in {}: bfloat16 and float32 only", name(plan.param_dtype)));
  if (plan.master_dtype != DType::bf16 && plan.master_dtype != DType::f32)
    out.unknown("master_dtype",
                fmt::format("parameters kept in {}: bfloat16 and float32 only", name(plan.master_dtype)));
}

// It splits its models in its own way, which is the plan of their family.
void write_tensor(Inexactness& out, const ModelGraph& model, bool is_toml) {
  if (out.written.tensor() == 1) return;
  TensorPlan own = family_tensor_plan(model);
  if (styles_of_modules(own, model, "family") != styles_of_modules(out.written.tensor_plan, model, "plan")) {
    own.loss_parallel = out.written.tensor_plan.loss_parallel;
    out.changes(&ShardingPlan::tensor_plan, own, "tensor_plan", "modules split in another way than torchtitan's");
  }
  if (is_toml) return;
  if (!out.written.tensor_plan.loss_parallel) {
    out.written.tensor_plan.loss_parallel = true;
    out.changed("tensor_plan", "logits gathered for the loss: since 2026 torchtitan leaves them split");
  }
  out.unknown("tensor_plan",
              "predicted as torchtitan split layers until v0.2.2: since 2026 it looks tokens up in the part of the "
              "embedding that a rank holds, and gathers the head's input at the final norm");
}

void write_training(Inexactness& out, std::int64_t largest) {
  const ShardingPlan plan = out.written;
  const auto& mb = plan.micro_batches;
  if (std::any_of(mb.begin(), mb.end(), [&](auto s) { return s != mb.front(); }))
    out.changes(&ShardingPlan::micro_batches, std::vector<std::int64_t>(mb.size(), largest), "micro_batches",
                "micro-batches of different sizes: the largest is written");
  if (mb.size() > 1 && plan.grad_sync != GradSync::every)
    out.changes(&ShardingPlan::grad_sync, GradSync::every, "grad_sync",
                fmt::format("gradient sync '{}': torchtitan reduces after every micro-batch", name(plan.grad_sync)));
  if (plan.optimizer.kind == OptimizerKind::sgd) {
    out.written.optimizer.kind = OptimizerKind::adamw;
    out.written.optimizer.momentum = 0;
    out.changed("optimizer", fmt::format("SGD: its optimizers are Adam and AdamW, which keep {} per parameter",
                                         plan.optimizer.momentum == 0 ? "two more numbers" : "one more number"));
  }
  if (facts_of(plan.optimizer.kind).eight_bit_block > 0) {
    out.written.optimizer.kind = OptimizerKind::adamw;
    out.changed("optimizer", fmt::format("{}: its AdamW keeps 8 bytes per parameter in fp32, not about 2",
                                         facts_of(plan.optimizer.kind).python));
  }
  if (plan.clip_norm && plan.clip_norm_type != 2)
    out.changes(&ShardingPlan::clip_norm_type, 2.0, "clip_norm_type", "the norm that is clipped: it takes the 2-norm");
  const char* const no_clipping = "no clipping: it computes the norm in every step; max_norm is set beyond reach";
  if (!plan.clip_norm) out.changes(&ShardingPlan::clip_norm, kOutOfReach, "clip_norm", no_clipping);
  out.elsewhere("seed", fmt::format("initial weights and data are torchtitan's own; set its seed to {}", plan.seed));
  out.elsewhere("optimizer", "a constant learning rate: set [lr_scheduler] to the schedule you want");
}

void write_implementation(Inexactness& out, const EmitContext& context) {
  if (context.implementation == nullptr) return;
  if (!context.implementation->name.starts_with("torchtitan"))
    out.unknown("implementation", fmt::format("the prediction is for the kernels of {}: torchtitan has its own",
                                              context.implementation->name));
}

// Configurations since February 2026 recompute every block, or none.
void write_every_block(Inexactness& out, const ModelGraph& model, Checkpointing& ac) {
  if (ac.mode != "selective" || ac.option == "op") return;
  ac = {"none", "2", true};
  out.changes(
      &ShardingPlan::checkpointed, std::vector<std::string>{}, "checkpointed",
      fmt::format("recomputation of some of {} blocks: FullAC and SelectiveAC recompute all of them; it is left "
                  "off here, which keeps all activations",
                  block_names(model).size()));
}

// Of a plan with such products. The section is called as the converter that reads it.
std::string float8_text(const Float8Plan& plan) {
  if (plan.recipe == Float8Recipe::mxfp8)
    return "\n[quantize.linear.mx]\nmxfp8_dim1_cast_kernel_choice = \"cuda\"\nfilter_fqns = []\n";
  std::string text = "\n[quantize.linear.float8]\n";
  if (plan.recipe != Float8Recipe::tensorwise)  // torchtitan's without a name, as only that takes the switches below
    text += fmt::format("recipe_name = \"{}\"\n", name(plan.recipe));
  if (plan.all_gather) text += "enable_fsdp_float8_all_gather = true\n";
  if (plan.precomputed_scales) text += "precompute_float8_dynamic_scale_for_fsdp = true\n";
  return text + "filter_fqns = [\"output\"]\n";
}

// What all three are made from.
struct TitanChoices {
  const TitanFlavor* flavor = nullptr;  // null: none of torchtitan's
  Checkpointing ac;
  const char* reshard = "default";
  std::int64_t local = 1;  // sequences of a micro-batch
  bool compiled = false, async_tensor = false;
};

TitanChoices titan_choices(Inexactness& inexact, const ShardingPlan& plan, const ModelGraph& model,
                           const EmitContext& context, bool is_toml) {
  TitanChoices choices;
  const TitanFlavor* flavor = std::find_if(std::begin(kTitanFlavors), std::end(kTitanFlavors),
                                           [&](const TitanFlavor& f) { return f.ours == model.name; });
  if (flavor != std::end(kTitanFlavors)) choices.flavor = flavor;
  std::vector<Unit> titan;
  if (!block_names(model).empty()) titan = wrap_titan(model);
  bool units_equal = titan.size() == plan.units.size();
  for (std::size_t u = 0; units_equal && u < titan.size(); ++u) units_equal = titan[u].modules == plan.units[u].modules;
  const ChosenPolicy reshard = reshard_policy(plan, titan, units_equal);
  choices.reshard = reshard.policy.name;
  choices.ac = checkpointing(plan, model);
  choices.local = *std::max_element(plan.micro_batches.begin(), plan.micro_batches.end());
  const Implementation* const planned = context.implementation;
  choices.compiled = planned != nullptr && planned->compiled;
  choices.async_tensor = planned != nullptr && planned->async_tensor && plan.tensor() > 1;
  if (choices.async_tensor && !is_toml)
    inexact.changed("async_tensor", "products in parts: no key for them is known here, they wait for their gathers");
  if (choices.flavor == nullptr)
    inexact.elsewhere("model", is_toml ? "none of torchtitan's flavors; register it and set [model] name and flavor"
                                       : "none of torchtitan's configurations: start from one of your own");
  write_units(inexact, titan, units_equal, reshard);
  if (!is_toml) write_every_block(inexact, model, choices.ac);
  write_recomputation(inexact, model, choices.ac);
  write_types(inexact);
  write_tensor(inexact, model, is_toml);
  write_training(inexact, choices.local);
  write_default_prefetch(inexact);
  leave_out_uncommon(inexact, plan, "torchtitan");
  leave_out_loop(inexact, plan);
  write_implementation(inexact, context);
  if (has_frozen_parameters(model)) inexact.unknown("model", "parameters that are not trained: it trains all");
  return choices;
}

std::int64_t sequences_per_step(const TitanChoices& choices, const ShardingPlan& plan) {
  return choices.local * static_cast<std::int64_t>(plan.micro_batches.size()) * plan.data_ranks();
}

// [("parallelism.data_parallel_shard_degree", "8")]: values as Python writes them.
std::vector<std::pair<std::string, std::string>> titan_keys(const TitanChoices& choices, const ShardingPlan& plan) {
  const auto truth = [](bool value) { return std::string(value ? "True" : "False"); };
  return {
      {"training.num_tokens_per_microbatch_per_dp_rank", std::to_string(choices.local * plan.seq_len)},
      {"training.num_tokens_per_train_step", std::to_string(sequences_per_step(choices, plan) * plan.seq_len)},
      {"training.max_context_length", std::to_string(plan.seq_len)},
      {"training.max_norm", number(plan.clip_norm.value_or(kOutOfReach))},
      {"training.enable_cpu_offload", truth(plan.offload)},
      {"training.dtype", quoted(std::string(titan_dtype(plan.master_dtype)))},
      {"training.mixed_precision_param",
       quoted(std::string(titan_dtype(plan.param_dtype == DType::bf16 ? DType::bf16 : DType::f32)))},
      {"training.mixed_precision_reduce", quoted("float32")},
      {"training.disable_cuda_graphs", "True"},
      {"parallelism.data_parallel_replicate_degree", std::to_string(plan.replicate())},
      {"parallelism.data_parallel_shard_degree", std::to_string(plan.shard())},
      {"parallelism.tensor_parallel_degree", std::to_string(plan.tensor())},
      {"parallelism.fsdp_reshard_after_forward", quoted(choices.reshard)},
      {"compile.enable", truth(choices.compiled)},
  };
}

void say_since_2026(Inexactness& out, const ShardingPlan& plan) {
  leave_out_float8(out, plan);  // a converter of the model's specification, which the base configuration has
  out.elsewhere("optimizer", "set the configuration's optimizer to " + optimizer_text(plan.optimizer));
}

}  // namespace

Emitted emit_torchtitan(const ShardingPlan& plan, const ModelGraph& model, const EmitContext& context) {
  Inexactness inexact(plan);
  const TitanChoices choices = titan_choices(inexact, plan, model, context, false);
  say_since_2026(inexact, plan);
  Emitted out{{}, std::move(inexact.list), std::move(inexact.written), choices.compiled};
  constexpr auto kCall = "torchtitan, since February 2026: NGPU={} MODULE=this_module CONFIG=planned ./run_train.sh";
  out.text = header(plan, model, fmt::format(kCall, plan.ranks()), out.cannot_express);
  const std::string base = choices.flavor != nullptr ? std::string(choices.flavor->config) : "your_config";
  out.text += fmt::format(
      "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC\nfrom {} import "
      "{}\nfrom torchtitan.trainer import Trainer\n\n\ndef planned() -> Trainer.Config:\n    config "
      "= {}()\n",
      choices.flavor != nullptr ? fmt::format("torchtitan.models.{}.config_registry", choices.flavor->name)
                                : "your_module",
      base, base);
  for (const auto& [key, value] : titan_keys(choices, plan))
    out.text += fmt::format("    config.{} = {}\n", key, value);
  out.text += fmt::format("    config.activation_checkpoint = {}\n    return config\n",
                          choices.ac.mode == "none"   ? "None"
                          : choices.ac.mode == "full" ? "FullAC.Config()"
                                                      : "SelectiveAC.Config()");
  return out;
}

Emitted emit_torchtitan_arguments(const ShardingPlan& plan, const ModelGraph& model, const EmitContext& context) {
  Inexactness inexact(plan);
  const TitanChoices choices = titan_choices(inexact, plan, model, context, false);
  say_since_2026(inexact, plan);
  Emitted out{{}, std::move(inexact.list), std::move(inexact.written), choices.compiled};
  out.text =
      header(plan, model, "torchtitan's arguments, since February 2026 (frozen there; configurations are Python)",
             out.cannot_express);
  out.text += fmt::format("NGPU={} MODULE={} CONFIG={} ./run_train.sh", plan.ranks(),
                          choices.flavor != nullptr ? choices.flavor->name : "your_module",
                          choices.flavor != nullptr ? choices.flavor->config : "your_config");
  for (const auto& [key, value] : titan_keys(choices, plan)) {
    if (value == "True" || value == "False") {
      const std::size_t dot = key.find('.') + 1;
      out.text += fmt::format(" \\\n  --{}{}{}", key.substr(0, dot), value == "True" ? "" : "no-", key.substr(dot));
      continue;
    }
    const bool text = value.front() == '"';
    out.text += fmt::format(" \\\n  --{} {}", key, text ? value.substr(1, value.size() - 2) : value);
  }
  out.text += fmt::format(" \\\n  activation-checkpoint:{}\n", choices.ac.mode);
  return out;
}

Emitted emit_torchtitan_toml(const ShardingPlan& plan, const ModelGraph& model, const EmitContext& context) {
  Inexactness inexact(plan);
  if (plan.float8.recipe == Float8Recipe::delayed) leave_out_float8(inexact, plan);
  const TitanChoices choices = titan_choices(inexact, plan, model, context, true);
  const TitanFlavor* const flavor = choices.flavor;
  const bool known = flavor != nullptr;
  Emitted out{{}, std::move(inexact.list), std::move(inexact.written), choices.compiled, choices.async_tensor};
  out.text = header(plan, model, "torchtitan config (TOML, v0.2.2 and before): CONFIG_FILE=THIS_FILE ./run_train.sh",
                    out.cannot_express);
  out.text +=
      fmt::format("\n[model]\nname = {}\nflavor = {}\n", quoted(known ? std::string(flavor->name) : model.family),
                  quoted(known ? std::string(flavor->flavor) : model.name));
  const std::string float8 = out.written.float8.recipe == Float8Recipe::none ? "" : float8_text(out.written.float8);
  if (!float8.empty()) out.text += "converters = [\"" + float8.substr(2, float8.find(']') - 2) + "\"]\n";
  out.text +=
      fmt::format("\n[optimizer]\nname = \"AdamW\"\nlr = {}\nbeta1 = {}\nbeta2 = {}\neps = {}\nweight_decay = {}\n",
                  number(plan.optimizer.lr), number(plan.optimizer.beta1), number(plan.optimizer.beta2),
                  number(plan.optimizer.eps), number(plan.optimizer.weight_decay));
  out.text += "\n[lr_scheduler]\nwarmup_steps = 0\n";
  out.text += fmt::format("\n[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\nmax_norm = {}\n",
                          choices.local, sequences_per_step(choices, plan), plan.seq_len,
                          number(plan.clip_norm.value_or(kOutOfReach)));
  out.text += fmt::format(
      "enable_cpu_offload = {}\ndtype = \"{}\"\nmixed_precision_param = \"{}\"\nmixed_precision_reduce = \"float32\"\n",
      plan.offload, titan_dtype(plan.master_dtype),
      titan_dtype(plan.param_dtype == DType::bf16 ? DType::bf16 : DType::f32));
  out.text += fmt::format(
      "\n[parallelism]\ndata_parallel_replicate_degree = {}\ndata_parallel_shard_degree = "
      "{}\nfsdp_reshard_after_forward = "
      "\"{}\"\n",
      plan.replicate(), plan.shard(), choices.reshard);
  if (plan.tensor() > 1)
    out.text += fmt::format("tensor_parallel_degree = {}\ndisable_loss_parallel = {}\n{}", plan.tensor(),
                            !plan.tensor_plan.loss_parallel,
                            choices.async_tensor ? "enable_async_tensor_parallel = true\n" : "");
  out.text += fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n", choices.ac.mode);
  if (choices.ac.mode == "selective") out.text += fmt::format("selective_ac_option = \"{}\"\n", choices.ac.option);
  out.text += float8 + fmt::format("\n[compile]\nenable = {}\n", out.compiled);
  return out;
}

}  // namespace fsdp
