// Hugging Face Accelerate's YAML (`accelerate launch --config_file`), keys of its FullyShardedDataParallelPlugin, FSDP
// versions 1 and 2.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "planner/emit/formats.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

struct WrapKeys {
  std::string policy;   // TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP
  std::string classes;  // comma list
  bool exact = true;
  std::string size = "";  // of SIZE_BASED_WRAP, in parameters
};

std::vector<std::vector<std::string>> modules_of(const std::vector<Unit>& units) {
  std::vector<std::vector<std::string>> lists;
  for (const Unit& u : units) lists.push_back(u.modules);
  std::sort(lists.begin(), lists.end());
  return lists;
}

// FSDP1's size policy is PyTorch's own, and so is ours: its threshold, if that is what the plan's units come from; else
// 0.
std::int64_t size_policy(const ShardingPlan& plan, const ModelGraph& model) {
  const std::string_view prefix = "params:";
  if (plan.dialect != Dialect::fsdp1 || !plan.wrap.starts_with(prefix)) return 0;
  double size = 0;
  const char* const end = plan.wrap.data() + plan.wrap.size();
  const auto [stop, problem] = std::from_chars(plan.wrap.data() + prefix.size(), end, size);
  if (problem != std::errc() || stop != end || !(size >= 1) || size > 9e15) return 0;
  const auto threshold = static_cast<std::int64_t>(size);
  return modules_of(wrap_by_size(model, threshold)) == modules_of(plan.units) ? threshold : 0;
}

// Accelerate wraps by class: exact when the plan's units are just the modules of some classes.
WrapKeys wrap_keys(const ShardingPlan& plan, const ModelGraph& model) {
  if (plan.units.size() == 1) return {"NO_WRAP", "", true};
  if (const std::int64_t size = size_policy(plan, model); size > 0)
    return {"SIZE_BASED_WRAP", "", true, std::to_string(size)};
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
  if (modules_of(wrap_classes(model, list)) == modules_of(plan.units))
    return {"TRANSFORMER_BASED_WRAP", join(list, ","), true};
  if (blocks.empty()) return {"NO_WRAP", "", false};
  return {"TRANSFORMER_BASED_WRAP", join({blocks.begin(), blocks.end()}, ","), false};
}

std::string mixed_precision(const ShardingPlan& plan) {
  return plan.param_dtype == DType::bf16 ? "bf16" : plan.param_dtype == DType::f16 ? "fp16" : "no";
}

// Is recomputation left to Accelerate? It recomputes what it wraps (FSDP1), or each child of it (FSDP2).
bool recomputes(const ShardingPlan& plan, const ModelGraph& model) {
  if (plan.dialect == Dialect::ddp || plan.checkpointed.empty() || plan.checkpointed != block_names(model))
    return false;
  if (plan.dialect == Dialect::fsdp2) return true;
  std::vector<std::string> wrapped;
  for (std::size_t u = 0; u + 1 < plan.units.size(); ++u) wrapped.push_back(plan.units[u].modules.front());
  return wrapped == plan.checkpointed;
}

// Less common choices that the plugin has no key for.
void list_new_choices(const ShardingPlan& plan, std::vector<std::string>& list) {
  const auto any_unit = [&](auto&& has) { return std::any_of(plan.units.begin(), plan.units.end(), has); };
  if (any_unit([](const Unit& u) { return u.reshard_after_forward.ranks > 1; }))
    list.push_back("resharding to a smaller group of ranks: it is full here");
  if (any_unit([](const Unit& u) {
        return !u.reshard_after_backward || !u.unshard_in_backward || u.grad_sync || u.gradient_divide_factor;
      }))
    list.push_back(
        "switches of single units (reshard after backward, unshard in backward, gradient sync, divide factor): set "
        "them in your "
        "script");
  if (any_unit([](const Unit& u) { return !u.forward_prefetch.empty() || !u.backward_prefetch.empty(); }))
    list.push_back("prefetch lists of units: set them in your script");
  if (!plan.checkpointed.empty() && plan.checkpoint_policy != CheckpointPolicy::full)
    list.push_back(
        fmt::format("recomputation by the policy {}: whole modules are recomputed here", name(plan.checkpoint_policy)));
  if (plan.loss_chunks > 1) list.push_back(fmt::format("a loss computed in {} chunks", plan.loss_chunks));
  if (!plan.ignored.empty())
    list.push_back(fmt::format("ignored modules or parameters ({}): set ignored_modules of the plugin in your script",
                               join(plan.ignored, ", ")));
  if (!plan.shard_dims.empty()) list.push_back("parameters that are sharded on another dimension than the first");
  if (plan.reduce_scatter_buffers != 1)
    list.push_back(fmt::format("{} reduce-scatter buffers", plan.reduce_scatter_buffers));
  if (plan.separate_reduce_scatter) list.push_back("a communicator for reduce-scatter alone");
  if (plan.force_sum_reduction) list.push_back("sums instead of averages in reductions");
  if (plan.torch != TorchVersion{})
    list.push_back(fmt::format("the release of PyTorch: it was planned for {}", dialect_text(plan)));
  if (!plan.limit_all_gathers) list.push_back("limit_all_gathers: false: set it on the plugin in your script");
}

// Choices that Accelerate makes itself, where the plan says otherwise.
std::vector<std::string> missing(const ShardingPlan& plan, const ModelGraph& model, const WrapKeys& wrap,
                                 bool reshard) {
  std::vector<std::string> list;
  const bool fsdp2 = plan.dialect == Dialect::fsdp2, fsdp1 = plan.dialect == Dialect::fsdp1;
  if (!wrap.exact)
    list.push_back(std::string("the plan's units (groups of modules, or some modules of a class): the nearest wrap by "
                               "class is written instead") +
                   (fsdp2 ? "; use --emit pytorch for the units" : ""));
  const auto differs = [&](const Unit& u) { return reshards(u) != reshard; };
  if ((fsdp2 || fsdp1) && std::any_of(plan.units.begin(), plan.units.end() - 1, differs))
    list.push_back(fmt::format("{} per unit: one value holds for all units",
                               fsdp1 ? "a sharding strategy" : "reshard after forward"));
  if (fsdp1 && plan.shard() > 1 && plan.units.size() > 1 && plan.units.back().reshard_after_forward == Reshard::no &&
      reshard)
    list.push_back(
        "a root that keeps its parameters while gradients are not reduced: it has the strategy of the other units");
  if (fsdp2 && differs(plan.units.back()))
    list.push_back(fmt::format("a root that is {}: Accelerate gives it the same value as the blocks",
                               reshard ? "kept after forward (PyTorch's default)" : "resharded after forward"));
  if (!plan.checkpointed.empty() && !(fsdp1 && recomputes(plan, model))) {
    list.push_back(recomputes(plan, model) ? "recomputation of whole blocks: Accelerate's FSDP2 path wraps each child "
                                             "of a block (attention, MLP, norms), which "
                                             "keeps more activations"
                                           : "recomputation of some modules only: it is left off here; wrap them with "
                                             "checkpoint_wrapper in your script");
  }
  if (fsdp2 && plan.forward_prefetch > 0)
    list.push_back(fmt::format("forward prefetch of {} units", plan.forward_prefetch));
  if (fsdp2 && plan.backward_prefetch != 1)
    list.push_back(fmt::format("backward prefetch of {} units (FSDP2 prefetches one)", plan.backward_prefetch));
  list_new_choices(plan, list);
  if (has_frozen_parameters(model))
    list.push_back("parameters that are not trained: call requires_grad_(False) on them in your script");
  if (plan.reduce_dtype != plan.param_dtype)
    list.push_back(fmt::format("gradient reduction in {}: mixed_precision sets one dtype for parameters and reduction",
                               name(plan.reduce_dtype)));
  if (plan.param_dtype == DType::f64 || plan.master_dtype != DType::f32)
    list.push_back(
        fmt::format("parameters computed in {} and kept in {}", name(plan.param_dtype), name(plan.master_dtype)));
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
                             plan.clip_norm
                                 ? " and clip_grad_norm_ at " + number(*plan.clip_norm) +
                                       (plan.clip_norm_type == 2 ? "" : ", norm_type " + norm_type_text(plan))
                                 : ""));
  list.push_back(
      "the split of ranks into machines: set num_machines and machine_rank" +
      (fsdp1 && plan.replicate() > 1 && plan.shard() > 1
           ? fmt::format("; a hybrid strategy shards over the GPUs of a machine, and the plan over {}", plan.shard())
           : std::string()));
  return list;
}

std::string strategy(const ShardingPlan& plan, bool reshard) {
  if (plan.shard() == 1) return "NO_SHARD";
  if (plan.replicate() > 1) return reshard ? "HYBRID_SHARD" : "HYBRID_SHARD_ZERO2";
  return reshard ? "FULL_SHARD" : "SHARD_GRAD_OP";
}

std::string fsdp_section(const ShardingPlan& plan, const WrapKeys& wrap, bool reshard, bool recompute) {
  const bool fsdp1 = plan.dialect == Dialect::fsdp1;
  std::string text =
      fmt::format("fsdp_config:\n  fsdp_version: {}\n  fsdp_activation_checkpointing: {}\n", fsdp1 ? 1 : 2, recompute);
  if (fsdp1) {
    const std::string prefetch = plan.backward_prefetch == 0 ? "NO_PREFETCH"
                                 : plan.backward_post        ? "BACKWARD_POST"
                                                             : "BACKWARD_PRE";
    text += fmt::format(
        "  fsdp_sharding_strategy: {}\n  fsdp_backward_prefetch: {}\n  fsdp_forward_prefetch: {}\n  "
        "fsdp_use_orig_params: {}\n",
        strategy(plan, reshard), prefetch, plan.forward_prefetch > 0, plan.use_orig_params);
  } else {
    text += fmt::format("  fsdp_reshard_after_forward: {}\n", reshard);
  }
  text += fmt::format("  fsdp_auto_wrap_policy: {}\n", wrap.policy);
  if (!wrap.classes.empty()) text += fmt::format("  fsdp_transformer_layer_cls_to_wrap: {}\n", wrap.classes);
  if (!wrap.size.empty()) text += fmt::format("  fsdp_min_num_params: {}\n", wrap.size);
  text += fmt::format("  fsdp_offload_params: {}\n  fsdp_cpu_ram_efficient_loading: false\n", plan.offload);
  if (fsdp1) text += "  fsdp_sync_module_states: true\n";
  text += "  fsdp_state_dict_type: SHARDED_STATE_DICT\n";
  if (!fsdp1 && plan.replicate() > 1) {
    text += fmt::format(
        "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n  parallelism_config_dp_shard_size: {}\n",
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
  const bool recompute = recomputes(plan, model);
  out.text =
      header(plan, model, "Accelerate config: accelerate launch --config_file THIS_FILE train.py", out.cannot_express);
  out.text += "compute_environment: LOCAL_MACHINE\ndebug: false\n";
  out.text += fmt::format("distributed_type: {}\n", ddp ? "MULTI_GPU" : "FSDP");
  out.text += "downcast_bf16: 'no'\nmachine_rank: 0\nmain_training_function: main\n";
  out.text +=
      fmt::format("mixed_precision: '{}'\nnum_machines: 1\nnum_processes: {}\n", mixed_precision(plan), plan.ranks());
  out.text +=
      "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: "
      "false\n";
  if (!ddp) {
    out.text += fsdp_section(plan, wrap, reshard, recompute);
  }
  return out;
}

}  // namespace fsdp
