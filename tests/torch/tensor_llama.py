"""A small decoder of Llama's form with transformers' names, parallelized as torchtitan does: DTensor over the mesh's
`tensor` dimension, fully_shard on top. For recorders."""
import torch
import torch.nn as nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               parallelize_module)


def rotated(x, freqs):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs).flatten(3).type_as(x)


def repeated(x, heads):
    n = heads // x.shape[2]
    return x if n == 1 else x[:, :, :, None, :].expand(-1, -1, -1, n, -1).reshape(*x.shape[:2], heads, x.shape[3])


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.head_dim = c.get("head_dim", c["hidden"] // c["heads"])
        bias, wide, kv = c.get("qkv_bias", False), c["heads"] * self.head_dim, c["kv_heads"] * self.head_dim
        self.q_proj = nn.Linear(c["hidden"], wide, bias=bias)
        self.k_proj = nn.Linear(c["hidden"], kv, bias=bias)
        self.v_proj = nn.Linear(c["hidden"], kv, bias=bias)
        self.o_proj = nn.Linear(wide, c["hidden"], bias=False)
        if c.get("qk_norm"):
            self.q_norm = nn.RMSNorm(self.head_dim)
            self.k_norm = nn.RMSNorm(self.head_dim)

    def forward(self, x, freqs):
        return self.o_proj(self.mixed(x, freqs))

    def mixed(self, x, freqs):
        shape = (x.shape[0], x.shape[1], -1, self.head_dim)
        q = self.q_proj(x).view(shape)
        if hasattr(self, "q_norm"):
            q = self.q_norm(q)
        k = self.k_proj(x).view(shape)
        if hasattr(self, "k_norm"):
            k = self.k_norm(k)
        v = self.v_proj(x).view(shape)
        q, k, v = rotated(q, freqs), repeated(rotated(k, freqs), q.shape[2]), repeated(v, q.shape[2])
        mixed = nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                           is_causal=True)
        return mixed.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden"], c["inner"], bias=False)
        self.up_proj = nn.Linear(c["hidden"], c["inner"], bias=False)
        self.down_proj = nn.Linear(c["inner"], c["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = Mlp(c)
        self.input_layernorm = nn.RMSNorm(c["hidden"])
        self.post_attention_layernorm = nn.RMSNorm(c["hidden"])

    def forward(self, x, freqs):
        x = x + self.self_attn(self.input_layernorm(x), freqs)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab"], c["hidden"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = nn.RMSNorm(c["hidden"])

    def forward(self, ids, freqs):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, freqs)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = Trunk(c)
        self.lm_head = nn.Linear(c["hidden"], c["vocab"], bias=False)

    def forward(self, ids, freqs):
        return self.lm_head(self.model(ids, freqs))


def parallelize(model, mesh, loss_parallel=True):
    """torchtitan's tensor plan for Llama 3 and Qwen 3."""
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1) if loss_parallel else Replicate(),
                                   use_local_output=not loss_parallel)})
    block = {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
    for layer in model.model.layers:
        plan = dict(block)
        if hasattr(layer.self_attn, "q_norm"):
            for norm in ("q_norm", "k_norm"):
                plan[f"self_attn.{norm}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
        parallelize_module(layer, mesh, plan)


def loss_of(logits, ids):
    """As torchtitan computes it: in fp32 over all tokens; of split logits inside of loss_parallel()."""
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten(0, 1))
