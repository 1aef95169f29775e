#!/usr/bin/env python3
"""Records what a gpt-oss by torchtitan's operators of April 2026 holds (titan_gpt_oss.py).

Eager, a whole model with its loss, nothing recomputed, or every block: the most in forward, what is alive behind it,
the most in backward, and at the end, with gradients, without parameters and the batch. Compiled, a block: the bytes
that autograd's node of it saves, parameters, what came in, angles and counts left out. FlexAttention is replaced.

    python tests/torch/record_titan_gpt_oss.py            compares with tests/torch/golden/titan_gpt_oss.json
    python tests/torch/record_titan_gpt_oss.py --write    records it again
"""
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import golden_file
import titan_gpt_oss
from memory_log import MemoryLog
from record_compiled_experts import add_rows

GOLDEN = pathlib.Path(__file__).parent / "golden" / "titan_gpt_oss.json"


class Experts(titan_gpt_oss.Experts):
    """scatter_add is an operator of its own there, which keeps its index alone."""

    def combine(self, rows, found, x):
        rows = (rows.to(torch.float32) * found[1].reshape(-1, 1)).to(rows.dtype)
        return add_rows(torch.zeros_like(x), found[0].reshape(-1, 1).expand(-1, x.shape[-1]), rows)


class Mixture(titan_gpt_oss.Mixture):
    experts_of = Experts


def angles(c):
    return (torch.zeros(1, c["seq_len"], 1, c["head_dim"]) for _ in range(2))


def record(c):
    blocks = checkpoint_wrapper if c["recomputed"] else lambda block: block
    torch.manual_seed(0)
    net = titan_gpt_oss.Model(c, blocks).to(torch.bfloat16)
    for p in net.parameters():
        nn.init.normal_(p, std=0.02)
    ids = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
    cos, sin = angles(c)
    log = MemoryLog()
    for t in [*net.parameters(), ids, cos, sin]:
        log.leave_out(t)
    with log:
        logits = net(ids, cos, sin)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
        del logits
        found = dict(forward_peak=log.peak, saved=log.total)
        log.peak = 0
        loss.backward()
    return {"config": c, **found, "backward_peak": log.peak, "end": log.total}


def compiled(c):
    torch._dynamo.reset()
    block = titan_gpt_oss.Block(c, Mixture).to(torch.bfloat16)
    for p in block.parameters():
        nn.init.normal_(p, std=0.02)
    cos, sin = angles(c)
    x = torch.randn(c["sequences"], c["seq_len"], c["hidden"], dtype=torch.bfloat16, requires_grad=True)
    known = {t.untyped_storage().data_ptr() for t in [*block.parameters(), cos, sin, x]}
    saved = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in known:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = torch.compile(block, fullgraph=True)(x, cos, sin)
    sizes = sorted(t.untyped_storage().nbytes() for t in saved.values())
    if "--show" in sys.argv:
        for t in saved.values():
            print(tuple(t.shape), t.dtype, t.untyped_storage().nbytes())
    out.sum().backward()
    return {"config": dict(c, name="a compiled block"), "saved": sum(s for s in sizes if s > 1024)}


def main():
    base = dict(hidden=256, inner=320, heads=8, kv_heads=2, head_dim=32, experts=8, top_k=2, vocab=64, layers=3,
                sequences=2, seq_len=512)
    changes = {"blocks": {}, "four choices, one sequence": {"top_k": 4, "sequences": 1, "inner": 256},
               "logits": {"vocab": 4096}}
    cases = [record(dict(base, name=name + ", recomputed" * again, recomputed=again, **change))
             for name, change in changes.items() for again in (False, True)]
    cases.append(compiled(dict(base, layers=1)))
    return golden_file.finish(GOLDEN, golden_file.text_of(
        {"torch": torch.__version__.split("+")[0], "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
