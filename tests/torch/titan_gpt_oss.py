"""A gpt-oss by the operators that torchtitan has since April 2026 (torchtitan/models/gpt_oss): for recordings, so that
memory is theirs. `models/implementations/torchtitan/gpt_oss.cpp` counts them.

FlexAttention is an operator that keeps what its compiled kernel keeps (record_flex.py), and values do not matter.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import titan_experts
from record_tape import Norm


@torch.library.custom_op("titan::flex", mutates_args=())
def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[batch, tokens, heads, channels]; the result and a number in fp32 per row and head."""
    return torch.zeros_like(q), q.new_zeros(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("titan::flex_backward", mutates_args=())
def flex_backward(gradient: torch.Tensor, of_lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                  out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


flex.register_fake(lambda q, k, v: (torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)))
flex_backward.register_fake(lambda gradient, of_lse, q, k, v, out, lse: tuple(map(torch.empty_like, (q, k, v))))
flex.register_autograd(lambda ctx, gradient, of_lse: flex_backward(gradient, of_lse, *ctx.saved_tensors),
                       setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output))


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary(xq, xk, cos, sin):
    xq_f, xk_f = xq.float(), xk.float()
    xq_out = (xq_f * cos) + (rotate_half(xq_f) * sin)
    xk_out = (xk_f * cos) + (rotate_half(xk_f) * sin)
    return xq_out.type_as(xq), xk_out.type_as(xk)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, heads, kv_heads, self.head_dim = c["hidden"], c["heads"], c["kv_heads"], c["head_dim"]
        self.wq = nn.Linear(width, heads * self.head_dim)
        self.wk = nn.Linear(width, kv_heads * self.head_dim)
        self.wv = nn.Linear(width, kv_heads * self.head_dim)
        self.wo = nn.Linear(heads * self.head_dim, width)
        self.sinks = nn.Parameter(torch.zeros(heads))

    def qkv(self, x):
        return (f(x).view(*x.shape[:2], -1, self.head_dim) for f in (self.wq, self.wk, self.wv))

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(x)
        q, k = rotary(q, k, cos, sin)
        output, lse = flex(q, k, v)
        sink_scale = torch.sigmoid(lse - self.sinks.view(1, 1, -1)).unsqueeze(-1)
        output = output * sink_scale.to(output.dtype)
        output = output.reshape(*x.shape[:2], -1).contiguous()
        output = self.wo(output)
        return output


def swiglu(x, alpha=1.702, limit=7.0):
    x_glu, x_linear = x[..., ::2], x[..., 1::2]
    x_glu = x_glu.clamp(min=None, max=limit)
    x_linear = x_linear.clamp(min=-limit, max=limit)
    out_glu = x_glu * torch.sigmoid(alpha * x_glu)
    return out_glu * (x_linear + 1)


class Experts(titan_experts.Experts):
    def __init__(self, count, width, ffn):
        nn.Module.__init__(self)
        self.w1 = self.mlp1_weight = nn.Parameter(torch.empty(count, 2 * ffn, width))
        self.mlp1_bias = nn.Parameter(torch.empty(count, 2 * ffn))
        self.mlp2_weight = nn.Parameter(torch.empty(count, width, ffn))
        self.mlp2_bias = nn.Parameter(torch.empty(count, width))

    def multiply(self, x, counts):
        offsets = torch.cumsum(counts, dim=0, dtype=torch.int32)
        tail = (x.shape[0] - offsets[-1]).unsqueeze(0).to(counts.dtype)
        counts_long = torch.cat([counts, tail]).long()
        h = torch._grouped_mm(x.bfloat16(), self.mlp1_weight.transpose(-2, -1).bfloat16(), offs=offsets)
        b1 = torch.cat([self.mlp1_bias, self.mlp1_bias.new_zeros(1, self.mlp1_bias.shape[-1])])
        b1 = b1.repeat_interleave(counts_long, dim=0, output_size=x.shape[0])
        h = h + b1.to(h.dtype)
        h = swiglu(h)
        h = torch._grouped_mm(h, self.mlp2_weight.transpose(-2, -1).bfloat16(), offs=offsets)
        b2 = torch.cat([self.mlp2_bias, self.mlp2_bias.new_zeros(1, self.mlp2_bias.shape[-1])])
        b2 = b2.repeat_interleave(counts_long, dim=0, output_size=x.shape[0])
        return h + b2.to(h.dtype)

    def dispatch(self, x, weights, chosen):
        rows, _, found = super().dispatch(x, weights, chosen)
        return rows, torch.histc(chosen.view(-1).float(), bins=len(self.w1), min=0, max=len(self.w1)), found


class Router(titan_experts.Router):
    def __init__(self, count, width, top_k):
        super().__init__(count, width, top_k, sigmoid=False, wide=True)
        self.gate = nn.Linear(width, count)
        self.expert_bias = torch.zeros(count)

    def forward(self, x, bias):
        """torch.autocast to fp32 casts the bias, too."""
        scores = F.softmax(F.linear(x.float(), self.gate.weight.float(), self.gate.bias.float()), dim=1)
        _, chosen = torch.topk(scores + bias, k=self.top_k, dim=-1, sorted=False)
        weights = scores.gather(dim=1, index=chosen)
        divisor = weights.sum(dim=-1, keepdim=True) + 1e-20
        weights = weights / divisor
        weights = weights * 1.0
        counts = torch.empty(scores.shape[1], device=x.device)
        return weights, chosen, counts


class Mixture(titan_experts.LaterMixture):
    experts_of = Experts

    def __init__(self, c):
        nn.Module.__init__(self)
        self.top_k, self.shared_experts = c["top_k"], None
        self.experts = self.experts_of(c["experts"], c["hidden"], c["inner"])
        self.router = Router(c["experts"], c["hidden"], c["top_k"])


class Block(nn.Module):
    def __init__(self, c, mixture=Mixture, norm=nn.RMSNorm):
        super().__init__()
        self.attention, self.moe = Attention(c), mixture(c)
        self.attention_norm, self.ffn_norm = norm(c["hidden"]), norm(c["hidden"])

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        x = x + self.moe(self.ffn_norm(x))
        return x


class Model(nn.Module):
    """Eager, with norms as a GPU has them; blocks: what each becomes (a checkpoint)."""

    def __init__(self, c, blocks):
        super().__init__()
        self.embed = nn.Embedding(c["vocab"], c["hidden"])
        self.layers = nn.ModuleList(blocks(Block(c, norm=Norm)) for _ in range(c["layers"]))
        self.norm, self.head = Norm(c["hidden"]), nn.Linear(c["hidden"], c["vocab"], bias=False)

    def forward(self, ids, cos, sin):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h, cos, sin)
        h = self.norm(h)
        return self.head(h)
