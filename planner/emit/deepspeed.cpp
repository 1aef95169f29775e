// DeepSpeed's ZeRO configuration, as the Hjson that it reads. What it gathers, and when, it decides by itself while it
// runs: nothing of that is a plan, and what it takes is not predicted.
#include <fmt/format.h>

#include <algorithm>

#include "planner/emit/formats.h"

namespace fsdp {

Emitted emit_deepspeed(const ShardingPlan& planned, const ModelGraph& model, const EmitContext& context) {
  Inexactness out(planned);
  const ShardingPlan plan = leave_out_tensor(out, planned);
  const bool ddp = plan.dialect == Dialect::ddp;
  const bool resharded = std::any_of(plan.units.begin(), plan.units.end(), [](const Unit& u) { return reshards(u); });
  const int stage = ddp || plan.shard() == 1 ? 0 : resharded ? 3 : 2;
  out.unknown("units",
              "units, reshard and prefetch: ZeRO gathers and reduces by buckets of parameters that it chooses "
              "while it runs");
  out.unknown("forward_prefetch",
              fmt::format("forward {}, backward {}: see units", plan.forward_prefetch, plan.backward_prefetch));
  if (plan.replicate() > 1 && plan.shard() > 1)
    out.unknown("mesh",
                fmt::format("replicas of groups of {} ranks: mics_shard_size needs another optimizer class, and "
                            "hierarchical partitions keep the optimizer states of all ranks",
                            plan.shard()));
  for (const Unit& u : plan.units)
    if (u.reshard_after_forward.ranks > 1 || (stage == 3 && !reshards(u) && u.modules.front() != "")) {
      out.unknown("reshard_after_forward",
                  fmt::format("reshard after forward per unit, or to a part of the ranks: stage {} is for all", stage));
      break;
    }
  if (plan.micro_batches.size() > 1 && plan.grad_sync != GradSync::every)
    out.changes(&ShardingPlan::grad_sync, GradSync::every, "grad_sync",
                fmt::format("gradient sync '{}': ZeRO 2 and 3 reduce in every micro-batch", name(plan.grad_sync)));
  if (plan.master_dtype != DType::f32)
    out.unknown("master_dtype", fmt::format("parameters kept in {}: ZeRO keeps an fp32 copy", name(plan.master_dtype)));
  if (plan.clip_norm && plan.clip_norm_type != 2)
    out.changes(&ShardingPlan::clip_norm_type, 2.0, "clip_norm_type", "the norm that is clipped: it takes the 2-norm");
  if (!plan.checkpointed.empty())
    out.elsewhere("checkpointed", "recomputation is the model's: gradient_checkpointing_enable() in your script");
  const std::int64_t local = *std::max_element(plan.micro_batches.begin(), plan.micro_batches.end());
  if (std::any_of(plan.micro_batches.begin(), plan.micro_batches.end(), [&](auto s) { return s != local; }))
    out.changes(&ShardingPlan::micro_batches, std::vector<std::int64_t>(plan.micro_batches.size(), local),
                "micro_batches", "micro-batches of different sizes: the largest is written");
  out.elsewhere("seq_len", fmt::format("sequences of {} tokens: of your script", plan.seq_len));
  out.elsewhere("optimizer", "set " + optimizer_text(plan.optimizer) + " in your script");
  out.elsewhere("seed", fmt::format("torch.manual_seed({}) in your script", plan.seed));
  leave_out_uncommon(out, plan, "DeepSpeed");
  leave_out_float8(out, plan);
  leave_loss_to_script(out, plan);
  say_frozen(out, model);
  say_implementation(out, context, "your model is what is trained");
  Emitted emitted{{}, std::move(out.list), std::move(out.written), false};
  std::string& text = emitted.text;
  text =
      header(planned, model, "DeepSpeed ZeRO (Hjson: comments are read over): deepspeed train.py --deepspeed THIS_FILE",
             emitted.cannot_express);
  text += fmt::format("{{\n  \"train_micro_batch_size_per_gpu\": {},\n  \"gradient_accumulation_steps\": {},\n", local,
                      plan.micro_batches.size());
  if (plan.clip_norm) text += fmt::format("  \"gradient_clipping\": {},\n", number(*plan.clip_norm));
  text += fmt::format("  \"bf16\": {{\"enabled\": {}}},\n  \"fp16\": {{\"enabled\": {}}},\n",
                      plan.param_dtype == DType::bf16, plan.param_dtype == DType::f16);
  text += fmt::format("  \"communication_data_type\": \"{}\",\n", plan.reduce_dtype == DType::bf16  ? "bf16"
                                                                  : plan.reduce_dtype == DType::f16 ? "fp16"
                                                                                                    : "fp32");
  text += fmt::format(
      "  \"zero_optimization\": {{\n    \"stage\": {},\n    \"overlap_comm\": true,\n    "
      "\"contiguous_gradients\": true",
      stage);
  if (plan.offload && stage == 3) text += ",\n    \"offload_param\": {\"device\": \"cpu\", \"pin_memory\": true}";
  if (plan.offload && stage > 0) text += ",\n    \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}";
  text += "\n  }\n}\n";
  return emitted;
}

}  // namespace fsdp
