// transformers' own sharding: a DistributedConfig with an fsdp_plan, as Python. Rules name modules, with * for a
// number; each module is a unit, but for a final norm and head that are both kept, which are one.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "planner/emit/formats.h"
#include "planner/wrap/fsdp_rules.h"

namespace fsdp {
namespace {

const std::vector<std::string> kTransformersRoot = {""};

struct Rules {
  FsdpRules keeps;
  bool exact_units = true, exact_reshard = true;
};

Rules rules_of(const ShardingPlan& plan, const ModelGraph& model) {
  Rules rules;
  std::map<std::string, std::pair<std::size_t, std::size_t>> votes;  // pattern: units that free, units that keep
  bool tail = false;
  std::size_t kept = 0, in_tail = 0;
  for (const Unit& u : plan.units) {
    if (u.modules == kTransformersRoot) continue;
    if (u.reshard_after_forward.ranks > 1) rules.exact_reshard = false;
    if (is_norm_and_head(u, model)) {
      tail = true;
      in_tail = u.modules.size();
    }
    rules.exact_units = rules.exact_units && (u.modules.size() == 1 || is_norm_and_head(u, model));
    for (const std::string& name : u.modules) {
      auto& [frees, keeps] = votes[rule_pattern(name)];
      ++(reshards(u) ? frees : keeps);
    }
  }
  for (const auto& [pattern, count] : votes) {
    rules.keeps[pattern] = count.second > count.first;
    if (count.first > 0 && count.second > 0) rules.exact_reshard = false;
    kept += rules.keeps[pattern] ? 1 : 0;
    std::size_t there = 0;
    for (const Module& m : model.modules) there += !m.name.empty() && rule_pattern(m.name) == pattern ? 1 : 0;
    if (there != count.first + count.second) rules.exact_units = false;
  }
  if (tail && kept != in_tail) rules.exact_units = false;  // it groups the two only where nothing else is kept
  return rules;
}

void write_rules(Inexactness& out, const Rules& rules, const ModelGraph& model) {
  ShardingPlan& written = out.written;
  if (!rules.exact_units)
    out.changed("units",
                "groups of modules, or some modules of those that are named alike: every module that a rule "
                "names is a unit by itself");
  if (!rules.exact_reshard)
    out.changed("reshard_after_forward",
                "reshard after forward per block, or to a part of the ranks: a rule frees the "
                "full weight or keeps it, for all modules that are named alike");
  if (reshards(written.units.back()))
    out.changed("reshard_after_forward", "a root that is resharded after forward: PyTorch keeps it");
  const bool same = rules.exact_units && rules.exact_reshard;
  if (!same) {
    written.units = units_of_rules(rules.keeps, model);
    written.wrap = "";
  }
  written.units.back().reshard_after_forward = Reshard::automatic;
}

// Returns whether fsdp_mixed_precision is on.
bool write_mixed_precision(Inexactness& out) {
  const ShardingPlan plan = out.written;
  const bool mixed = plan.param_dtype == DType::bf16;
  if (mixed && plan.reduce_dtype != DType::f32)
    out.changes(&ShardingPlan::reduce_dtype, DType::f32, "reduce_dtype",
                fmt::format("gradient reduction in {}: fsdp_mixed_precision reduces in fp32", name(plan.reduce_dtype)));
  if (!mixed && (plan.param_dtype != plan.master_dtype || plan.reduce_dtype != plan.param_dtype))
    out.unknown("param_dtype", fmt::format("computing in {} and reducing in {}: without fsdp_mixed_precision both are "
                                           "the type of the weights",
                                           name(plan.param_dtype), name(plan.reduce_dtype)));
  return mixed;
}

const char* weights_type(DType t) {
  switch (t) {
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: return "float32";
  }
}

// Returns whether blocks are recomputed.
bool write_checkpointing(Inexactness& out, const ModelGraph& model) {
  const ShardingPlan plan = out.written;
  if (plan.checkpointed.empty()) return false;
  if (plan.checkpoint_policy != CheckpointPolicy::full)
    out.changes(
        &ShardingPlan::checkpoint_policy, CheckpointPolicy::full, "checkpoint_policy",
        fmt::format("recomputation by the policy {}: whole blocks are recomputed", name(plan.checkpoint_policy)));
  if (plan.checkpointed != block_names(model))
    out.changes(&ShardingPlan::checkpointed, block_names(model), "checkpointed",
                "recomputation of some modules: gradient_checkpointing_enable recomputes every block");
  return true;
}

}  // namespace

Emitted emit_transformers(const ShardingPlan& planned, const ModelGraph& model, const EmitContext& context) {
  Inexactness out(planned);
  const ShardingPlan plan = leave_out_tensor(out, planned);
  if (plan.dialect == Dialect::ddp)
    throw InputError(setting("emit"), "'transformers' shards with fully_shard, and the plan is ddp",
                     "use pytorch or accelerate, or plan with another --dialect");
  const Rules rules = rules_of(plan, model);
  write_rules(out, rules, model);
  const bool mixed = write_mixed_precision(out);
  const bool recompute = write_checkpointing(out, model);
  write_default_prefetch(out);
  leave_out_uncommon(out, plan, "transformers");
  leave_out_float8(out, plan);
  leave_loss_to_script(out, plan);
  write_loop(out, model);
  say_implementation(out, context, "transformers' model is what is trained");
  Emitted emitted{{}, std::move(out.list), std::move(out.written), false};
  std::string& text = emitted.text;
  text = header(planned, model,
                "transformers (5.20 and later): torchrun --nproc-per-node GPUS your script, which imports this",
                emitted.cannot_express);
  text +=
      "from transformers import AutoConfig, AutoModelForCausalLM\nfrom transformers.distributed import "
      "DistributedConfig\n\n";
  text += fmt::format(
      "distributed_config = DistributedConfig(\n    fsdp_size={},\n    dp_replicate_size={},\n    fsdp_plan={{\n",
      plan.shard(), plan.replicate());
  for (const auto& [pattern, keep] : rules.keeps)
    text += fmt::format("        {}: \"{}\",\n", quoted(pattern), keep ? "keep_full_weight" : "free_full_weight");
  text += fmt::format("    }},\n    fsdp_cpu_offload={},\n    fsdp_mixed_precision={},\n)\n\n",
                      plan.offload ? "True" : "False", mixed ? "True" : "False");
  text +=
      "\ndef load(name, model_class=AutoModelForCausalLM):\n"
      "    config = AutoConfig.from_pretrained(name)\n"
      "    # transformers adds a model's own rules to these: take them out.\n"
      "    config.base_model_fsdp_plan = {}\n"
      "    if hasattr(model_class, \"_model_mapping\"):\n"
      "        model_class = model_class._model_mapping[type(config)]\n"
      "    model_class._fsdp_plan = {}\n"
      "    model = model_class.from_pretrained(name, config=config, distributed_config=distributed_config, ";
  text += fmt::format("dtype=\"{}\")\n", weights_type(plan.master_dtype));
  if (recompute)
    text += "    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={\"use_reentrant\": False})\n";
  text += "    return model\n";
  return emitted;
}

}  // namespace fsdp
