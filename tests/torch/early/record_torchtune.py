#!/usr/bin/env python3
"""Records what torchtune's Llama holds for backward, and around its loss, as its recipes of November 2024 train it on
packed sequences (pytorch/torchtune commit 1814feb17; recipes/full_finetune_single_device.py, _loss_step).

Parameters and activations in bf16; positions of each token are given, so that angles are looked up. The flash kernel
makes its result in the order in which q lies, as FlexAttention's does. Norms are those of that commit.

Bytes beside parameters, their gradients and the tables of angles: after forward, and at most in forward and in
backward. `compiled`: what the forward graph of one layer hands to its backward graph, of tensors that are no inputs of
the layer, as AOTAutograd's partitioner decides.

Usage, in an environment with torch==2.4.1, and torchtune==0.5.0 without what it depends on (its layers, whose
attention is that of the commit, need none of it):

    python tests/torch/early/record_torchtune.py            compares with tests/torch/golden/torchtune.json
    python tests/torch/early/record_torchtune.py --write    records it again
"""
import importlib.util
import pathlib
import sys
import types

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import torch
import torch.nn.functional as F

import golden_file
from record_hf_2023 import Flash, Log
from record_litgpt import bytes_between_graphs

GOLDEN = TESTS / "golden" / "torchtune.json"


def torchtune():
    """Its layers, without the __init__.py of its packages, which ask for torchao and more."""
    root = pathlib.Path(importlib.util.find_spec("torchtune").origin).parent
    for name in ("torchtune", "torchtune.modules", "torchtune.utils"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    guard = types.ModuleType("torchtune.utils._import_guard")
    guard._SUPPORTS_FLEX_ATTENTION = False
    sys.modules[guard.__name__] = guard
    from torchtune.modules.attention import MultiHeadAttention
    sys.modules["torchtune.modules"].MultiHeadAttention = MultiHeadAttention
    from torchtune.modules import feed_forward, position_embeddings, rms_norm, transformer
    rms_norm.RMSNorm.forward = norm
    return types.SimpleNamespace(attention=MultiHeadAttention, norm=rms_norm.RMSNorm, mlp=feed_forward.FeedForward,
                                 angles=position_embeddings.RotaryPositionalEmbeddings,
                                 layer=transformer.TransformerSelfAttentionLayer,
                                 decoder=transformer.TransformerDecoder)


def norm(self, x):
    x_fp32 = x.float()
    x_normed = (x_fp32 * torch.rsqrt(x_fp32.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)
    return x_normed * self.scale


def layer_of(c, tune, angles, call):
    hidden, width = c["hidden"], c["hidden"] // c["heads"]
    project = lambda rows, columns=hidden: torch.nn.Linear(columns, rows, bias=False)
    attention = tune.attention(
        embed_dim=hidden, num_heads=c["heads"], num_kv_heads=c["kv_heads"], head_dim=width, q_proj=project(hidden),
        k_proj=project(width * c["kv_heads"]), v_proj=project(width * c["kv_heads"]), output_proj=project(hidden),
        pos_embeddings=angles, max_seq_len=c["seq_len"])
    attention._attention_call = call
    mlp = tune.mlp(gate_proj=project(c["inner"]), down_proj=project(hidden, c["inner"]), up_proj=project(c["inner"]))
    return tune.layer(attn=attention, mlp=mlp, sa_norm=tune.norm(hidden), mlp_norm=tune.norm(hidden))


def positions_of(c):
    return torch.arange(c["seq_len"]).repeat(c["sequences"], 1)


def record(c, tune):
    angles = tune.angles(c["hidden"] // c["heads"], max_seq_len=c["seq_len"])
    call = lambda q, k, v, **_: Flash.apply(q, k, v)
    layers = torch.nn.ModuleList([layer_of(c, tune, angles, call) for _ in range(c["layers"])])
    net = tune.decoder(tok_embeddings=torch.nn.Embedding(c["vocab"], c["hidden"]), layers=layers,
                       max_seq_len=c["seq_len"], num_heads=c["heads"], head_dim=c["hidden"] // c["heads"],
                       norm=tune.norm(c["hidden"]), output=torch.nn.Linear(c["hidden"], c["vocab"], bias=False))
    net = net.to(torch.bfloat16).train()
    angles.cache = angles.cache.float()                  # made in fp32 after the model has its type
    for p in net.parameters():
        p.grad = torch.empty_like(p)                     # gradients are added to these
    ids, positions = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64), positions_of(c)
    log = Log([*net.parameters(), *(p.grad for p in net.parameters()), *net.buffers(), ids, positions])
    with log:
        logits = net(ids, input_pos=positions)
        logits = logits.reshape(-1, logits.size(-1))
        loss = F.cross_entropy(logits, ids.reshape(-1), ignore_index=-100)
        del logits
        torch.empty(1)
        found = dict(forward_peak=log.peak, after_forward=log.total)
        log.peak = 0
        loss.backward()
    return {"config": c, **found, "backward_peak": log.peak}


def record_compiled(c, tune):
    import memory_log                                    # PyTorch's own operator, which the tracer knows
    call = lambda q, k, v, **_: memory_log.attention(q, k, v, is_causal=True)
    angles = tune.angles(c["hidden"] // c["heads"], max_seq_len=c["seq_len"])
    layer = layer_of(c, tune, angles, call).to(torch.bfloat16)
    angles.cache = angles.cache.float()
    x = torch.randn(c["sequences"], c["seq_len"], c["hidden"], dtype=torch.bfloat16, requires_grad=True)
    return {"config": c, "saved": bytes_between_graphs(layer, x, input_pos=positions_of(c))}


def main():
    tune = torchtune()
    base = dict(hidden=256, inner=688, heads=8, layers=3, seq_len=256)
    kinds = (("grouped heads", 2), ("a key for each head", 8))
    cases = [record(dict(base, name=f"{heads}, vocabulary of {vocab}", kv_heads=kv_heads, vocab=vocab,
                         sequences=sequences), tune)
             for heads, kv_heads in kinds for vocab, sequences in ((320, 2), (8000, 1))]
    cases += [record_compiled(dict(base, name=f"compiled, {heads}", kv_heads=kv_heads, vocab=320, sequences=2), tune)
              for heads, kv_heads in kinds]
    return golden_file.finish(GOLDEN, golden_file.text_of({"torch": torch.__version__.split("+")[0],
                                                           "torchtune": "0.5.0", "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
