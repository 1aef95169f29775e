// How the emitted PyTorch script comes by its model: sizes, and one of these texts.
#include <fmt/format.h>

#include <algorithm>

#include "planner/emit/formats.h"
#include "planner/emit/pytorch_template.h"

namespace fsdp {

const char* const kReferenceModel = R"python(
# ---- the model, when transformers is not installed: the same module names -------------------------------------------

class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        y = x.float() if x.dtype != torch.float64 else x
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


def rotate(x, theta):
    """Rotary positions, the two halves of a head as pairs. x: [batch, heads, tokens, head_dim]."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, self.c = c["hidden_size"], c
        self.q_proj = nn.Linear(width, c["num_attention_heads"] * c["head_dim"], bias=c["qkv_bias"])
        self.k_proj = nn.Linear(width, c["num_key_value_heads"] * c["head_dim"], bias=c["qkv_bias"])
        self.v_proj = nn.Linear(width, c["num_key_value_heads"] * c["head_dim"], bias=c["qkv_bias"])
        self.o_proj = nn.Linear(c["num_attention_heads"] * c["head_dim"], width, bias=c["o_bias"])
        if c["qk_norm"]:
            self.q_norm = RMSNorm(c["head_dim"], c["rms_norm_eps"])
            self.k_norm = RMSNorm(c["head_dim"], c["rms_norm_eps"])

    def forward(self, x):
        batch, tokens, c = x.shape[0], x.shape[1], self.c
        q, k, v = (p(x).view(batch, tokens, -1, c["head_dim"]) for p in (self.q_proj, self.k_proj, self.v_proj))
        if c["qk_norm"]:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = rotate(q, c["rope_theta"]), rotate(k, c["rope_theta"])
        mask = None
        if 0 < c["sliding_window"] < tokens:
            t = torch.arange(tokens, device=x.device)
            distance = t[:, None] - t
            mask = (distance >= 0) & (distance < c["sliding_window"])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=c["mlp_bias"])
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=c["mlp_bias"])
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=c["mlp_bias"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class ReferenceModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = Trunk(c)
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids, labels=None, shift_labels=None):
        logits = self.lm_head(self.model(ids))
        if shift_labels is None:
            return logits
        return {"loss": F.cross_entropy(wide(logits.flatten(0, 1)), shift_labels.flatten()), "logits": logits}


def build_model(config, reference):
    if not reference:
        try:
            from transformers import AutoConfig, AutoModelForCausalLM
        except ImportError:
            print("transformers is not installed: training the model written out above")
        else:
            written = AutoConfig.for_model(MODEL_TYPE, use_cache=False, **transformers_config(config))
            return AutoModelForCausalLM.from_config(written)
    return ReferenceModel(config)


def transformers_config(config):
    """The same sizes under the names of transformers' configuration."""
    c = {k: v for k, v in config.items() if k not in ("qkv_bias", "o_bias", "mlp_bias", "qk_norm", "sliding_window")}
    if MODEL_TYPE in ("llama", "qwen3"):
        c["attention_bias"] = config["qkv_bias"]
    if MODEL_TYPE == "llama":
        c["mlp_bias"] = config["mlp_bias"]
    if MODEL_TYPE == "mistral":
        c["sliding_window"] = config["sliding_window"] or None
    return c
)python";

const char* const kTransformersOnly = R"python(
def build_model(config, reference):
    if reference:
        raise SystemExit("this script writes out Llama-like models only; leave out --reference")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise SystemExit(f"building a {MODEL_TYPE} model needs transformers (pip install transformers); "
                         "apply_plan(model, mesh) works on yours") from None
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(MODEL_TYPE, use_cache=False, **config))
)python";

const char* const kBringYourModel = R"python(
def build_model(config, reference):
    raise SystemExit("build_model: no library builds this model from a few sizes; import yours and call "
                     "apply_plan(model, mesh)")
)python";

std::optional<OpShape> first_shape(const ModelGraph& model, OpKind kind) {
  for (const Op& op : model.ops) {
    if (op.kind == kind) return op.shape;
  }
  return std::nullopt;
}

namespace {

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

std::string functions(const std::string& layers_key, const std::string& vocab_key, const std::string& more = "") {
  return fmt::format(R"(
def model_config(args):
    config = {{**CONFIG, **(TINY if args.tiny else {{}})}}
    if args.blocks > 0:
        config["{0}"] = min(config["{0}"], args.blocks)
{2}    return config


def vocab_size(config):
    return config["{1}"]

)",
                     layers_key, vocab_key, more);
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

// gpt-oss: the window, and which layers have it. transformers makes its mask even where none has.
std::string windows_text(const ModelGraph& model) {
  std::int64_t window = 0;
  std::string types;
  for (const Op& op : model.ops) {
    if (op.kind != OpKind::attention) continue;
    window = std::max(window, op.shape.window);
    types += fmt::format("{}\"{}\"", types.empty() ? "" : ", ",
                         op.shape.window > 0 ? "sliding_attention" : "full_attention");
  }
  return fmt::format("    \"sliding_window\": {},\n    \"layer_types\": [{}],\n", window > 0 ? window : 128, types);
}

// Mixtral, Qwen3-MoE, OLMoE and gpt-oss, which transformers builds and routes without dropping.
std::string experts_text(const ModelGraph& model) {
  const Sizes s = sizes_of(model, "mlp.experts.down_proj");
  const OpShape up = first_shape(model, OpKind::expert_linear).value_or(OpShape{});
  const bool mixtral = model.family == "mixtral", gpt_oss = model.family == "gpt_oss";
  const std::string count = mixtral || gpt_oss ? "num_local_experts" : "num_experts";
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
  if (gpt_oss) {
    text += windows_text(model) +
            fmt::format("    \"attention_bias\": {},\n}}\n", python(has_parameter(model, "q_proj.bias")));
  } else if (mixtral) {
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
  const std::string more =
      gpt_oss ? "    config[\"layer_types\"] = config[\"layer_types\"][:config[\"num_hidden_layers\"]]\n" : "";
  return text + functions("num_hidden_layers", "vocab_size", more) + kTransformersOnly;
}

// DeepSeek and GLM-4.5, whose first layers have no experts (or all: they need some nevertheless).
std::string shared_experts_text(const ModelGraph& model) {
  const Sizes s = sizes_of(model, "mlp.gate_proj.weight");
  constexpr OpShape kNoLayer{.out = 2, .experts = {.count = 2, .top_k = 1}};
  const OpShape up = first_shape(model, OpKind::expert_linear).value_or(kNoLayer),
                route = first_shape(model, OpKind::moe_route).value_or(OpShape{});
  const bool latent = s.attention.v_head_dim > 0, biased = has_parameter(model, latent ? "o_proj.bias" : "q_proj.bias");
  const std::int64_t width = up.out / 2,
                     mixtures = std::count_if(model.ops.begin(), model.ops.end(),
                                              [](const Op&op) { return op.kind == OpKind::moe_route; }),
                     shared = std::max<std::int64_t>(rows_of(model, "shared_experts.gate_proj.weight") / width, 1);
  const std::int64_t plain = s.attention.head_dim - s.attention.rotated, q_rank = rows_of(model, "q_a_proj.weight");
  std::string text = fmt::format("MODEL_TYPE = {}\nCONFIG = {{\n", quoted(model.family));
  text += fmt::format("    \"vocab_size\": {}, \"hidden_size\": {}, \"num_hidden_layers\": {},\n", s.vocab, s.hidden,
                      s.layers);
  text += fmt::format("    \"intermediate_size\": {}, \"moe_intermediate_size\": {}, \"first_k_dense_replace\": {},\n",
                      s.intermediate > 0 ? s.intermediate : s.hidden, width, s.layers - mixtures);
  text += fmt::format(
      "    \"n_routed_experts\": {}, \"num_experts_per_tok\": {}, \"n_shared_experts\": {}, \"n_group\": {},\n",
      up.experts.count, up.experts.top_k, shared, route.groups);
  text += fmt::format("    \"topk_group\": {}, \"routed_scaling_factor\": {}, \"norm_topk_prob\": {},\n",
                      route.chosen_groups, number(route.factor), python(route.renormalised));
  text += fmt::format("    \"rms_norm_eps\": {}, \"tie_word_embeddings\": {}, \"attention_bias\": {},\n",
                      number(s.norm.eps), python(s.tied), python(biased));
  const std::string share =
      latent ? ""
             : fmt::format(", \"partial_rotary_factor\": {}",
                           number(static_cast<double>(s.rotary.rotated > 0 ? s.rotary.rotated : s.rotary.head_dim) /
                                  static_cast<double>(s.rotary.head_dim)));
  text += fmt::format("    \"rope_parameters\": {{\"rope_theta\": {}, \"rope_type\": \"default\"{}}},\n",
                      number(s.rotary.theta), share);
  text += fmt::format("    \"num_attention_heads\": {}, \"num_key_value_heads\": {},\n", s.attention.heads,
                      s.attention.kv_heads);
  if (model.family == "deepseek_v2")
    text += fmt::format("    \"topk_method\": \"{}\",\n", route.groups > 1 ? "group_limited_greedy" : "greedy");
  const std::string tiny =
      "TINY = {\"vocab_size\": 250, \"hidden_size\": 64, \"intermediate_size\": 96, \"moe_intermediate_size\": 48,\n"
      "        \"num_attention_heads\": 4, \"n_group\": 1, \"topk_group\": 1, \"num_experts_per_tok\": 2,\n"
      "        \"bos_token_id\": None, \"eos_token_id\": None, \"pad_token_id\": None, \"n_routed_experts\": " +
      std::to_string(std::max<std::int64_t>(2, std::min<std::int64_t>(up.experts.count, 8)));
  if (latent) {
    text += fmt::format(
        "    \"q_lora_rank\": {}, \"kv_lora_rank\": {}, \"qk_nope_head_dim\": {}, \"qk_rope_head_dim\": {},\n"
        "    \"v_head_dim\": {},\n}}\n",
        q_rank > 0 ? std::to_string(q_rank) : "None", s.rotary.in - s.rotary.rotated, plain, s.attention.rotated,
        s.attention.v_head_dim);
    text += tiny + fmt::format(
                       ", \"num_key_value_heads\": 4,\n        {}\"kv_lora_rank\": 32, \"qk_nope_head_dim\": "
                       "16, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16}}\n\n",
                       q_rank > 0 ? "\"q_lora_rank\": 32, " : "");
  } else {
    text += fmt::format("    \"head_dim\": {}, \"use_qk_norm\": {},\n}}\n", s.attention.head_dim,
                        python(has_parameter(model, "q_norm.weight")));
    text += tiny + fmt::format(", \"num_key_value_heads\": {}, \"head_dim\": 16}}\n\n", tiny_kv_heads(s.attention));
  }
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

}  // namespace

std::string model_text(const ModelGraph& model, std::int64_t tensor) {
  const bool llama_like = !block_names(model).empty() && block_names(model).front() == "model.layers.0" &&
                          first_shape(model, OpKind::swiglu) && first_shape(model, OpKind::rotary) &&
                          has_parameter(model, "model.embed_tokens.weight") &&
                          has_parameter(model, "model.layers.0.mlp.down_proj.weight");
  if (model.family == "glm4_moe" || model.family.starts_with("deepseek_v")) return shared_experts_text(model);
  if (first_shape(model, OpKind::expert_linear)) return experts_text(model);
  if (llama_like) return llama_text(model, tensor);
  if (model.family == "gpt2") return gpt2_text(model);
  if (model.family == "mpt") return mpt_text(model);
  return fmt::format("MODEL_TYPE = {}\nCONFIG, TINY = {{}}, {{}}\n\n", quoted(model.family)) +
         functions("num_hidden_layers", "vocab_size") + kBringYourModel;
}

}  // namespace fsdp
