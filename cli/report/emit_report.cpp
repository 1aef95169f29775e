#include "cli/report/emit_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/input/error.h"
#include "planner/search/plan_choices.h"
#include "planner/wrap.h"

namespace fsdp::cli {
namespace {

// The choices of a plan, as far as flags make them.
PlanChoices choices_of(const ShardingPlan& p) {
  PlanChoices c;
  c.micro_batch = p.micro_batches.front();
  c.grad_accum = static_cast<std::int64_t>(p.micro_batches.size());
  c.dialect = p.dialect;
  c.torch = p.torch;
  c.wrap = p.wrap;
  c.replicate = p.replicate();
  c.grad_sync = p.grad_sync;
  c.forward_prefetch = p.forward_prefetch;
  c.backward_prefetch = p.backward_prefetch;
  c.backward_post = p.backward_post;
  c.offload = p.offload;
  c.offload_optimizer = p.offload_optimizer;
  c.limit_all_gathers = p.limit_all_gathers;
  c.use_orig_params = p.use_orig_params;
  c.param_dtype = p.param_dtype;
  c.reduce_dtype = p.reduce_dtype;
  c.master_dtype = p.master_dtype;
  c.trained_dtype = p.trained_dtype;
  c.optimizer = p.optimizer.kind;
  c.momentum = p.optimizer.momentum;
  c.clip_norm = p.clip_norm;
  return c;
}

// The flags that differ from what `plan` would choose for itself, or had chosen for `planned`. `written`: what `c` is
// of.
std::string flags_of(const PlanChoices& c, const ShardingPlan& written, const ShardingPlan& planned) {
  std::string text = fmt::format("--wrap {} --reshard-after-forward {} --activation-checkpointing {}", *c.wrap,
                                 name(*c.reshard), *c.checkpointing);
  if (c.reduce_dtype != planned.reduce_dtype) text += fmt::format(" --reduce-dtype {}", name(*c.reduce_dtype));
  if (c.grad_sync != planned.grad_sync) text += fmt::format(" --grad-sync {}", name(*c.grad_sync));
  if (c.forward_prefetch != planned.forward_prefetch)
    text += fmt::format(" --forward-prefetch {}", *c.forward_prefetch);
  if (c.backward_prefetch != planned.backward_prefetch)
    text += fmt::format(" --backward-prefetch {}", *c.backward_prefetch);
  if (c.offload_optimizer != planned.offload_optimizer) text += " --offload-optimizer false";
  if (c.limit_all_gathers != planned.limit_all_gathers) text += " --limit-all-gathers true";
  if (c.clip_norm != planned.clip_norm) text += fmt::format(" --clip-norm {}", *c.clip_norm);
  if (written.loss_chunks != planned.loss_chunks) text += fmt::format(" --loss-chunks {}", written.loss_chunks);
  if (written.loop.loss_in_model != planned.loop.loss_in_model) text += " --loss-in-model false";
  if (written.optimizer.kind != planned.optimizer.kind)
    text += fmt::format(" --optimizer {}", name(written.optimizer.kind));
  if (written.float8.recipe != planned.float8.recipe) text += fmt::format(" --float8 {}", name(written.float8.recipe));
  return text;
}

// A line: flags that make a plan which the file holds, found by making it and its file. Empty: none are known.
std::string flags_of_written(const std::string& format, const Emitted& emitted, const ShardingPlan& planned,
                             const ModelGraph& model, const EmitContext& context) {
  const ShardingPlan& written = emitted.written;
  PlanChoices c = choices_of(written);
  if (c.wrap->empty() || c.wrap->find_first_of("|'\" $&;<>()*?`\\") != std::string::npos)
    return "";  // no word of a shell
  const Reshard first = written.units.front().reshard_after_forward;
  const bool one = std::all_of(written.units.begin(), written.units.end(),
                               [&](const Unit& u) { return u.reshard_after_forward == first; });
  c.reshard = one ? first : Reshard::automatic;
  c.checkpointing = checkpointing_policy(written, model).value_or("none");
  if (c.clip_norm != planned.clip_norm) c.clip_norm = 1;  // any
  try {
    const ShardingPlan made = plan_of(c, model, {.ranks = planned.ranks(), .seq_len = planned.seq_len});
    if (emit(format, made, model, context).changes_prediction()) return "";
  } catch (const InputError&) {
    return "";
  }
  return fmt::format("A plan that it holds is one that `plan` makes with {}{}.\n", flags_of(c, written, planned),
                     planned.tensor() > 1 ? " --tensor 1" : "");  // which `c` has
}

}  // namespace

std::string inexact_lines(const std::string& format, const Emitted& emitted, const ShardingPlan& planned,
                          const ModelGraph& model, const EmitContext& context) {
  std::string changes, rest;
  for (const Inexact& i : emitted.cannot_express) {
    const bool harmless = i.effect == Inexact::Effect::none;
    (harmless ? rest : changes) +=
        fmt::format("{} {} {}\n", format, harmless ? "does not hold" : "cannot express", i.text());
  }
  if (!changes.empty())
    changes += "The file is not the plan: what was predicted for the plan does not hold for it.\n" +
               flags_of_written(format, emitted, planned, model, context);
  return rest + changes;
}

}  // namespace fsdp::cli
