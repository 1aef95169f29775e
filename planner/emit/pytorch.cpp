// A paste-ready PyTorch script: apply_plan(model, mesh) for a model of one's own, and a training loop to try it with.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "models/index.h"
#include "planner/emit/adapters.h"
#include "planner/emit/formats.h"
#include "planner/emit/pytorch_template.h"

namespace fsdp {
namespace {

std::string reshard_text(Reshard r) {
  if (r.ranks > 1) return std::to_string(r.ranks);
  return r == Reshard::automatic ? "None" : python(r == Reshard::yes);
}

// A Python dictionary of what differs from the default; empty: nothing does.
std::string dictionary(const std::vector<std::pair<std::string, std::string>>& items) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : items) texts.push_back("\"" + key + "\": " + value);
  return texts.empty() ? "" : "{" + join(texts, ", ") + "}";
}

std::string unit_options(const Unit& u) {
  std::vector<std::pair<std::string, std::string>> items;
  if (u.grad_sync) items.emplace_back("grad_sync", quoted(std::string(name(*u.grad_sync))));
  if (!u.reshard_after_backward) items.emplace_back("reshard_after_backward", "False");
  if (!u.unshard_in_backward) items.emplace_back("unshard_in_backward", "False");
  if (u.gradient_divide_factor) items.emplace_back("gradient_divide_factor", number(*u.gradient_divide_factor));
  if (!u.forward_prefetch.empty()) items.emplace_back("forward_prefetch", python_list(u.forward_prefetch));
  if (!u.backward_prefetch.empty()) items.emplace_back("backward_prefetch", python_list(u.backward_prefetch));
  const auto add_dtype = [&](const char* key, const std::optional<DType>& dtype) {
    if (dtype) items.emplace_back(key, quoted(std::string(name(*dtype))));
  };
  add_dtype("param_dtype", u.param_dtype);
  add_dtype("reduce_dtype", u.reduce_dtype);
  add_dtype("output_dtype", u.output_dtype);
  if (!u.cast_forward_inputs) items.emplace_back("cast_forward_inputs", "False");
  return dictionary(items);
}

std::string more_options(const ShardingPlan& plan) {
  std::vector<std::pair<std::string, std::string>> items;
  if (plan.clip_norm_type != 2) items.emplace_back("clip_norm_type", "float(\"" + norm_type_text(plan) + "\")");
  if (plan.checkpoint_policy == CheckpointPolicy::selective_op && !plan.checkpointed.empty())
    items.emplace_back("checkpoint_policy", "\"selective-op\"");
  if (plan.trained_dtype) items.emplace_back("trained_dtype", quoted(std::string(name(*plan.trained_dtype))));
  if (plan.loss_chunks > 1) items.emplace_back("loss_chunks", std::to_string(plan.loss_chunks));
  if (plan.offload) items.emplace_back("offload", "True");
  if (plan.offload_optimizer) items.emplace_back("offload_optimizer", "True");
  if (!plan.offload_activations.empty())
    items.emplace_back("offload_activations", python_list(plan.offload_activations));
  if (!plan.ignored.empty()) items.emplace_back("ignored", python_list(plan.ignored));
  std::vector<std::string> dims;
  for (const ShardDim& d : plan.shard_dims) dims.push_back(quoted(d.parameter) + ": " + std::to_string(d.dim));
  if (!dims.empty()) items.emplace_back("shard_dims", "{" + join(dims, ", ") + "}");
  if (plan.reduce_scatter_buffers > 1)
    items.emplace_back("reduce_scatter_buffers", std::to_string(plan.reduce_scatter_buffers));
  if (plan.separate_reduce_scatter) items.emplace_back("separate_reduce_scatter", "True");
  if (plan.loop.loss_in_model) items.emplace_back("loss_in_model", "True");
  if (plan.loop.host_threads > 0) items.emplace_back("host_threads", std::to_string(plan.loop.host_threads));
  if (plan.force_sum_reduction) items.emplace_back("force_sum_reduction", "True");
  return dictionary(items);
}

std::string plan_text(const ShardingPlan& plan, const ModelGraph& model) {
  std::vector<std::string> micro_batches;
  for (const std::int64_t s : plan.micro_batches) micro_batches.push_back(std::to_string(s));
  const Optimizer& o = plan.optimizer;
  std::string text = "PLAN = {\n";
  text += fmt::format("    \"dialect\": \"{}\",\n    \"mesh\": ({}, {}),  # replicate, shard\n", name(plan.dialect),
                      plan.replicate(), plan.shard());
  if (plan.tensor() > 1)
    text += fmt::format("    \"tensor\": {},  # ranks that each layer is split over\n", plan.tensor());
  text += fmt::format("    \"micro_batches\": [{}],  # sequences per rank\n    \"seq_len\": {},\n",
                      join(micro_batches, ", "), plan.seq_len);
  text += fmt::format("    \"grad_sync\": \"{}\",\n    \"forward_prefetch\": {},\n    \"backward_prefetch\": {},\n",
                      name(plan.grad_sync), plan.forward_prefetch, plan.backward_prefetch);
  text += roots_text(plan, model) + orders_text(plan, model);
  text += fmt::format("    \"param_dtype\": \"{}\",\n    \"reduce_dtype\": \"{}\",\n    \"master_dtype\": \"{}\",\n",
                      name(plan.param_dtype), name(plan.reduce_dtype), name(plan.master_dtype));
  text += fmt::format(
      "    \"optimizer\": {{\"kind\": \"{}\", \"lr\": {}, \"beta1\": {}, \"beta2\": {}, \"eps\": {}, \"weight_decay\": "
      "{}{}}},\n",
      name(o.kind), number(o.lr), number(o.beta1), number(o.beta2), number(o.eps), number(o.weight_decay),
      o.momentum != 0 ? fmt::format(", \"momentum\": {}", number(o.momentum)) : "");
  text += fmt::format("    \"clip_norm\": {},\n    \"seed\": {},\n", plan.clip_norm ? number(*plan.clip_norm) : "None",
                      plan.seed);
  if (const std::string more = more_options(plan); !more.empty()) text += "    \"more\": " + more + ",\n";
  text += "    \"checkpointed\": " + python_list(plan.checkpointed) +
          ",\n    \"units\": [  # modules, reshard_after_forward (None: PyTorch's default)\n";
  for (const Unit& u : plan.units) {
    const std::string options = unit_options(u);
    text += fmt::format("        ({}, {}{}{}),\n", python_list(u.modules), reshard_text(u.reshard_after_forward),
                        options.empty() ? "" : ", ", options);
  }
  return text + "    ],\n}\n";
}

void put(std::string& text, const std::string& mark, const std::string& value) {
  text.replace(text.find(mark), mark.size(), value);
}

// The text of a model with adapters: build_model puts them into what builds the model without them.
std::string adapted_text(std::string text, const Adapters& a) {
  constexpr std::string_view kBuild = "def build_model(";
  text.replace(text.find(kBuild), kBuild.size(), "def build_base_model(");
  std::string base = "build_base_model(config, reference)";
  if (a.base != FourBits::none) {
    std::string four_bits = kPytorchFourBits;
    put(four_bits, "@HEAD@", a.head);
    while (four_bits.find("@DOUBLE@") != std::string::npos)
      put(four_bits, "@DOUBLE@", python(a.base == FourBits::nf4_double));
    text += four_bits;
    base = "in_four_bits(" + base + ")";
  }
  return text + fmt::format(R"(

def build_model(config, reference):
    from peft import LoraConfig, inject_adapter_in_model
    lora = {}
    return inject_adapter_in_model(lora, {})
)",
                            lora_config(a), base);
}

// The names and shapes of the parameters before they had adapters.
ModelGraph without_adapters(ModelGraph model) {
  constexpr std::string_view kBase = ".base_layer.";
  for (const Op& op : model.ops)
    if (const OpShape& s = op.shape; s.four_bits != FourBits::none)
      model.parameters[at(op.params[0])].shape = {s.transposed ? s.in : s.out, s.transposed ? s.out : s.in};
  for (Parameter& p : model.parameters)
    if (const std::size_t i = p.name.find(kBase); i != std::string::npos) p.name.erase(i, kBase.size() - 1);
  return model;
}

// Lines that only a plan with a tensor dimension has.
void put_tensor(std::string& body, const ShardingPlan& plan, const ModelGraph& model) {
  const bool split = plan.tensor() > 1, loss = split && plan.tensor_plan.loss_parallel;
  put(body, "@REPLICATE@", split ? "Replicate, " : "");
  put(body, "@IMPORT_STYLES@",
      split ? fmt::format(
                  "from torch.distributed.tensor.parallel import (ColwiseParallel, ParallelStyle, RowwiseParallel,\n"
                  "                                               SequenceParallel, {}parallelize_module)\n",
                  loss ? "loss_parallel, " : "")
            : "");
  put(body, "@TENSOR@\n", split ? tensor_text(plan, model) : "");
  put(body, "@SPLIT@", split ? "    mesh = split_over_tensor(model, mesh)\n" : "");
  put(body, "@DECORATOR@",
      loss ? "@loss_parallel()        # the logits are split by vocabulary, in forward and in backward\n" : "");
}

}  // namespace

Emitted emit_pytorch(const ShardingPlan& plan, const ModelGraph& model, const EmitContext& context) {
  Inexactness out(plan);
  out.elsewhere("seed",
                "initial weights and tokens differ from those of `fsdp-plan run`: PyTorch's generators draw others");
  leave_out_float8(out, plan);
  leave_out_loop(out, plan, /*loss_in_model=*/model.trace.empty(), /*sets_threads=*/true);
  if (plan.dialect == Dialect::ddp) {
    out.unknown("units", "gradients are reduced in units: DistributedDataParallel fills buckets of bucket_cap_mb");
    if (plan.backward_prefetch != 1) out.elsewhere("backward_prefetch", "ddp gathers nothing");
  }
  if (const auto experts = first_shape(model, OpKind::expert_linear); experts && experts->experts.capacity_factor != 1)
    out.unknown("model", "capacity_factor: transformers' experts take whatever is routed to them");
  if (model.family == "gpt_oss")
    out.elsewhere("model",
                  "the limits of its experts are transformers' defaults, and rotary positions are not scaled: "
                  "other values, the same work");
  if (plan.offload && !plan.ignored.empty())
    out.unknown("ignored", "ignored parameters on the device: move them there after materialize()");
  if (plan.torch != TorchVersion{})
    out.elsewhere("dialect",
                  fmt::format("the release of PyTorch is what is installed: planned for {}", dialect_text(plan)));
  const std::optional<Adapters> adapters = adapters_of(model);
  if (has_frozen_parameters(model) && !adapters)
    out.unknown("model", "parameters that are not trained: call requires_grad_(False) on them before apply_plan");
  if (plan.offload && adapters && adapters->base != FourBits::none)
    out.unknown("offload", "scales of weights in 4 bits on the device: move them there after materialize()");
  say_implementation(out, context, "the script builds transformers' model where it knows it");
  Emitted emitted{{}, std::move(out.list), std::move(out.written), false};
  emitted.text =
      header(plan, model,
             fmt::format("PyTorch {} script: torchrun --nproc-per-node GPUS THIS_FILE [--steps N] [--tiny] [--cpu]",
                         plan.dialect == Dialect::ddp ? "DDP" : "FSDP2"),
             emitted.cannot_express);
  std::string body = kPytorchTemplate;
  put_tensor(body, plan, model);
  put(body, "@SHARE@", plan.share_comm_context ? ", share_comm_ctx" : "");
  put(body, "@ROOTS@", plan.share_comm_context ? kPytorchRoots : "");
  put(body, "@STATES@", plan.offload_optimizer ? kPytorchStates : "");
  put(body, "@STEP@", plan.offload_optimizer ? "step_with_states_on_host(optimizer)" : "optimizer.step()");
  put(body, "@SCALES@", adapters && adapters->base != FourBits::none ? "    give_scales(model, device)\n" : "");
  put(body, "@PLAN@", plan_text(plan, model));
  put(body, "@MODEL@\n",
      adapters ? adapted_text(model_text(without_adapters(model), plan.tensor()), *adapters)
               : model_text(model, plan.tensor()));
  emitted.text += body;
  return emitted;
}

}  // namespace fsdp
