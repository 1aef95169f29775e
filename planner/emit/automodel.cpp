// NeMo AutoModel's YAML: the sections of a recipe that say how it is sharded and in which batches. Its units are the
// blocks; the root holds everything else and keeps it.
#include <fmt/format.h>

#include <algorithm>

#include "planner/emit/formats.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

// reshard_after_forward: of every block, or null: of all but the last.
struct BlockReshard {
  const char* text = "null";
  bool exact = false;
};

std::vector<Unit> automodel_units(const ModelGraph& model, const std::string& reshard) {
  std::vector<Unit> units = wrap_blocks(model, 1);
  for (std::size_t u = 0; u + 1 < units.size(); ++u) {
    const bool is_last = u + 2 == units.size();
    units[u].reshard_after_forward = reshard == "false" || (reshard == "null" && is_last) ? Reshard::no : Reshard::yes;
  }
  units.back().reshard_after_forward = Reshard::no;
  return units;
}

bool alike(const std::vector<Unit>& a, const std::vector<Unit>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Unit& x, const Unit& y) {
    return x.modules == y.modules && reshards(x) == reshards(y) && x.reshard_after_forward.ranks <= 1 &&
           y.reshard_after_forward.ranks <= 1;
  });
}

std::string write_blocks(Inexactness& out, const ModelGraph& model) {
  ShardingPlan& written = out.written;
  if (block_names(model).empty()) {
    out.unknown("units", "the plan's units: AutoModel wraps the modules of lists, and the model has none");
    return "null";
  }
  for (const char* reshard : {"null", "true", "false"})
    if (alike(automodel_units(model, reshard), written.units)) return reshard;
  const auto blocks_alike = [&](bool value) {
    return std::all_of(written.units.begin(), written.units.end() - 1,
                       [&](const Unit& u) { return reshards(u) == value; });
  };
  const std::string nearest = blocks_alike(false) && written.units.size() > 1 ? "false"
                              : blocks_alike(true)                            ? "true"
                                                                              : "null";
  const std::vector<Unit> planned = written.units;
  written.units = automodel_units(model, nearest);
  std::vector<std::vector<std::string>> a, b;
  for (const Unit& u : planned) a.push_back(u.modules);
  for (const Unit& u : written.units) b.push_back(u.modules);
  if (a != b)
    out.changed("units",
                "the plan's units: AutoModel makes one of each block, and leaves the embedding, the last norm "
                "and the output head to the root (our --wrap block); use --emit pytorch for the units");
  written.wrap = "block";
  bool differs = false;
  for (const Unit& p : planned)
    for (const Unit& w : written.units)
      differs =
          differs || (p.modules == w.modules && (reshards(p) != reshards(w) || p.reshard_after_forward.ranks > 1));
  if (differs)
    out.changed("reshard_after_forward", fmt::format("reshard after forward per unit, of the root or to a part of the "
                                                     "ranks: null (all blocks but the last), true and false are all "
                                                     "there is; {} is written",
                                                     nearest));
  return nearest;
}

void write_prefetch(Inexactness& out, const std::string& reshard) {
  const ShardingPlan plan = out.written;
  if (plan.backward_prefetch == 0)
    out.changes(&ShardingPlan::backward_prefetch, 1, "backward_prefetch",
                "no prefetch in backward: PyTorch's is left on");
  const bool lists = plan.forward_prefetch > 0 || plan.backward_prefetch > 1;
  if (lists && reshard == "false") {
    out.changes(&ShardingPlan::forward_prefetch, 0, "forward_prefetch",
                "prefetch where blocks stay whole: there is none");
    out.written.backward_prefetch = 1;
  } else if (lists) {
    out.elsewhere("backward_prefetch", "lists are set for blocks, not for the root");
  }
}

std::string write_recomputed(Inexactness& out, const ModelGraph& model) {
  const ShardingPlan plan = out.written;
  if (plan.checkpointed.empty()) return "false";
  if (plan.checkpointed != block_names(model)) {
    out.changes(&ShardingPlan::checkpointed, block_names(model), "checkpointed",
                "recomputation of some modules: activation_checkpointing recomputes every block");
  }
  if (plan.checkpoint_policy == CheckpointPolicy::full) {
    out.elsewhere("checkpointed",
                  "AutoModel recomputes the norms, the attention and the mlp of a block one by one and so leaves out "
                  "their last products: whole blocks are predicted (2 % slower on the one step that was measured)");
    return "full";
  }
  out.elsewhere("checkpoint_policy", "AutoModel's selective policy is its own: the ops that it keeps may be others");
  return "selective";
}

const char* torch_name(DType t) {
  switch (t) {
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: return "float32";
  }
}

}  // namespace

Emitted emit_automodel(const ShardingPlan& planned, const ModelGraph& model, const EmitContext& context) {
  Inexactness out(planned);
  const ShardingPlan plan = leave_out_tensor(out, planned);
  if (plan.dialect == Dialect::ddp)
    throw InputError(setting("emit"), "'automodel' writes the strategy fsdp2, and the plan is ddp",
                     "use pytorch or accelerate, or plan with another --dialect");
  const std::string reshard = write_blocks(out, model);
  write_prefetch(out, reshard);
  const std::string recompute = write_recomputed(out, model);
  if (plan.grad_sync == GradSync::reduce_scatter_only && plan.micro_batches.size() > 1)
    out.changes(&ShardingPlan::grad_sync, GradSync::every, "grad_sync",
                "gradient sync 'reduce-scatter-only': every micro-batch or the last is all there is");
  const std::int64_t local = *std::max_element(plan.micro_batches.begin(), plan.micro_batches.end());
  if (std::any_of(plan.micro_batches.begin(), plan.micro_batches.end(), [&](auto s) { return s != local; }))
    out.changes(&ShardingPlan::micro_batches, std::vector<std::int64_t>(plan.micro_batches.size(), local),
                "micro_batches", "micro-batches of different sizes: the largest is written");
  if (!plan.clip_norm || plan.clip_norm_type != 2) {
    if (!plan.clip_norm)
      out.changes(&ShardingPlan::clip_norm, 1.0, "clip_norm",
                  "no clipping: AutoModel clips at 1.0 where nothing is said");
    if (plan.clip_norm_type != 2)
      out.changes(&ShardingPlan::clip_norm_type, 2.0, "clip_norm_type",
                  "the norm that is clipped: it takes the 2-norm");
  }
  // Prefetch is written: only what is left is taken out.
  const int forward = out.written.forward_prefetch, backward = out.written.backward_prefetch;
  leave_out_uncommon(out, plan, "AutoModel");
  leave_out_float8(out, plan);
  leave_out_loop(out, plan);
  out.elsewhere("model", "the model and its weights: of your recipe");
  out.elsewhere("seq_len",
                fmt::format("sequences of {} tokens: of the recipe's dataset or packed_sequence", plan.seq_len));
  if (has_frozen_parameters(model))
    out.unknown("model", "parameters that are not trained: the recipe's peft section freezes others");
  out.elsewhere("optimizer", "set " + optimizer_text(plan.optimizer) + " as the recipe's optimizer");
  out.elsewhere("seed", fmt::format("initial weights and data are the recipe's; set rng.seed to {}", plan.seed));
  say_implementation(out, context, "AutoModel trains transformers' model, or its own of the same name");
  Emitted emitted{{}, std::move(out.list), std::move(out.written), false};
  std::string& text = emitted.text;
  text = header(planned, model, "NeMo AutoModel: sections of a recipe's YAML", emitted.cannot_express);
  text += fmt::format("step_scheduler:\n  global_batch_size: {}\n  local_batch_size: {}\n",
                      local * static_cast<std::int64_t>(plan.micro_batches.size()) * plan.ranks(), local);
  text += fmt::format("clip_grad_norm:\n  max_norm: {}\n", number(plan.clip_norm.value_or(1.0)));
  text += fmt::format("model:\n  torch_dtype: {}\n", torch_name(plan.master_dtype));
  text += fmt::format(
      "distributed:\n  strategy: fsdp2\n  dp_size: {}\n  dp_replicate_size: {}\n  tp_size: 1\n  cp_size: 1\n"
      "  reshard_after_forward: {}\n  activation_checkpointing: {}\n  defer_fsdp_grad_sync: {}\n",
      plan.ranks(), plan.replicate(), reshard, recompute, plan.grad_sync == GradSync::last);
  const bool lists = forward > 0 || backward > 1;
  text += fmt::format("  enable_fsdp2_prefetch: {}\n", lists);
  if (lists)
    text += fmt::format("  fsdp2_forward_prefetch_depth: {}\n  fsdp2_backward_prefetch_depth: {}\n", forward,
                        std::max(backward, 1));
  text += fmt::format(
      "  mp_policy:\n    _target_: torch.distributed.fsdp.MixedPrecisionPolicy\n    param_dtype: {}\n    reduce_dtype: "
      "{}\n    output_dtype: {}\n",
      torch_name(plan.param_dtype), torch_name(plan.reduce_dtype), torch_name(plan.param_dtype));
  if (plan.offload) text += "  offload_policy:\n    _target_: torch.distributed.fsdp.CPUOffloadPolicy\n";
  return emitted;
}

}  // namespace fsdp
