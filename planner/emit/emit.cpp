#include "planner/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/input/counted.h"
#include "models/input/error.h"
#include "planner/emit/adapters.h"
#include "planner/emit/formats.h"

namespace fsdp {
namespace {

struct Format {
  std::string_view name;
  Emitted (*make)(const ShardingPlan&, const ModelGraph&, const EmitContext&);
  bool splits_layers = false;  // as a tensor plan says
  bool says_units = true;
};
constexpr Format kFormats[] = {
    {"pytorch", emit_pytorch, true},
    {"accelerate", emit_accelerate},
    {"torchtitan", emit_torchtitan},
    {"torchtitan-args", emit_torchtitan_arguments},
    {"torchtitan-toml", emit_torchtitan_toml, true},
    {"transformers", emit_transformers},
    {"automodel", emit_automodel},
    {"lightning", emit_lightning},
    {"composer", emit_composer},
    {"deepspeed", emit_deepspeed, false, false},
};

// Names come from files: keep them from ending a comment line or from being no text at all.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

}  // namespace

std::vector<std::string> emit_formats() {
  std::vector<std::string> names;
  for (const Format& f : kFormats) names.emplace_back(f.name);
  return names;
}

bool emits_tensor_plans(std::string_view format) {
  return std::any_of(std::begin(kFormats), std::end(kFormats),
                     [&](const Format& f) { return f.name == format && f.splits_layers; });
}

std::vector<std::string> emit_targets() {
  std::vector<std::string> names;
  for (const Format& f : kFormats)
    if (f.says_units) names.emplace_back(f.name);
  return names;
}

std::string_view implementation_of(std::string_view target) {
  for (const std::string_view of_transformers : {"accelerate", "transformers", "automodel"})
    if (target == of_transformers) return "hf";
  return {};
}

bool Emitted::changes_prediction() const {
  return std::any_of(cannot_express.begin(), cannot_express.end(),
                     [](const Inexact& i) { return i.effect != Inexact::Effect::none; });
}

bool Emitted::predictable() const {
  return std::none_of(cannot_express.begin(), cannot_express.end(),
                      [](const Inexact& i) { return i.effect == Inexact::Effect::unknown; });
}

Emitted emit(std::string_view format, const ShardingPlan& plan, const ModelGraph& model, const EmitContext& context) {
  for (const Format& f : kFormats) {
    if (f.name != format) continue;
    check(plan, model, "plan");
    if (plan.own_shard() > 0)
      throw InputError(setting("emit"),
                       "no emitted script or configuration shards some units over a mesh of their own yet",
                       "emit a plan without \"shard\" in its units, or run this one with `fsdp-plan run`");
    if (model.prepared)
      throw InputError(setting("emit"), "no emitted script or configuration prepares a model as trl's SFTTrainer does",
                       "leave prepared out of --lora, or write the script yourself");
    if (plan.trained_outermost)
      throw InputError(setting("emit"),
                       "no emitted script or configuration puts a unit of trained parameters around all others",
                       "plan with --wrap 'block|adapters', or run this one with `fsdp-plan run`");
    if (plan.share_comm_context && format != "pytorch")
      throw InputError(setting("emit"),
                       "'" + std::string(format) + "' wraps the whole model, and the plan has several roots",
                       std::string("use pytorch, or ") + kOneRoot);
    if (plan.dialect == Dialect::fsdp1 && format != "accelerate")
      throw InputError(setting("emit"),
                       "'" + std::string(format) + "' writes fully_shard (fsdp2) or DDP, and the plan is fsdp1",
                       "use accelerate, or plan with another --dialect");
    return f.make(plan, model, context);
  }
  throw InputError(setting("emit"), "unknown format '" + std::string(format) + "'",
                   "use one of: " + join(emit_formats(), ", "));
}

std::vector<Inexact> unsayable(std::string_view format, const ShardingPlan& plan, const ModelGraph& model,
                               const std::vector<std::string>& but) {
  constexpr std::string_view kChosen[] = {"units",
                                          "reshard_after_forward",
                                          "reshard_after_backward",
                                          "unshard_in_backward",
                                          "mesh",
                                          "tensor_plan",
                                          "checkpointed",
                                          "checkpoint_policy",
                                          "reentrant",
                                          "micro_batches",
                                          "grad_sync",
                                          "loss_chunks",
                                          "forward_prefetch",
                                          "reduce_scatter_buffers",
                                          "separate_reduce_scatter",
                                          "offload_activations",
                                          "offload_optimizer"};
  const auto holds = [](const auto& names, const std::string& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  Emitted emitted = emit(format, plan, model);
  const bool merged = emitted.written.tensor() < plan.tensor();  // its loss is that of tensor_plan, not of replicas
  std::erase_if(emitted.cannot_express, [&](const Inexact& i) {
    return i.effect == Inexact::Effect::none || !holds(kChosen, i.field) || holds(but, i.field) ||
           (merged && i.field == "mesh" && i.effect == Inexact::Effect::written);
  });
  return std::move(emitted.cannot_express);
}

bool reshards(const Unit& unit) {
  if (unit.reshard_after_forward != Reshard::automatic) return unit.reshard_after_forward != Reshard::no;
  return unit.modules != std::vector<std::string>{""};
}

std::vector<std::string> block_names(const ModelGraph& model) {
  std::vector<std::string> names;
  for (const Module& m : model.modules) {
    if (m.block) names.push_back(m.name);
  }
  return names;
}

void say_frozen(Inexactness& out, const ModelGraph& model) {
  if (!has_frozen_parameters(model)) return;
  const std::optional<Adapters> adapters = adapters_of(model);
  out.elsewhere("model", adapters ? adapters_by_hand(*adapters, out.written)
                                  : "parameters that are not trained: call requires_grad_(False) on them in your "
                                    "script");
}

bool has_frozen_parameters(const ModelGraph& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) { return !p.trainable; });
}

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : separator) + parts[i];
  return text;
}

std::string norm_type_text(const ShardingPlan& plan) {
  return std::isinf(plan.clip_norm_type) ? "inf" : number(plan.clip_norm_type);
}

std::string number(double value) {
  std::string text = fmt::format("{}", value);  // shortest text that reads back as the same double
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  const std::size_t e = text.find('e');  // YAML 1.1 and TOML 0.x readers want a dot before the exponent
  if (e != std::string::npos && text.find('.') == std::string::npos) text.insert(e, ".0");
  return text;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c < 0x20 || c > 0x7e) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string optimizer_text(const Optimizer& o) {
  if (o.kind == OptimizerKind::sgd)
    return fmt::format("SGD(lr={}, {}weight_decay={})", number(o.lr),
                       o.momentum != 0 ? fmt::format("momentum={}, ", number(o.momentum)) : "", number(o.weight_decay));
  return fmt::format("{}(lr={}, betas=({}, {}), eps={}, weight_decay={})",
                     o.kind == OptimizerKind::adamw ? "AdamW" : facts_of(o.kind).python, number(o.lr), number(o.beta1),
                     number(o.beta2), number(o.eps), number(o.weight_decay));
}

void say_implementation(Inexactness& out, const EmitContext& context, const std::string& instead) {
  if (context.implementation == nullptr) return;
  const Implementation& planned = *context.implementation;
  if (planned.compiled) out.changed("compile", "the prediction is for compiled blocks: nothing is compiled here");
  if (planned.async_tensor && out.written.tensor() > 1)
    out.changed("async_tensor", "the prediction is for products in parts, which wait for their gathers here");
  if (planned.name == "hf") return;
  if (planned.name.starts_with("hf") || planned.name.starts_with("foundry"))
    return out.unknown("implementation", fmt::format("the prediction is for {}: {}", planned.name, instead));
  out.elsewhere("implementation", fmt::format("the prediction is for the kernels of {}: {}", planned.name, instead));
}

void write_optimizer(Inexactness& out) {
  const ShardingPlan& plan = out.written;
  out.elsewhere(
      "optimizer",
      "optimizer and clipping (clip_norm): set " + optimizer_text(plan.optimizer) +
          (plan.clip_norm ? " and clip_grad_norm_ at " + number(*plan.clip_norm) +
                                (plan.clip_norm_type == 2 ? "" : ", norm_type (clip_norm_type) " + norm_type_text(plan))
                          : ", without clip_grad_norm_") +
          " in your script");
}

void write_loop(Inexactness& out, const ModelGraph& model) {
  const ShardingPlan& plan = out.written;
  say_frozen(out, model);
  std::vector<std::string> sizes;
  for (const std::int64_t s : plan.micro_batches) sizes.push_back(std::to_string(s));
  out.elsewhere("micro_batches",
                fmt::format("micro-batches of [{}] sequences of {} tokens (seq_len), and which of them reduce "
                            "gradients (grad_sync {}): of your training loop",
                            join(sizes, ", "), plan.seq_len, name(plan.grad_sync)));
  write_optimizer(out);
  out.elsewhere("seed", fmt::format("torch.manual_seed({}) in your script", plan.seed));
}

void write_default_prefetch(Inexactness& out) {
  const int forward = out.written.forward_prefetch, backward = out.written.backward_prefetch;
  if (out.written.dialect == Dialect::fsdp2 && forward > 0)
    out.changes(&ShardingPlan::forward_prefetch, 0, "forward_prefetch",
                fmt::format("forward prefetch of {} units", forward));
  if (out.written.dialect == Dialect::fsdp2 && backward != 1)
    out.changes(&ShardingPlan::backward_prefetch, 1, "backward_prefetch",
                fmt::format("backward prefetch of {} units (FSDP2 prefetches one)", backward));
  if (out.written.dialect == Dialect::ddp && backward != 1) out.elsewhere("backward_prefetch", "ddp gathers nothing");
}

void leave_out_uncommon(Inexactness& out, const ShardingPlan& plan, const std::string& target) {
  const ShardingPlan usual;
  const auto units = [&](auto Unit::*member, const char* field, const std::string& what) {
    const auto value = Unit{}.*member;
    const bool differs =
        std::any_of(plan.units.begin(), plan.units.end(), [&](const Unit& u) { return u.*member != value; });
    for (Unit& u : out.written.units) u.*member = value;
    if (differs) out.changed(field, what);
  };
  const auto reset = [&](auto ShardingPlan::*member, const char* field, const std::string& what) {
    if (plan.*member != usual.*member) out.changes(member, usual.*member, field, what);
  };
  units(&Unit::reshard_after_backward, "reshard_after_backward", "units always reshard after backward");
  units(&Unit::unshard_in_backward, "unshard_in_backward", "every unit is gathered for backward");
  units(&Unit::grad_sync, "grad_sync", "of single units: all follow the plan's");
  units(&Unit::gradient_divide_factor, "gradient_divide_factor", "gradients are divided by the number of ranks");
  units(&Unit::forward_prefetch, "forward_prefetch",
        "prefetch lists of units: the next one is what PyTorch prefetches");
  units(&Unit::backward_prefetch, "backward_prefetch",
        "prefetch lists of units: one ahead, in reverse order, is what PyTorch prefetches");
  units(&Unit::param_dtype, "param_dtype", "of single units: all compute in the plan's");
  units(&Unit::reduce_dtype, "reduce_dtype", "of single units: all reduce in the plan's");
  units(&Unit::output_dtype, "output_dtype", "of single units: they return what they compute");
  units(&Unit::cast_forward_inputs, "cast_forward_inputs", "every unit casts what it is called with");
  reset(&ShardingPlan::offload_activations, "offload_activations",
        "inputs of recomputed modules in host memory: they stay on the device");
  reset(&ShardingPlan::offload_optimizer, "offload_optimizer",
        "optimizer states in host memory between steps: they stay on the device");
  reset(&ShardingPlan::loss_chunks, "loss_chunks",
        fmt::format("a loss computed in {} chunks: it is whole", plan.loss_chunks));
  reset(
      &ShardingPlan::ignored, "ignored",
      fmt::format("ignored modules or parameters ({}): {} shards and reduces them", join(plan.ignored, ", "), target));
  reset(&ShardingPlan::shard_dims, "shard_dims", "parameters are sharded on their first dimension");
  reset(&ShardingPlan::reduce_scatter_buffers, "reduce_scatter_buffers",
        fmt::format("{} reduce-scatter buffers: there is one", plan.reduce_scatter_buffers));
  reset(&ShardingPlan::separate_reduce_scatter, "separate_reduce_scatter",
        "a communicator for reduce-scatter alone: all-gathers use the same");
  reset(&ShardingPlan::force_sum_reduction, "force_sum_reduction",
        "sums instead of averages in reductions: NCCL averages");
  if (plan.trained_dtype && target != "Accelerate")  // which casts by itself
    out.elsewhere("trained_dtype", fmt::format("what is trained is cast to {} in your script, before it is sharded",
                                               name(*plan.trained_dtype)));
  if (plan.torch != TorchVersion{})
    out.elsewhere("dialect",
                  fmt::format("the release of PyTorch is what is installed: planned for {}", dialect_text(plan)));
}

void leave_out_float8(Inexactness& out, const ShardingPlan& plan) {
  if (plan.float8 != Float8Plan{})
    out.changes(&ShardingPlan::float8, Float8Plan{}, "float8",
                fmt::format("products in 8 bits ({}): linear layers multiply in {}", name(plan.float8.recipe),
                            name(plan.param_dtype)));
}

ShardingPlan leave_out_tensor(Inexactness& out, const ShardingPlan& plan) {
  if (plan.tensor() == 1) return plan;
  const std::int64_t before = plan.data_ranks() * plan.sequences_per_rank();
  out.written.mesh = {{"replicate", plan.replicate()}, {"shard", plan.shard() * plan.tensor()}};
  out.changes(&ShardingPlan::tensor_plan, TensorPlan{}, "tensor_plan",
              fmt::format("layers split over {} tensor ranks: all ranks of the mesh are shards, each with sequences of "
                          "its own, {} sequences a step in place of {}",
                          plan.tensor(), before * plan.tensor(), before));
  out.changed("mesh", "see tensor_plan");
  return out.written;
}

void leave_out_loop(Inexactness& out, const ShardingPlan& plan, bool loss_in_model, bool sets_threads) {
  LoopPlan kept;
  kept.loss_in_model = loss_in_model && plan.loop.loss_in_model;
  kept.host_threads = plan.loop.host_threads;
  LoopPlan outside = plan.loop;
  outside.loss_in_model = false;
  if (plan.loop != kept)
    out.changes(&ShardingPlan::loop, kept, "loop",
                outside == kept
                    ? "a loss that the model computes (loop.loss_in_model): the loop of the file does"
                    : "what the training loop does by hand (loop): it only calls the model and its backward");
  if (plan.loop.host_threads > 0 && !sets_threads)
    out.elsewhere("loop",
                  fmt::format("start its ranks with OMP_NUM_THREADS={} (loop.host_threads)", plan.loop.host_threads));
}

void leave_loss_to_script(Inexactness& out, const ShardingPlan& plan) {
  leave_out_loop(out, plan, /*loss_in_model=*/true);
  out.elsewhere("loop", plan.loop.loss_in_model
                            ? "give the model its labels in your script, as transformers' Trainer does"
                            : "compute the loss outside of the model in your script; one that is given its labels, as "
                              "by transformers' Trainer, is planned with loop.loss_in_model");
}

std::string header(const ShardingPlan& plan, const ModelGraph& model, const std::string& what,
                   const std::vector<Inexact>& cannot_express) {
  std::string text = "# " + what + ", written by fsdp-plan.\n#\n";
  text += one_line(fmt::format("# model       {}, {} parameters, digest {}", model.name, model.parameter_count(),
                               plan.model_digest)) +
          "\n";
  text += one_line(fmt::format("# plan        {}, wrap {}, {}, digest {}", dialect_text(plan),
                               plan.wrap.empty() ? "by hand" : plan.wrap, counted(plan.units.size(), "unit"),
                               plan.digest())) +
          "\n";
  text += fmt::format("# ranks       {} = {} x {}{}\n", plan.ranks(), counted(plan.replicate(), "replica"),
                      counted(plan.shard(), "shard"),
                      plan.tensor() > 1 ? fmt::format(" x {} tensor ranks", plan.tensor()) : "");
  text += fmt::format("# batch       {} of {} tokens per rank and step, {} tokens per step\n",
                      counted(plan.sequences_per_rank(), "sequence"), plan.seq_len, plan.tokens_per_step());
  const auto list = [&](bool changes, const char* title) {
    std::string lines;
    for (const Inexact& i : cannot_express)
      if ((i.effect != Inexact::Effect::none) == changes) lines += one_line("#  - " + i.text()) + "\n";
    if (!lines.empty()) text += std::string("#\n# ") + title + ":\n" + lines;
  };
  list(true, "This file is not the plan: what was predicted does not hold for it. It differs in");
  list(false, "Not in this file");
  return text;
}

}  // namespace fsdp
