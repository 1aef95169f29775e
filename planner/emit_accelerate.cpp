// Hugging Face Accelerate's YAML (`accelerate launch --config_file`), keys of its FullyShardedDataParallelPlugin, FSDP version 2.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "planner/emit_formats.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

struct WrapKeys {
  std::string policy;   // TRANSFORMER_BASED_WRAP or NO_WRAP
  std::string classes;  // comma list
  bool exact = true;
};

std::vector<std::vector<std::string>> modules_of(const std::vector<Unit>& units) {
  std::vector<std::vector<std::string>> lists;
  for (const Unit& u : units) lists.push_back(u.modules);
  std::sort(lists.begin(), lists.end());
  return lists;
}

// Accelerate wraps by class: exact when the plan's units are just the modules of some classes.
WrapKeys wrap_keys(const ShardingPlan& plan, const ModelGraph& model) {
  if (plan.units.size() == 1) return {"NO_WRAP", "", true};
  std::set<std::string> classes, blocks;
  for (const Module& m : model.modules) {
    if (m.block) blocks.insert(m.class_name);
  }
  for (std::size_t u = 0; u + 1 < plan.units.size(); ++u) {
    for (const std::string& name : plan.units[u].modules) {
      const std::int32_t id = model.find_module(name);
      if (id >= 0) classes.insert(model.modules[id].class_name);
    }
  }
  const std::vector<std::string> list(classes.begin(), classes.end());
  if (modules_of(wrap_classes(model, list)) == modules_of(plan.units)) return {"TRANSFORMER_BASED_WRAP", join(list, ","), true};
  if (blocks.empty()) return {"NO_WRAP", "", false};
  return {"TRANSFORMER_BASED_WRAP", join({blocks.begin(), blocks.end()}, ","), false};
}

std::string mixed_precision(const ShardingPlan& plan) {
  return plan.param_dtype == DType::bf16 ? "bf16" : plan.param_dtype == DType::f16 ? "fp16" : "no";
}

// What Accelerate decides by itself, against what the plan says.
std::vector<std::string> missing(const ShardingPlan& plan, const ModelGraph& model, const WrapKeys& wrap, bool reshard) {
  std::vector<std::string> list;
  const bool fsdp2 = plan.dialect == Dialect::fsdp2;
  if (fsdp2 && !wrap.exact)
    list.push_back(
        "the plan's units (groups of modules, or some modules of a class): the nearest wrap by class is written instead; use "
        "--emit pytorch for the units");
  const auto differs = [&](const Unit& u) { return reshards(u) != reshard; };
  if (fsdp2 && std::any_of(plan.units.begin(), plan.units.end() - 1, differs))
    list.push_back("reshard after forward per unit: one value holds for all units");
  if (fsdp2 && differs(plan.units.back()))
    list.push_back(fmt::format("a root that is {}: Accelerate gives it the same value as the blocks",
                               reshard ? "kept after forward (PyTorch's default)" : "resharded after forward"));
  if (!plan.checkpointed.empty()) {
    list.push_back(
        plan.checkpointed == block_names(model)
            ? "recomputation of whole blocks: Accelerate's FSDP2 path wraps each child of a block (attention, MLP, norms), which "
              "keeps more activations"
            : "recomputation of some modules only: it is left off here; wrap them with checkpoint_wrapper in your script");
  }
  if (fsdp2 && plan.forward_prefetch > 0) list.push_back(fmt::format("forward prefetch of {} units", plan.forward_prefetch));
  if (fsdp2 && plan.backward_prefetch != 1)
    list.push_back(fmt::format("backward prefetch of {} units (FSDP2 prefetches one)", plan.backward_prefetch));
  if (plan.reduce_dtype != plan.param_dtype)
    list.push_back(fmt::format("gradient reduction in {}: mixed_precision sets one dtype for parameters and reduction",
                               name(plan.reduce_dtype)));
  if (plan.param_dtype == DType::f64 || plan.master_dtype != DType::f32)
    list.push_back(fmt::format("parameters computed in {} and kept in {}", name(plan.param_dtype), name(plan.master_dtype)));
  std::vector<std::string> sizes;
  for (const std::int64_t s : plan.micro_batches) sizes.push_back(std::to_string(s));
  list.push_back(
      fmt::format("micro-batches of [{}] sequences of {} tokens: set batch size, sequence length and "
                  "gradient_accumulation_steps={} in your script",
                  join(sizes, ", "), plan.seq_len, plan.micro_batches.size()));
  if (plan.micro_batches.size() > 1 && plan.grad_sync != GradSync::last)
    list.push_back(
        fmt::format("gradient sync '{}': accumulate() reduces after the last micro-batch only, unless "
                    "GradientAccumulationPlugin(sync_each_batch=True)",
                    name(plan.grad_sync)));
  list.push_back(fmt::format("optimizer and clipping: set {}(lr={}, weight_decay={}){} in your script",
                             plan.optimizer.kind == OptimizerKind::adamw ? "AdamW" : "SGD", number(plan.optimizer.lr),
                             number(plan.optimizer.weight_decay),
                             plan.clip_norm ? " and clip_grad_norm_ at " + number(*plan.clip_norm) : ""));
  list.push_back("the split of ranks into machines: set num_machines and machine_rank");
  return list;
}

std::string fsdp_section(const ShardingPlan& plan, const WrapKeys& wrap, bool reshard) {
  std::string text = "fsdp_config:\n  fsdp_version: 2\n";
  text += fmt::format("  fsdp_reshard_after_forward: {}\n  fsdp_auto_wrap_policy: {}\n", reshard, wrap.policy);
  if (!wrap.classes.empty()) text += fmt::format("  fsdp_transformer_layer_cls_to_wrap: {}\n", wrap.classes);
  text += "  fsdp_offload_params: false\n  fsdp_cpu_ram_efficient_loading: false\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n";
  if (plan.replicate() > 1) {
    text +=
        fmt::format("parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n  parallelism_config_dp_shard_size: {}\n",
                    plan.replicate(), plan.shard());
  }
  return text;
}

}  // namespace

Emitted emit_accelerate(const ShardingPlan& plan, const ModelGraph& model) {
  const bool ddp = plan.dialect == Dialect::ddp;
  const WrapKeys wrap = ddp ? WrapKeys{} : wrap_keys(plan, model);
  const bool reshard = reshards(plan.units.front());  // the root's own when it is the only unit
  Emitted out;
  out.cannot_express = missing(plan, model, wrap, reshard);
  const bool recompute = !ddp && !plan.checkpointed.empty() && plan.checkpointed == block_names(model);
  out.text = header(plan, model, "Accelerate config: accelerate launch --config_file THIS_FILE train.py", out.cannot_express);
  out.text += "compute_environment: LOCAL_MACHINE\ndebug: false\n";
  out.text += fmt::format("distributed_type: {}\n", ddp ? "MULTI_GPU" : "FSDP");
  out.text += "downcast_bf16: 'no'\nmachine_rank: 0\nmain_training_function: main\n";
  out.text += fmt::format("mixed_precision: '{}'\nnum_machines: 1\nnum_processes: {}\n", mixed_precision(plan), plan.ranks());
  out.text +=
      "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: false\n";
  if (!ddp) {
    std::string section = fsdp_section(plan, wrap, reshard);
    const std::string anchor = "  fsdp_version: 2\n";
    section.insert(section.find(anchor) + anchor.size(), fmt::format("  fsdp_activation_checkpointing: {}\n", recompute));
    out.text += section;
  }
  return out;
}

}  // namespace fsdp
