"""Records what MosaicGPT of mosaicml/examples holds under autocast: forward and backward on one device, then Composer's
two training metrics. tests/planner/torch/mosaic_test.cpp replays the tape of `foundry-2023-01` and compares.

    python tests/torch/record_mosaic.py           compares with tests/torch/golden/mosaic.json; exit 1 if it differs
    python tests/torch/record_mosaic.py --write   writes it        (needs torch only)

Tensors are fake and on the CPU. Kernels that are not there are stood in for by functions that save and return what they
do: FlashAttention 1, and what gathers rows out of the padding and puts them back. F.cross_entropy is another thing
under autocast on a GPU than on a CPU: it is written out here as a GPU has it, which `cross_entropy_on_a_gpu` records by
fake tensors of a GPU.
"""
import argparse
import json
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from record_tape import Memory

GOLDEN = pathlib.Path(__file__).parent / "golden" / "mosaic.json"


class Gather(torch.autograd.Function):
    """Rows by their indices; their gradients are scattered into zeros."""

    @staticmethod
    def forward(ctx, x, indices):
        ctx.save_for_backward(indices)
        ctx.rows = x.shape[0]
        return torch.gather(x, 0, indices[:, None].expand(-1, x.shape[1]))

    @staticmethod
    def backward(ctx, gradient):
        indices, = ctx.saved_tensors
        out = torch.zeros(ctx.rows, gradient.shape[1], dtype=gradient.dtype)
        return out.scatter_(0, indices[:, None].expand(-1, gradient.shape[1]), gradient), None


class PutBack(torch.autograd.Function):
    """Rows into a tensor of zeros; their gradients are looked up there."""

    @staticmethod
    def forward(ctx, x, indices, rows):
        ctx.save_for_backward(indices)
        out = torch.zeros(rows, x.shape[1], dtype=x.dtype)
        out[indices] = x
        return out

    @staticmethod
    def backward(ctx, gradient):
        indices, = ctx.saved_tensors
        return gradient[indices], None, None


class FlashAttention(torch.autograd.Function):
    """Of packed q, k and v; over more keys than a block both directions sum in fp32."""

    @staticmethod
    def forward(ctx, qkv, heads):
        rows, width = qkv.shape[0], qkv.shape[1] // 3
        out, sums = qkv.new_empty(rows, width), qkv.new_empty(rows, width, dtype=torch.float32)
        ctx.save_for_backward(qkv, out, qkv.new_empty(heads, rows, dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx, gradient):
        qkv, out, log_sums = ctx.saved_tensors
        dots, sums = torch.empty_like(log_sums), torch.empty_like(out, dtype=torch.float32)
        return torch.empty_like(qkv), None


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        w = c["width"]
        self.c = c
        self.ln_1, self.ln_2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.out = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def attention(self, x, indices):
        b, t, w = x.shape
        qkv = self.qkv(x)
        rows = Gather.apply(qkv.view(b * t, 3 * w), indices)
        mixed = PutBack.apply(FlashAttention.apply(rows, self.c["heads"]), indices, b * t)
        return self.out(mixed.view(b, t, w))

    def feed_forward(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, x, indices):
        a = self.ln_1(x)
        b = self.attention(a, indices)
        x = x + b
        m = self.ln_2(x)
        n = self.feed_forward(m)
        return x + n


class MosaicGpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.wte, self.wpe = nn.Embedding(c["vocab"], c["width"]), nn.Embedding(c["seq_len"], c["width"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.ln_f = nn.LayerNorm(c["width"])

    def forward(self, ids, indices, again):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]).unsqueeze(0))
        for block in self.blocks:
            x = checkpoint(block, x, indices, use_reentrant=True) if again else block(x, indices)
        return F.linear(self.ln_f(x), self.wte.weight)


def cross_entropy(logits, labels, **more):
    """As cross_entropy_on_a_gpu records it."""
    rows = F.log_softmax(logits, 1, dtype=logits.dtype)
    return F.nll_loss(rows.float(), labels, **more)


def record(c, again):
    with FakeTensorMode():
        model = MosaicGpt(c)
        ids = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
        indices = torch.zeros(ids.numel(), dtype=torch.int64)
        memory = Memory()
        for tensor in [*model.parameters(), ids, indices]:
            memory.ignore(tensor)
        with memory:
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
                logits = model(ids, indices, again)
            loss = cross_entropy(logits.view(-1, c["vocab"]), ids.view(-1))
            forward_peak, saved = memory.peak, memory.live
            memory.phase, memory.peak = "backward", 0
            loss.backward()
            backward_peak, end = memory.peak, memory.live
            memory.phase, memory.peak = "forward", memory.live
            with torch.no_grad():
                for _ in range(2):
                    cross_entropy(logits.view(-1, c["vocab"]), ids.view(-1), reduction="sum")
        return {"shape": c, "recomputed": again, "forward_peak": forward_peak, "saved": saved,
                "backward_peak": backward_peak, "end": end, "metrics_peak": memory.peak}


class Operators(TorchDispatchMode):
    """Names of the operators that run, and the types that they make."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, tuple) else out
        if isinstance(first, torch.Tensor) and func is not torch.ops.aten.detach.default:
            self.seen.append(f"{func} {first.dtype}")
        return out


def operators(device, loss):
    with FakeTensorMode(), torch.no_grad():
        logits = torch.empty(8, 16, dtype=torch.bfloat16, device=device)
        labels = torch.zeros(8, dtype=torch.int64, device=device)
        with Operators() as operators:
            loss(logits, labels)
    return operators.seen


def cross_entropy_on_a_gpu():
    """What F.cross_entropy runs of logits in bf16 under autocast: only the second operator is in fp32."""
    enabled = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        return operators("cuda", F.cross_entropy)
    finally:
        torch.set_autocast_enabled("cuda", enabled)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    small = dict(layers=3, width=256, heads=4, sequences=2)
    shapes = [dict(small, vocab=1024, seq_len=256), dict(small, vocab=64, seq_len=1024)]
    on_a_gpu = cross_entropy_on_a_gpu()
    if on_a_gpu != operators("cpu", cross_entropy):
        sys.exit(f"F.cross_entropy under autocast runs {on_a_gpu}, not what is written out here")
    found = {"cross_entropy_on_a_gpu": on_a_gpu, "cases": [record(c, again) for c in shapes for again in (False, True)]}
    text = (f'{{\n  "recorded_with": "torch {torch.__version__.split("+")[0]}",\n  '
            f'"cross_entropy_on_a_gpu": {json.dumps(on_a_gpu)},\n  "cases": [\n    '
            + ",\n    ".join(map(json.dumps, found["cases"])) + "\n  ]\n}\n")
    if args.write:
        GOLDEN.write_text(text)
        return
    golden = json.loads(GOLDEN.read_text())
    changed = [f"{key}: {golden.get(key)} -> {value}" for key, value in found.items() if golden.get(key) != value]
    print("\n".join(changed) or "nothing changed")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
