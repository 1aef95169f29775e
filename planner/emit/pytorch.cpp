// A paste-ready PyTorch script: apply_plan(model, mesh) for a model of one's own, and a training loop to try it with.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "models/index.h"
#include "planner/emit/formats.h"
#include "planner/emit/pytorch_template.h"

namespace fsdp {
namespace {

const char* python(bool value) { return value ? "True" : "False"; }

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
  if (plan.loss_chunks > 1) items.emplace_back("loss_chunks", std::to_string(plan.loss_chunks));
  if (plan.offload) items.emplace_back("offload", "True");
  if (!plan.offload_activations.empty())
    items.emplace_back("offload_activations", python_list(plan.offload_activations));
  if (!plan.ignored.empty()) items.emplace_back("ignored", python_list(plan.ignored));
  std::vector<std::string> dims;
  for (const ShardDim& d : plan.shard_dims) dims.push_back(quoted(d.parameter) + ": " + std::to_string(d.dim));
  if (!dims.empty()) items.emplace_back("shard_dims", "{" + join(dims, ", ") + "}");
  if (plan.reduce_scatter_buffers > 1)
    items.emplace_back("reduce_scatter_buffers", std::to_string(plan.reduce_scatter_buffers));
  if (plan.separate_reduce_scatter) items.emplace_back("separate_reduce_scatter", "True");
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

// Sizes of a model as its ops state them. Empty for an op kind that is absent.
std::optional<OpShape> first_shape(const ModelGraph& model, OpKind kind) {
  for (const Op& op : model.ops) {
    if (op.kind == kind) return op.shape;
  }
  return std::nullopt;
}

bool has_parameter(const ModelGraph& model, std::string_view suffix) {
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [&](const Parameter& p) { return p.name.ends_with(suffix); });
}

std::int64_t rows_of(const ModelGraph& model, std::string_view suffix) {
  for (const Parameter& p : model.parameters) {
    if (p.name.ends_with(suffix)) return p.shape.front();
  }
  return 0;
}

struct Sizes {
  std::int64_t vocab = 0, hidden = 0, layers = 0, intermediate = 0, positions = 0;
  OpShape attention, norm, rotary;
  bool tied = false;
};

Sizes sizes_of(const ModelGraph& model, std::string_view intermediate_parameter) {
  Sizes s;
  if (const auto embedding = first_shape(model, OpKind::embedding))
    s.vocab = embedding->vocab, s.hidden = embedding->width;
  if (const auto positions = first_shape(model, OpKind::position_embedding)) s.positions = positions->positions;
  s.layers = static_cast<std::int64_t>(block_names(model).size());
  s.intermediate = rows_of(model, intermediate_parameter);
  s.attention = first_shape(model, OpKind::attention).value_or(OpShape{});
  s.rotary = first_shape(model, OpKind::rotary).value_or(OpShape{});
  s.norm = first_shape(model, OpKind::rms_norm).value_or(first_shape(model, OpKind::layer_norm).value_or(OpShape{}));
  s.tied = std::any_of(model.parameters.begin(), model.parameters.end(),
                       [](const Parameter& p) { return !p.aliases.empty(); });
  return s;
}

// Grouped heads stay grouped, single key-value heads single.
std::int64_t tiny_kv_heads(const OpShape& a) { return a.kv_heads == a.heads ? 4 : a.kv_heads == 1 ? 1 : 2; }

std::string functions(const std::string& layers_key, const std::string& vocab_key) {
  return fmt::format(R"(
def model_config(args):
    config = {{**CONFIG, **(TINY if args.tiny else {{}})}}
    if args.blocks > 0:
        config["{0}"] = min(config["{0}"], args.blocks)
    return config


def vocab_size(config):
    return config["{1}"]

)",
                     layers_key, vocab_key);
}

// `tensor`: ranks that every size of the tiny model divides over, too.
std::string llama_text(const ModelGraph& model, std::int64_t tensor) {
  const Sizes s = sizes_of(model, "mlp.gate_proj.weight");
  std::string text = fmt::format("MODEL_TYPE = {}\nCONFIG = {{\n", quoted(model.family));
  text += fmt::format(
      "    \"vocab_size\": {}, \"hidden_size\": {}, \"num_hidden_layers\": {}, \"intermediate_size\": {},\n", s.vocab,
      s.hidden, s.layers, s.intermediate);
  text += fmt::format(
      "    \"num_attention_heads\": {}, \"num_key_value_heads\": {}, \"head_dim\": {}, \"sliding_window\": {},\n",
      s.attention.heads, s.attention.kv_heads, s.attention.head_dim, s.attention.window);
  text += fmt::format("    \"rms_norm_eps\": {}, \"rope_theta\": {}, \"tie_word_embeddings\": {},\n",
                      number(s.norm.eps), number(s.rotary.theta), python(s.tied));
  text += fmt::format("    \"qkv_bias\": {}, \"o_bias\": {}, \"mlp_bias\": {}, \"qk_norm\": {},\n}}\n",
                      python(has_parameter(model, "q_proj.bias")), python(has_parameter(model, "o_proj.bias")),
                      python(has_parameter(model, "gate_proj.bias")), python(has_parameter(model, "q_norm.weight")));
  text += fmt::format(
      "TINY = {{\"vocab_size\": {}, \"hidden_size\": 64, \"intermediate_size\": {}, \"num_attention_heads\": {}, "
      "\"num_key_value_heads\": {}, \"head_dim\": 16}}\n\n",
      std::max(tensor, 250 - 250 % tensor), std::max(tensor, 112 - 112 % tensor), 4 * tensor,
      tiny_kv_heads(s.attention) * tensor);
  return text + functions("num_hidden_layers", "vocab_size") + kReferenceModel;
}

// Mixtral, Qwen3-MoE and OLMoE, which transformers builds and routes without dropping.
std::string experts_text(const ModelGraph& model) {
  const Sizes s = sizes_of(model, "mlp.experts.down_proj");
  const OpShape up = first_shape(model, OpKind::expert_linear).value_or(OpShape{});
  const bool mixtral = model.family == "mixtral";
  const std::string count = mixtral ? "num_local_experts" : "num_experts";
  const std::string width = model.family == "qwen3_moe" ? "moe_intermediate_size" : "intermediate_size";
  std::string text = fmt::format("MODEL_TYPE = {}\nCONFIG = {{\n", quoted(model.family));
  text += fmt::format("    \"vocab_size\": {}, \"hidden_size\": {}, \"num_hidden_layers\": {}, \"{}\": {},\n", s.vocab,
                      s.hidden, s.layers, width, up.out / 2);
  text += fmt::format("    \"num_attention_heads\": {}, \"num_key_value_heads\": {}, \"head_dim\": {},\n",
                      s.attention.heads, s.attention.kv_heads, s.attention.head_dim);
  text += fmt::format("    \"{}\": {}, \"num_experts_per_tok\": {},\n", count, up.experts.count, up.experts.top_k);
  text += fmt::format("    \"rms_norm_eps\": {}, \"tie_word_embeddings\": {},\n", number(s.norm.eps), python(s.tied));
  text += fmt::format("    \"rope_parameters\": {{\"rope_theta\": {}, \"rope_type\": \"default\"}},\n",
                      number(s.rotary.theta));
  if (mixtral) {
    text += fmt::format("    \"sliding_window\": {},\n}}\n",
                        s.attention.window > 0 ? std::to_string(s.attention.window) : "None");
  } else {
    const bool renormalised = first_shape(model, OpKind::moe_route).value_or(OpShape{}).renormalised;
    text += fmt::format("    \"norm_topk_prob\": {}, \"attention_bias\": {},\n}}\n", python(renormalised),
                        python(has_parameter(model, "q_proj.bias")));
  }
  text += fmt::format(
      "TINY = {{\"vocab_size\": 250, \"hidden_size\": 64, \"{}\": 48, \"num_attention_heads\": 4, "
      "\"num_key_value_heads\": {}, "
      "\"head_dim\": 16, \"{}\": {}, \"num_experts_per_tok\": 2, \"bos_token_id\": None, \"eos_token_id\": None, "
      "\"pad_token_id\": None}}\n\n",
      width, tiny_kv_heads(s.attention), count, std::max<std::int64_t>(2, std::min<std::int64_t>(up.experts.count, 8)));
  return text + functions("num_hidden_layers", "vocab_size") + kTransformersOnly;
}

std::string gpt2_text(const ModelGraph& model) {
  const Sizes s = sizes_of(model, "mlp.c_proj.weight");
  std::string text = fmt::format(
      "MODEL_TYPE = \"gpt2\"\nCONFIG = {{\n    \"vocab_size\": {}, \"n_positions\": {}, \"n_embd\": {}, \"n_layer\": "
      "{}, "
      "\"n_head\": {}, \"n_inner\": {},\n",
      s.vocab, s.positions, s.hidden, s.layers, s.attention.heads, s.intermediate);
  text += fmt::format(
      "    \"layer_norm_epsilon\": {}, \"resid_pdrop\": 0.0, \"embd_pdrop\": 0.0, \"attn_pdrop\": 0.0,\n}}\n",
      number(s.norm.eps));
  text += "TINY = {\"vocab_size\": 250, \"n_embd\": 64, \"n_head\": 4, \"n_inner\": 256}\n\n";
  return text + functions("n_layer", "vocab_size") + kTransformersOnly;
}

// transformers' MPT has ALiBi and no learned positions; the others come from llm-foundry only.
std::string mpt_text(const ModelGraph& model) {
  const Sizes s = sizes_of(model, "ffn.up_proj.weight");
  if (!s.attention.alibi || s.positions > 0 || has_parameter(model, ".bias") || s.hidden == 0)
    return "MODEL_TYPE = \"mpt\"\nCONFIG, TINY = {}, {}\n\n" + functions("n_layers", "vocab_size") + kBringYourModel;
  std::string text = fmt::format(
      "MODEL_TYPE = \"mpt\"\nCONFIG = {{\n    \"vocab_size\": {}, \"d_model\": {}, \"n_layers\": {}, \"n_heads\": {}, "
      "\"expansion_ratio\": {}, \"max_seq_len\": {},\n    \"no_bias\": True,\n}}\n",
      s.vocab, s.hidden, s.layers, s.attention.heads, s.intermediate / s.hidden, model.max_seq_len.value_or(2048));
  text += "TINY = {\"vocab_size\": 250, \"d_model\": 64, \"n_heads\": 4}\n\n";
  return text + functions("n_layers", "vocab_size") + kTransformersOnly;
}

std::string model_text(const ModelGraph& model, std::int64_t tensor) {
  const bool llama_like = !block_names(model).empty() && block_names(model).front() == "model.layers.0" &&
                          first_shape(model, OpKind::swiglu) && first_shape(model, OpKind::rotary) &&
                          has_parameter(model, "model.embed_tokens.weight") &&
                          has_parameter(model, "model.layers.0.mlp.down_proj.weight");
  if (llama_like) return llama_text(model, tensor);
  if (first_shape(model, OpKind::expert_linear)) return experts_text(model);
  if (model.family == "gpt2") return gpt2_text(model);
  if (model.family == "mpt") return mpt_text(model);
  return fmt::format("MODEL_TYPE = {}\nCONFIG, TINY = {{}}, {{}}\n\n", quoted(model.family)) +
         functions("num_hidden_layers", "vocab_size") + kBringYourModel;
}

// The adapters of models/graph/lora.h, read back from their modules. peft takes layers by the end of their names: by
// the last part of it where every layer of that name has an adapter.
struct Adapters {
  std::int64_t rank = 0;
  double alpha = 0;
  std::vector<std::string> targets;
};
std::optional<Adapters> adapters_of(const ModelGraph& model) {
  constexpr std::string_view kBase = ".base_layer", kDown = ".lora_A.default.weight";
  Adapters a;
  std::vector<std::string> leaves, others;
  const auto leaf = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  for (const Parameter& p : model.parameters)
    if (p.name.ends_with(kDown)) a.rank = p.shape.front();
  if (a.rank == 0 || !model.trace.empty()) return std::nullopt;  // who exported the model brings it as it is
  for (const Op& op : model.ops) {
    if (op.kind != OpKind::linear) continue;
    const std::string& module = model.modules[at(op.module)].name;
    if (module.ends_with(kBase)) a.targets.push_back(module.substr(0, module.size() - kBase.size()));
    else if (!module.ends_with(".default")) others.push_back(leaf(module));
  }
  for (const Op& op : model.ops)
    if (op.kind == OpKind::scale && model.modules[at(op.module)].name == a.targets.front())
      a.alpha = op.shape.factor * static_cast<double>(a.rank);
  for (const std::string& target : a.targets) leaves.push_back(leaf(target));
  const bool by_leaf = std::none_of(others.begin(), others.end(), [&](const std::string& other) {
    return std::find(leaves.begin(), leaves.end(), other) != leaves.end();
  });
  if (by_leaf) a.targets = std::move(leaves);
  std::sort(a.targets.begin(), a.targets.end());
  a.targets.erase(std::unique(a.targets.begin(), a.targets.end()), a.targets.end());
  return a;
}

// The text of a model with adapters: build_model puts them into what builds the model without them.
std::string adapted_text(std::string text, const Adapters& a) {
  constexpr std::string_view kBuild = "def build_model(";
  text.replace(text.find(kBuild), kBuild.size(), "def build_base_model(");
  return text + fmt::format(R"(

def build_model(config, reference):
    from peft import LoraConfig, inject_adapter_in_model
    lora = LoraConfig(r={}, lora_alpha={}, lora_dropout=0.0, target_modules={})
    return inject_adapter_in_model(lora, build_base_model(config, reference))
)",
                            a.rank, number(a.alpha), python_list(a.targets));
}

// The names of the parameters before they had adapters.
ModelGraph without_adapters(ModelGraph model) {
  constexpr std::string_view kBase = ".base_layer.";
  for (Parameter& p : model.parameters)
    if (const std::size_t i = p.name.find(kBase); i != std::string::npos) p.name.erase(i, kBase.size() - 1);
  return model;
}

void put(std::string& text, const std::string& mark, const std::string& value) {
  text.replace(text.find(mark), mark.size(), value);
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
  leave_out_loop(out, plan);
  if (plan.dialect == Dialect::ddp) {
    out.unknown("units", "gradients are reduced in units: DistributedDataParallel fills buckets of bucket_cap_mb");
    if (plan.backward_prefetch != 1) out.elsewhere("backward_prefetch", "ddp gathers nothing");
  }
  if (const auto experts = first_shape(model, OpKind::expert_linear); experts && experts->experts.capacity_factor != 1)
    out.unknown("model", "capacity_factor: transformers' experts take whatever is routed to them");
  if (plan.offload && !plan.ignored.empty())
    out.unknown("ignored", "ignored parameters on the device: move them there after materialize()");
  if (plan.torch != TorchVersion{})
    out.elsewhere("dialect",
                  fmt::format("the release of PyTorch is what is installed: planned for {}", dialect_text(plan)));
  const std::optional<Adapters> adapters = adapters_of(model);
  if (has_frozen_parameters(model) && !adapters)
    out.unknown("model", "parameters that are not trained: call requires_grad_(False) on them before apply_plan");
  say_implementation(out, context, "the script builds transformers' model where it knows it");
  Emitted emitted{{}, std::move(out.list), std::move(out.written), false};
  emitted.text =
      header(plan, model, "PyTorch FSDP2 script: torchrun --nproc-per-node GPUS THIS_FILE [--steps N] [--tiny] [--cpu]",
             emitted.cannot_express);
  std::string body = kPytorchTemplate;
  put_tensor(body, plan, model);
  put(body, "@SHARE@", plan.share_comm_context ? ", share_comm_ctx" : "");
  put(body, "@ROOTS@", plan.share_comm_context ? kPytorchRoots : "");
  put(body, "@PLAN@", plan_text(plan, model));
  put(body, "@MODEL@\n",
      adapters ? adapted_text(model_text(without_adapters(model), plan.tensor()), *adapters)
               : model_text(model, plan.tensor()));
  emitted.text += body;
  return emitted;
}

}  // namespace fsdp
