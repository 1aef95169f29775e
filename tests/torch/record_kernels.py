"""Records tests/golden/kernels.json: every op of models/graph.h, forward and backward, as PyTorch computes them in
fp64.

    python tests/torch/record_kernels.py         (rewrites the file)

Sizes are odd on purpose. Each case holds the op's shape (fields of OpShape that differ from their defaults), the
micro-batch, its inputs, parameters and the gradient of its output, and what PyTorch returned: the output and the
gradient of every input and parameter. Numbers are fp64 with all digits. Formulas are PyTorch's own functions wherever
it has one.
"""

import json
import math
import pathlib

import torch
import torch.nn.functional as F

torch.manual_seed(20261120)
torch.set_default_dtype(torch.float64)


def randn(*shape, scale=1.0):
    return torch.randn(*shape) * scale


def flat(t):
    return t.detach().reshape(-1).tolist()


def case(name, kind, shape, sequences, seq_len, inputs, params, f, weight=None):
    """inputs and params: tensors; f(*inputs, *params) -> output. `weight`: token_weight of cross_entropy."""
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs + params]
    y = f(*leaves)
    dy = torch.ones_like(y) if weight is not None else randn(*y.shape)
    y.backward(dy)
    grads = [[] if t.grad is None else flat(t.grad) for t in leaves]
    return {
        "name": name, "kind": kind, "shape": shape, "sequences": sequences, "seq_len": seq_len,
        "token_weight": weight or 0.0,
        "inputs": [flat(t) for t in inputs], "ids": [not t.is_floating_point() for t in inputs],
        "params": [flat(t) for t in params],
        "output": flat(y), "grad_output": flat(dy), "grad_inputs": grads[: len(inputs)],
        "grad_params": grads[len(inputs):],
    }


def rotary(x, sequences, seq_len, heads, dim, theta):
    """Hugging Face's apply_rotary_pos_emb with rotate_half, in fp64."""
    x = x.view(sequences, seq_len, heads, dim)
    inv_freq = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    freqs = torch.outer(torch.arange(seq_len, dtype=torch.float64), inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)[None, :, None, :]
    x1, x2 = x[..., : dim // 2], x[..., dim // 2:]
    return (x * emb.cos() + torch.cat((-x2, x1), dim=-1) * emb.sin()).reshape(sequences * seq_len, heads * dim)


def alibi_slopes(heads):
    """gen_slopes of MPT (llm-foundry), alibi_bias_max 8."""
    n = 2 ** math.ceil(math.log2(heads))
    slopes = 1.0 / torch.pow(2, torch.arange(1, n + 1, dtype=torch.float64) * (8 / n))
    return slopes if n == heads else torch.cat([slopes[1::2], slopes[::2]])[:heads]


def attention(q, k, v, sequences, seq_len, heads, kv_heads, dim, causal=True, window=0, alibi=False):
    split = lambda x, h: x.view(sequences, seq_len, h, dim).transpose(1, 2)
    q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
    k, v = k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)[None, :]
    seen = torch.ones(seq_len, seq_len, dtype=torch.bool)
    if causal:
        seen &= j <= i
    if window:
        seen &= i - j < window
    mask = torch.zeros(seq_len, seq_len).masked_fill(~seen, -torch.inf)
    if alibi:
        mask = mask - alibi_slopes(heads).view(heads, 1, 1) * (i - j).abs()
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(sequences, heads, seq_len, seq_len))
    return y.transpose(1, 2).reshape(sequences * seq_len, heads * dim)


def attention_case(name, sequences, seq_len, heads, kv_heads, dim, packed=False, **options):
    tokens = sequences * seq_len
    widths = [heads * dim, kv_heads * dim, kv_heads * dim]
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "packed": packed, **options}
    if packed:
        inputs = [randn(tokens, sum(widths))]
        f = lambda qkv: attention(*qkv.split(widths, -1), sequences, seq_len, heads, kv_heads, dim, **options)
    else:
        inputs = [randn(tokens, w) for w in widths]
        f = lambda q, k, v: attention(q, k, v, sequences, seq_len, heads, kv_heads, dim, **options)
    return case(name, "attention", shape, sequences, seq_len, inputs, [], f)


def rms_norm(x, w, groups, eps):
    width = w.numel()
    return F.rms_norm(x.view(-1, groups, width), (width,), w, eps).reshape(x.shape)


def cases():
    s, n = 3, 5
    t = s * n
    ids = torch.randint(0, 7, (t,))
    yield case("embedding, repeated ids", "embedding", {"vocab": 11, "width": 3}, s, n, [ids], [randn(11, 3)],
               lambda i, w: F.embedding(i, w))
    yield case("position embedding, longer than the sequence", "position_embedding", {"positions": 7, "width": 3}, s, n,
               [randn(t, 3)],
               [randn(7, 3)], lambda x, w: x + w[:n].repeat(s, 1))
    yield case("rms norm", "rms_norm", {"width": 7, "eps": 1e-3}, s, n, [randn(t, 7)], [randn(7)],
               lambda x, w: rms_norm(x, w, 1, 1e-3))
    yield case("rms norm, 3 groups", "rms_norm", {"width": 5, "groups": 3, "eps": 1e-6}, 1, n, [randn(n, 15)],
               [randn(5)],
               lambda x, w: rms_norm(x, w, 3, 1e-6))
    yield case("layer norm", "layer_norm", {"width": 7, "eps": 1e-3}, s, n, [randn(t, 7) + 2], [randn(7), randn(7)],
               lambda x, w, b: F.layer_norm(x, (7,), w, b, 1e-3))
    yield case("layer norm without bias", "layer_norm", {"width": 9, "eps": 1e-5}, 1, n, [randn(n, 9) + 2], [randn(9)],
               lambda x, w: F.layer_norm(x, (9,), w, None, 1e-5))
    yield case("linear", "linear", {"in": 7, "out": 5}, s, n, [randn(t, 7)], [randn(5, 7)], F.linear)
    yield case("linear with bias", "linear", {"in": 3, "out": 9}, s, n, [randn(t, 3)], [randn(9, 3), randn(9)],
               F.linear)
    yield case("linear as Conv1D", "linear", {"in": 5, "out": 11, "transposed": True}, s, n, [randn(t, 5)],
               [randn(5, 11), randn(11)],
               lambda x, w, b: torch.addmm(b, x, w))
    yield case("rotary", "rotary", {"heads": 3, "head_dim": 6, "theta": 500.0}, 2, n, [randn(2 * n, 18)], [],
               lambda x: rotary(x, 2, n, 3, 6, 500.0))
    yield attention_case("attention, causal", 2, 7, 3, 3, 5)
    yield attention_case("attention, grouped", 2, 5, 6, 2, 3)
    yield attention_case("attention, not causal", 1, 5, 2, 1, 3, causal=False)
    yield attention_case("attention, window 3", 1, 9, 2, 2, 3, window=3)
    yield attention_case("attention, alibi, 3 heads", 2, 5, 3, 3, 4, alibi=True)
    yield attention_case("attention, alibi, 8 heads", 1, 5, 8, 8, 1, alibi=True)
    yield attention_case("attention, packed and grouped", 2, 5, 4, 2, 3, packed=True)
    yield attention_case("attention, packed, alibi", 1, 5, 5, 5, 2, packed=True, alibi=True)
    yield case("swiglu", "swiglu", {"width": 7}, 1, n, [randn(n, 7, scale=4), randn(n, 7)], [],
               lambda g, u: F.silu(g) * u)
    yield case("gelu, erf", "gelu", {"width": 7}, 1, n, [randn(n, 7, scale=4)], [], F.gelu)
    yield case("gelu, tanh", "gelu", {"width": 7, "tanh": True}, 1, n, [randn(n, 7, scale=4)], [],
               lambda x: F.gelu(x, approximate="tanh"))
    yield case("add", "add", {"width": 7}, 1, n, [randn(n, 7), randn(n, 7)], [], torch.add)
    targets = torch.randint(0, 13, (n,))
    weight = 1 / 37
    yield case("cross entropy", "cross_entropy", {"vocab": 13}, 1, n, [randn(n, 13, scale=3), targets], [],
               lambda x, y: F.cross_entropy(x, y, reduction="sum") * weight, weight=weight)


def adamw_case():
    """Three steps of torch.optim.AdamW on one vector, with its states after the last."""
    options = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    p = randn(7).requires_grad_()
    begin, gradients = flat(p), [randn(7) for _ in range(3)]
    gradients[1][2] = 0.0
    optimizer = torch.optim.AdamW([p], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    state = optimizer.state[p]
    return {**options, "begin": begin, "gradients": [flat(g) for g in gradients], "end": flat(p),
            "mean": flat(state["exp_avg"]),
            "square": flat(state["exp_avg_sq"])}


def sgd_case():
    p = randn(5).requires_grad_()
    begin, gradient = flat(p), randn(5)
    p.grad = gradient.clone()
    torch.optim.SGD([p], lr=0.05, weight_decay=0.3).step()
    return {"lr": 0.05, "weight_decay": 0.3, "begin": begin, "gradient": flat(gradient), "end": flat(p)}


def momentum_case():
    """Four steps of SGD with momentum: the first buffer is a copy of the gradient."""
    p = randn(7).requires_grad_()
    begin, gradients = flat(p), [randn(7) for _ in range(4)]
    gradients[1][2] = 0.0
    optimizer = torch.optim.SGD([p], lr=0.05, momentum=0.9, weight_decay=0.3)
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    return {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.3, "begin": begin, "gradients": [flat(g) for g in gradients],
            "end": flat(p), "buffer": flat(optimizer.state[p]["momentum_buffer"])}


def chunk_cat_case():
    """The reduce-scatter input of torch.distributed.fsdp: torch._chunk_cat of bf16 gradients into fp32, W = 4. Values
    are small integers, exact in bf16; only a checksum of the large parameter is kept."""
    shapes = [(5, 3), (7,), (2049, 2, 2)]
    fill = lambda shape: (torch.arange(math.prod(shape)) % 251 - 125).to(torch.bfloat16).view(shape)
    out = torch._chunk_cat([fill(s) for s in shapes], 0, 4)
    out = out.to(torch.float32)
    index = torch.arange(out.numel(), dtype=torch.float64) % 1009
    return {"world": 4, "shapes": shapes, "columns": out.shape[1], "head_of_each_row": [flat(r[:12]) for r in out],
            "sum": float(out.double().sum()), "weighted_sum": float((out.double().reshape(-1) * index).sum())}


def main():
    document = {
        "_about": "Ops of models/graph.h forward and backward as PyTorch " + torch.__version__.split("+")[0]
        + " computes them in fp64; made by "
                  "tests/torch/record_kernels.py. Tensors are row-major lists; ids are integers stored as numbers; an "
                  "empty gradient: none.",
        "cases": list(cases()), "adamw": adamw_case(), "sgd": sgd_case(), "chunk_cat": chunk_cat_case(),
        "sgd_momentum": momentum_case(),
    }
    with open(pathlib.Path(__file__).parent.parent / "golden" / "kernels.json", "w") as f:
        json.dump(document, f, separators=(",", ":"))
        f.write("\n")


main()
