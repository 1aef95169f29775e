"""Latent attention (DeepSeek) by the operators that torchtitan has, and FlexAttention as its compiled code holds
memory: for recordings. `models/implementations/torchtitan/attention.cpp` counts them.

Queries and what all heads' keys share are turned as complex numbers of fp32 copies, each by a call of its own; queries
and keys are joined anew in the order of tokens. Attention is FlexAttention, whatever other models have.
"""

import torch
import torch.nn as nn


class Flex(torch.autograd.Function):
    """What record_flex.py finds PyTorch to keep of a compiled flex_attention, and what Inductor's code for a GPU makes,
    as read (torch/_inductor/kernel/flex/flex_attention.py), not recorded: forward the result in the order of q's
    dimensions and the log-sum-exp; backward a number per row and head, and three gradients."""

    @staticmethod
    def forward(ctx, q, k, v):
        out = dense(q, v.shape[-1])
        lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, out, lse = ctx.saved_tensors
        delta = torch.empty_like(lse)
        gradients = dense(q, q.shape[-1]), dense(k, k.shape[-1]), dense(v, v.shape[-1])
        del delta
        return gradients


def dense(like, width):
    """[sequences, heads, tokens, width], stored in the order of `like`'s dimensions."""
    sequences, heads, tokens, _ = like.shape
    by_token = like.stride(2) > like.stride(1)
    return (like.new_empty(sequences, tokens, heads, width).transpose(1, 2) if by_token
            else like.new_empty(sequences, heads, tokens, width))


def flex(q, k, v):
    """Of [sequences, tokens, heads, channels], as torchtitan's module takes and returns them."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return Flex.apply(q, k, v).transpose(1, 2)


def turned(x, angles):
    dtype = x.dtype
    x = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    y = torch.view_as_real(x * angles.view(1, x.shape[1], 1, x.shape[-1])).flatten(3)
    return y.to(dtype)


def rotary(q, latent, angles, heads, rotated):
    """Of one operator: queries, and the end of a latent's rows."""
    q = q.view(q.shape[0], q.shape[1], heads, -1)
    plain, part = torch.split(q, [q.shape[-1] - rotated, rotated], dim=-1)
    part = turned(part, angles)
    q = torch.cat([plain, part], dim=-1)
    return q, turned(torch.split(latent, [latent.shape[-1] - rotated, rotated], dim=-1)[1].unsqueeze(2), angles)


def attention(q, kv, shared, v_head_dim):
    """Of one operator: queries and keys head by head behind the tokens, keys joined with what all heads share."""
    kv = kv.view(*q.shape[:3], -1)
    plain, v = torch.split(kv, [kv.shape[-1] - v_head_dim, v_head_dim], dim=-1)
    k = torch.cat([plain, shared.expand(-1, -1, q.shape[2], -1)], dim=-1)
    return flex(q, k, v).contiguous()


class LatentAttention(nn.Module):
    """In place of transformers' own, with its weights."""

    def __init__(self, own, config):
        super().__init__()
        for name, module in own.named_children():
            setattr(self, name, module)
        self.heads, self.rotated = config["num_attention_heads"], config["qk_rope_head_dim"]
        self.latent, self.v_head_dim = config["kv_lora_rank"], config["v_head_dim"]
        self.register_buffer("angles", torch.empty(1, self.rotated // 2, dtype=torch.complex64))

    def forward(self, hidden_states, **_):
        x = hidden_states
        sequences, tokens, _ = x.shape
        angles = self.angles.expand(tokens, -1)
        if hasattr(self, "q_proj"):
            q = self.q_proj(x)
        else:
            q = self.q_a_proj(x)
            q = self.q_b_proj(self.q_a_layernorm(q))
        q = q.view(sequences, tokens, -1, q.shape[-1] // self.heads)
        q_nope, q_pe = torch.split(q, [q.shape[-1] - self.rotated, self.rotated], dim=-1)
        q_pe = turned(q_pe, angles)
        q = torch.cat([q_nope, q_pe], dim=-1)
        kv = self.kv_a_proj_with_mqa(x)
        kv, k_pe = torch.split(kv, [self.latent, self.rotated], dim=-1)
        k_pe = turned(k_pe.unsqueeze(2), angles)
        kv = self.kv_b_proj(self.kv_a_layernorm(kv))
        kv = kv.view(sequences, tokens, self.heads, -1)
        k_nope, v = torch.split(kv, [kv.shape[-1] - self.v_head_dim, self.v_head_dim], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, -1, self.heads, -1)], dim=-1)
        output = flex(q, k, v).contiguous()
        output = output.view(sequences, tokens, -1)
        return self.o_proj(output), None


def put_into(net, config):
    """Replaces the latent attention of a DeepSeek of transformers."""
    for layer in net.model.layers:
        layer.self_attn = LatentAttention(layer.self_attn, config)
