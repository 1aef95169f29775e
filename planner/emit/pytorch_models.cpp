// How the emitted PyTorch script comes by its model: one of these texts is @MODEL@'s end.
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

    def forward(self, ids):
        return self.lm_head(self.model(ids))


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

}  // namespace fsdp
