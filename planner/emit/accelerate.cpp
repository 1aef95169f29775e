// Hugging Face Accelerate's YAML (`accelerate launch --config_file`), keys of its FullyShardedDataParallelPlugin, FSDP
// versions 1 and 2. Version 2 as Accelerate 1.14 and later carries it out: beside the wrapped classes the embedding is
// a unit, and so are final norm and head together, which stay whole after forward.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "models/input/split.h"
#include "planner/emit/formats.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

struct WrapKeys {
  std::string policy;   // TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP
  std::string classes;  // comma list
  bool exact = true;
  std::string size = "";         // of SIZE_BASED_WRAP, in parameters
  std::vector<Unit> units = {};  // of fsdp2: what Accelerate makes of these keys
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

// The classes of the modules of units, but of the root.
std::vector<std::string> classes_of(const std::vector<Unit>& units, const ModelGraph& model) {
  std::set<std::string> classes;
  for (std::size_t u = 0; u + 1 < units.size(); ++u) {
    for (const std::string& name : units[u].modules) {
      const std::int32_t id = model.find_module(name);
      if (id >= 0) classes.insert(model.modules[id].class_name);
    }
  }
  return {classes.begin(), classes.end()};
}

std::vector<std::string> block_classes(const ModelGraph& model) {
  std::set<std::string> blocks;
  for (const Module& m : model.modules)
    if (m.block) blocks.insert(m.class_name);
  return {blocks.begin(), blocks.end()};
}

// The plan's units if some classes give them, else those of the blocks' classes.
WrapKeys fsdp2_keys(const ShardingPlan& plan, const ModelGraph& model) {
  const auto wrapped = [&](const std::vector<std::string>& classes) {
    return WrapKeys{classes.empty() ? "NO_WRAP" : "TRANSFORMER_BASED_WRAP", join(classes, ","), true, "",
                    with_ends(model, classes.empty() ? wrap_root(model) : wrap_classes(model, classes))};
  };
  const std::vector<std::vector<std::string>> planned = modules_of(plan.units);
  const std::vector<std::vector<std::string>> ends = modules_of(with_ends(model, wrap_root(model)));
  std::vector<Unit> others;  // units that it does not make by itself
  for (const Unit& u : plan.units)
    if (u.modules == std::vector<std::string>{""} || !std::binary_search(ends.begin(), ends.end(), u.modules))
      others.push_back(u);
  for (const std::vector<std::string>& classes : {classes_of(others, model), classes_of(plan.units, model)}) {
    WrapKeys keys = wrapped(classes);
    if (modules_of(keys.units) == planned) return keys;
  }
  WrapKeys nearest = wrapped(block_classes(model));
  nearest.exact = false;
  return nearest;
}

// Accelerate wraps by class: exact when the plan's units are just the modules of some classes.
WrapKeys wrap_keys(const ShardingPlan& plan, const ModelGraph& model) {
  if (plan.dialect == Dialect::fsdp2) return fsdp2_keys(plan, model);
  if (plan.units.size() == 1) return {"NO_WRAP", "", true};
  if (const std::int64_t size = size_policy(plan, model); size > 0)
    return {"SIZE_BASED_WRAP", "", true, std::to_string(size)};
  const std::vector<std::string> list = classes_of(plan.units, model), blocks = block_classes(model);
  if (modules_of(wrap_classes(model, list)) == modules_of(plan.units))
    return {"TRANSFORMER_BASED_WRAP", join(list, ","), true};
  if (blocks.empty()) return {"NO_WRAP", "", false};
  return {"TRANSFORMER_BASED_WRAP", join(blocks, ","), false};
}

bool by_torchao(const ShardingPlan& plan) {
  const Float8Recipe r = plan.float8.recipe;
  return r != Float8Recipe::none && r != Float8Recipe::mxfp8 && r != Float8Recipe::delayed;
}

std::string mixed_precision(const ShardingPlan& plan) {
  if (by_torchao(plan)) return "fp8";  // in bf16 beside them
  return plan.param_dtype == DType::bf16 ? "bf16" : plan.param_dtype == DType::f16 ? "fp16" : "no";
}

// The classes of modules that Accelerate wraps; not of the root.
bool wraps_classes(const WrapKeys& wrap) { return wrap.policy == "TRANSFORMER_BASED_WRAP"; }

// Is recomputation left to Accelerate? Only where it recomputes what the plan does: what it wraps, with FSDP2 from 1.15
// on (before, each child of it).
bool recomputes(const ShardingPlan& plan, const ModelGraph& model, const WrapKeys& wrap) {
  if (plan.dialect == Dialect::ddp || plan.checkpointed.empty() || wrap.policy == "NO_WRAP" ||
      plan.checkpointed != block_names(model))
    return false;
  if (plan.dialect == Dialect::fsdp2) return wraps_classes(wrap);
  std::vector<std::string> wrapped;
  for (std::size_t u = 0; u + 1 < plan.units.size(); ++u) wrapped.push_back(plan.units[u].modules.front());
  return wrapped == plan.checkpointed;
}

// What a unit of Accelerate's does after forward: its norm and head are kept, and its root is PyTorch's.
Reshard fsdp2_reshard(const Unit& made, bool reshard) {
  if (made.modules == std::vector<std::string>{""}) return Reshard::automatic;
  return made.reshard_after_forward == Reshard::no || !reshard ? Reshard::no : Reshard::yes;
}

void write_fsdp2_units(Inexactness& out, const ModelGraph& model, const WrapKeys& wrap, bool reshard) {
  ShardingPlan& written = out.written;
  const auto partly = [](const Unit& u) { return u.reshard_after_forward.ranks > 1; };
  if (std::any_of(written.units.begin(), written.units.end(), partly))
    out.changed("reshard_after_forward", "resharding to a smaller group of ranks: it is full here");
  if (!wrap.exact) {
    written.units = wrap.units;
    for (Unit& u : written.units) u.reshard_after_forward = fsdp2_reshard(u, reshard);
    const bool titan = !block_names(model).empty() && modules_of(wrap_titan(model)) == modules_of(wrap.units);
    written.wrap = titan ? "titan" : "";
    return out.changed("units",
                       "the plan's units: Accelerate makes units of whole classes, of the embedding, and of norm and "
                       "output head together (our --wrap titan); use --emit pytorch for the units");
  }
  bool units = false, ends = false, root = false;
  for (Unit& u : written.units) {
    const Unit& made = *std::find_if(wrap.units.begin(), wrap.units.end(),
                                     [&](const Unit& w) { return modules_of({w}) == modules_of({u}); });
    Unit target = u;
    target.reshard_after_forward = fsdp2_reshard(made, reshard);
    if (reshards(u) == reshards(target) && !partly(u)) continue;
    (u.modules == std::vector<std::string>{""}   ? root
     : made.reshard_after_forward == Reshard::no ? ends
                                                 : units) = true;
    u = std::move(target);
  }
  if (units) out.changed("reshard_after_forward", "reshard after forward per unit: one value holds for all units");
  if (ends)
    out.changed("reshard_after_forward", "norm and output head that reshard after forward: Accelerate keeps them");
  if (root)
    out.changed("reshard_after_forward",
                "a root that is resharded after forward: Accelerate leaves it to PyTorch, "
                "which keeps it");
}

void write_units(Inexactness& out, const ModelGraph& model, const WrapKeys& wrap, bool reshard) {
  ShardingPlan& written = out.written;
  if (written.dialect == Dialect::fsdp2) return write_fsdp2_units(out, model, wrap, reshard);
  if (written.dialect == Dialect::ddp)
    return out.unknown("units",
                       "gradients are reduced in units: DistributedDataParallel fills buckets of bucket_cap_mb");
  const auto any = [&](auto first, auto last, auto has) { return std::any_of(first, last, has); };
  const auto differs = [&](const Unit& u) { return reshards(u) != reshard; };
  const auto partly = [](const Unit& u) { return u.reshard_after_forward.ranks > 1; };
  const std::vector<Unit> planned = written.units;
  const bool of_peft = written.wrap == kAdapterUnits, exact = wrap.exact || of_peft;
  if (of_peft)
    out.elsewhere("units",
                  "units of adapters: in your script, fsdp_plugin.auto_wrap_policy = "
                  "peft.utils.other.fsdp_auto_wrap_policy(model)");
  if (!exact) {
    written.units = wraps_classes(wrap) ? wrap_classes(model, split(wrap.classes, ',')) : wrap_root(model);
    written.wrap = wraps_classes(wrap) ? "class:" + wrap.classes : "root";
    out.changed(
        "units",
        "the plan's units (groups of modules, or some modules of a class): the nearest wrap by class is written "
        "instead");
  }
  const Reshard value = reshard ? Reshard::yes : Reshard::no;
  const auto write = [&](Unit& u) {
    if (differs(u) || partly(u)) u.reshard_after_forward = value;
  };
  if (any(planned.begin(), planned.end(), partly))
    out.changed("reshard_after_forward", "resharding to a smaller group of ranks: it is full here");
  if (any(planned.begin(), planned.end() - 1, differs))
    out.changed("reshard_after_forward", "a sharding strategy per unit: one value holds for all units");
  const Unit& root = planned.back();
  const bool root_differs =
      written.shard() > 1 && planned.size() > 1 && reshard && root.reshard_after_forward == Reshard::no;
  if (root_differs)
    out.changed("reshard_after_forward",
                "a root that keeps its parameters while gradients are not reduced: it has the strategy of the other "
                "units");
  if (!exact) {
    for (Unit& u : written.units) u.reshard_after_forward = value;
  } else {
    std::for_each(written.units.begin(), written.units.end() - 1, write);
  }
  if (root_differs) written.units.back().reshard_after_forward = value;
}

// `left`: recomputation is left to Accelerate.
void write_recomputation(Inexactness& out, const ModelGraph& model, bool left) {
  ShardingPlan& plan = out.written;
  if (plan.checkpointed.empty()) return;
  if (plan.checkpoint_policy != CheckpointPolicy::full)
    out.changes(
        &ShardingPlan::checkpoint_policy, CheckpointPolicy::full, "checkpoint_policy",
        fmt::format("recomputation by the policy {}: whole modules are recomputed here", name(plan.checkpoint_policy)));
  if (plan.reentrant)
    out.changes(&ShardingPlan::reentrant, false, "reentrant",
                "reentrant checkpoints around the units: Accelerate's lie inside of them, which gathers each unit once "
                "less");
  if (!left) {
    out.changes(&ShardingPlan::checkpointed, std::vector<std::string>{}, "checkpointed",
                (plan.wrap == kAdapterUnits && plan.checkpointed == block_names(model)
                     ? std::string("recomputation of whole blocks: Accelerate recomputes what its policy wraps, here "
                                   "each adapter by itself, too. It")
                     : std::string("recomputation of some modules only: it")) +
                    " is left off here, which keeps all activations; wrap them with checkpoint_wrapper in your script");
  } else if (plan.dialect == Dialect::fsdp2) {
    out.elsewhere("checkpointed", "Accelerate 1.15 or newer: before, it recomputes each child of a block by itself");
  }
}

void write_numbers(Inexactness& out) {
  const ShardingPlan plan = out.written;
  write_default_prefetch(out);
  if (!plan.limit_all_gathers)
    out.changes(&ShardingPlan::limit_all_gathers, true, "limit_all_gathers",
                "limit_all_gathers: false: set it on the plugin in your script");
  if (plan.reduce_dtype != plan.param_dtype)
    out.changes(&ShardingPlan::reduce_dtype, plan.param_dtype, "reduce_dtype",
                fmt::format("gradient reduction in {}: mixed_precision sets one dtype for parameters and reduction",
                            name(plan.reduce_dtype)));
  if (plan.micro_batches.size() > 1 && plan.grad_sync != GradSync::last)
    out.changes(&ShardingPlan::grad_sync, GradSync::last, "grad_sync",
                fmt::format("gradient sync '{}': accumulate() reduces after the last micro-batch only, unless "
                            "GradientAccumulationPlugin(sync_each_batch=True)",
                            name(plan.grad_sync)));
  // It casts what is trained to fp32, and leaves what is frozen as it was loaded (utils/fsdp_utils.py, 1.15).
  if (plan.trained_dtype == DType::f32 && plan.param_dtype != DType::f64)
    out.elsewhere("master_dtype", fmt::format("load the model in {}", name(plan.master_dtype)));
  else if (plan.param_dtype == DType::f64 || plan.master_dtype != DType::f32)
    out.unknown(
        plan.param_dtype == DType::f64 ? "param_dtype" : "master_dtype",
        fmt::format("parameters computed in {} and kept in {}", name(plan.param_dtype), name(plan.master_dtype)));
}

// A recipe and a filter are arguments in Python (Accelerate 1.15). Gathered in 8 bits, it computes scales ahead.
void write_float8(Inexactness& out, const ShardingPlan& plan) {
  if (!by_torchao(plan)) return leave_out_float8(out, plan);
  if (plan.float8.all_gather && !plan.float8.precomputed_scales)
    out.changes(&ShardingPlan::float8, Float8Plan{plan.float8.recipe, true, true}, "float8",
                "scales reduced weight by weight before each gather: Accelerate computes all of them after each step");
  const std::string config = plan.float8.recipe != Float8Recipe::tensorwise
                                 ? fmt::format(".from_recipe_name(\"{}\")", name(plan.float8.recipe))
                             : plan.float8.all_gather ? "(enable_fsdp_float8_all_gather=True)"
                                                      : "()";
  out.elsewhere("float8",
                fmt::format("pass Accelerator(kwargs_handlers=[AORecipeKwargs(config=Float8LinearConfig{}, "
                            "module_filter_func=...)]) in your script, with a filter that leaves out the output layer "
                            "alone; this file by itself has tensorwise and leaves the first linear layer out, too",
                            config));
}

std::string float8_section(const ShardingPlan& plan) {
  if (!by_torchao(plan)) return "";
  return fmt::format("fp8_config:\n  backend: AO\n  enable_fsdp_float8_all_gather: {}\n  pad_inner_dim: false\n",
                     plan.float8.all_gather);
}

// What the user's script says in any case.
void write_script(Inexactness& out, const ModelGraph& model) {
  const ShardingPlan& plan = out.written;
  say_frozen(out, model);
  std::vector<std::string> sizes;
  for (const std::int64_t s : plan.micro_batches) sizes.push_back(std::to_string(s));
  out.elsewhere("micro_batches", fmt::format("micro-batches of [{}] sequences of {} tokens (seq_len): set batch size, "
                                             "sequence length and gradient_accumulation_steps={} in your script",
                                             join(sizes, ", "), plan.seq_len, plan.micro_batches.size()));
  write_optimizer(out);
  out.elsewhere("seed", fmt::format("set_seed({}) in your script", plan.seed));
}

// How many machines there are, and what has to fit them.
std::int64_t machines(Inexactness& out, const EmitContext& context) {
  const ShardingPlan& plan = out.written;
  const bool hybrid = plan.dialect == Dialect::fsdp1 && plan.replicate() > 1 && plan.shard() > 1;
  if (plan.dialect == Dialect::fsdp2 && plan.shard() == 1)
    out.unknown("mesh", "fully_shard over one rank: Accelerate has no FSDP without shards");
  const std::string shards =
      fmt::format("a hybrid strategy shards over the GPUs of a machine, and the plan over {}", plan.shard());
  if (!context.gpus_per_node) {
    out.elsewhere("cluster", "how many GPUs a machine has is not known here: set num_machines and machine_rank" +
                                 (hybrid ? "; " + shards : std::string()));
    return 1;
  }
  const std::int64_t nodes = (plan.ranks() + *context.gpus_per_node - 1) / *context.gpus_per_node;
  if (hybrid && plan.shard() != std::min(plan.ranks(), *context.gpus_per_node)) out.unknown("mesh", shards);
  if (nodes > 1) out.elsewhere("cluster", "set machine_rank on each machine, main_process_ip and main_process_port");
  return nodes;
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

Emitted emit_accelerate(const ShardingPlan& planned, const ModelGraph& model, const EmitContext& context) {
  Inexactness out(planned);
  const ShardingPlan plan = leave_out_tensor(out, planned);
  const bool ddp = plan.dialect == Dialect::ddp;
  const WrapKeys wrap = ddp ? WrapKeys{} : wrap_keys(plan, model);
  bool reshard = reshards(plan.units.front());  // the root's own when it is the only unit
  if (plan.dialect == Dialect::fsdp2)           // of the first that Accelerate's one value is for
    for (const Unit& u : plan.units)
      if (u.modules.size() == 1 && model.modules[model.find_module(u.modules.front())].block) {
        reshard = reshards(u);
        break;
      }
  write_units(out, model, wrap, reshard);
  const bool recompute = recomputes(out.written, model, wrap);  // of the units that the file has
  write_recomputation(out, model, recompute);
  write_numbers(out);
  leave_out_uncommon(out, plan, "Accelerate");
  write_float8(out, plan);
  leave_loss_to_script(out, plan);
  const std::int64_t nodes = machines(out, context);
  write_script(out, model);
  say_implementation(out, context, "your script's model, as a rule transformers' (hf), is what is trained");
  Emitted emitted{{}, std::move(out.list), std::move(out.written), false};
  std::string& text = emitted.text;
  text = header(planned, model,
                fmt::format("Accelerate config{}: accelerate launch --config_file THIS_FILE train.py",
                            plan.dialect == Dialect::fsdp2 ? " (1.14 and later)" : ""),
                emitted.cannot_express);
  text += "compute_environment: LOCAL_MACHINE\ndebug: false\n";
  text += fmt::format("distributed_type: {}\n", ddp ? "MULTI_GPU" : "FSDP");
  text += "downcast_bf16: 'no'\n" + float8_section(plan) + "machine_rank: 0\nmain_training_function: main\n";
  text += fmt::format("mixed_precision: '{}'\nnum_machines: {}\nnum_processes: {}\n", mixed_precision(plan), nodes,
                      plan.ranks());
  text +=
      "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: "
      "false\n";
  if (!ddp) text += fsdp_section(plan, wrap, reshard, recompute);
  return emitted;
}

}  // namespace fsdp
