// Composer (FSDP2Config): Python that marks the modules of a model and gives the parallelism_config for the Trainer.
// Units are single modules; each may have its own reshard_after_forward, also a number of ranks.
#include <fmt/format.h>

#include <algorithm>

#include "planner/emit/formats.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

std::string python_reshard(const Unit& unit) {
  const std::int64_t ranks = unit.reshard_after_forward.ranks;
  return ranks > 1 ? std::to_string(ranks) : reshards(unit) ? "True" : "False";
}

// Groups become single modules.
void write_single_modules(Inexactness& out, const ModelGraph& model) {
  ShardingPlan& written = out.written;
  std::vector<Unit> units;
  bool grouped = false;
  for (const Unit& u : written.units) {
    grouped = grouped || u.modules.size() > 1;
    for (const std::string& name : u.modules) {
      units.push_back(u);
      units.back().modules = {name};
    }
  }
  if (grouped) {
    const auto order = [&](const Unit& u) { return model.modules[model.find_module(u.modules.front())].op_end; };
    std::stable_sort(units.begin(), units.end() - 1, [&](const Unit& a, const Unit& b) { return order(a) < order(b); });
    written.units = std::move(units);
    written.wrap = "";
    out.changed("units", "groups of modules: each of them is a unit by itself");
  }
  bool tied = false;
  for (const Parameter& p : model.parameters) {
    std::size_t owners = 0;
    for (const Unit& u : written.units)
      for (const std::int32_t m : p.modules)
        owners += u.modules == std::vector<std::string>{model.modules[m].name} ? 1 : 0;
    tied = tied || owners > 1;
  }
  if (tied) out.unknown("units", "units that share a weight: Composer refuses them");
}

const char* precision_of(const ShardingPlan& plan) {
  if (plan.float8.recipe == Float8Recipe::delayed) return "amp_fp8";
  return plan.param_dtype == DType::bf16 ? "amp_bf16" : plan.param_dtype == DType::f16 ? "amp_fp16" : "fp32";
}

}  // namespace

Emitted emit_composer(const ShardingPlan& planned, const ModelGraph& model, const EmitContext& context) {
  Inexactness out(planned);
  const ShardingPlan plan = leave_out_tensor(out, planned);
  if (plan.dialect == Dialect::ddp)
    throw InputError(setting("emit"), "'composer' writes FSDP2Config, and the plan is ddp",
                     "use pytorch or accelerate, or plan with another --dialect");
  write_single_modules(out, model);
  if (plan.param_dtype == DType::f64 || plan.master_dtype != DType::f32)
    out.unknown("master_dtype", fmt::format("parameters computed in {} and kept in {}", name(plan.param_dtype),
                                            name(plan.master_dtype)));
  const bool pure = plan.reduce_dtype == plan.param_dtype;
  if (!pure && plan.reduce_dtype != DType::f32)
    out.changes(
        &ShardingPlan::reduce_dtype, DType::f32, "reduce_dtype",
        fmt::format("gradient reduction in {}: fp32 (DEFAULT) or the computing type (PURE)", name(plan.reduce_dtype)));
  if (plan.checkpoint_policy != CheckpointPolicy::full && !plan.checkpointed.empty())
    out.changes(
        &ShardingPlan::checkpoint_policy, CheckpointPolicy::full, "checkpoint_policy",
        fmt::format("recomputation by the policy {}: whole modules are recomputed", name(plan.checkpoint_policy)));
  if (plan.offload)
    out.changes(&ShardingPlan::offload, false, "offload", "parameters in host memory: FSDP2Config has no such key");
  if (plan.micro_batches.size() > 1 && plan.grad_sync != GradSync::every)
    out.changes(&ShardingPlan::grad_sync, GradSync::every, "grad_sync",
                fmt::format("gradient sync '{}': Trainer leaves FSDP's on in every micro-batch", name(plan.grad_sync)));
  write_default_prefetch(out);
  leave_out_uncommon(out, plan, "Composer");
  if (plan.float8.recipe == Float8Recipe::delayed)
    out.elsewhere("float8",
                  "linear layers are TransformerEngine's where your model makes them (llm-foundry: fc_type te)");
  else leave_out_float8(out, plan);
  leave_loss_to_script(out, plan);
  write_loop(out, model);
  say_implementation(out, context, "your ComposerModel is what is trained");
  Emitted emitted{{}, std::move(out.list), std::move(out.written), false};
  std::string& text = emitted.text;
  text = header(planned, model, "Composer (FSDP2Config): import it in your script", emitted.cannot_express);
  text +=
      "from composer.utils.parallelism import FSDP2Config\nfrom torch.distributed.device_mesh import "
      "init_device_mesh\n\n# module: reshard_after_forward\nUNITS = {\n";
  for (std::size_t u = 0; u + 1 < emitted.written.units.size(); ++u)
    text += fmt::format("    {}: {},\n", quoted(emitted.written.units[u].modules.front()),
                        python_reshard(emitted.written.units[u]));
  text += "}\nRECOMPUTED = [\n";
  for (const std::string& name : plan.checkpointed) text += fmt::format("    {},\n", quoted(name));
  text +=
      "]\n\n\ndef mark(model):\n    \"\"\"model: the one inside of your ComposerModel, before Trainer is made.\"\"\"\n"
      "    units = {model.get_submodule(name): {\"reshard_after_forward\": value} for name, value in UNITS.items()}\n"
      "    recomputed = {model.get_submodule(name) for name in RECOMPUTED}\n"
      "    model.fsdp_wrap_fn = lambda module: units.get(module, False)\n"
      "    model.activation_checkpointing_fn = lambda module: module in recomputed\n\n\n"
      "def parallelism_config():\n    \"\"\"For Trainer, once the process group is there.\"\"\"\n";
  text +=
      plan.replicate() > 1
          ? fmt::format("    mesh = init_device_mesh(\"cuda\", ({}, {}), mesh_dim_names=(\"replicate\", \"shard\"))\n",
                        plan.replicate(), plan.shard())
          : fmt::format("    mesh = init_device_mesh(\"cuda\", ({},), mesh_dim_names=(\"shard\",))\n", plan.shard());
  text += fmt::format(
      "    return {{\"fsdp2\": FSDP2Config(device_mesh=mesh, reshard_after_forward={}, "
      "activation_checkpointing={}, mixed_precision=\"{}\")}}\n\n\nPRECISION = \"{}\"  # Trainer's\n",
      python_reshard(emitted.written.units.back()), plan.checkpointed.empty() ? "False" : "True",
      plan.param_dtype == DType::f32 ? "FULL"
      : pure                         ? "PURE"
                                     : "DEFAULT",
      precision_of(emitted.written));
  return emitted;
}

}  // namespace fsdp
