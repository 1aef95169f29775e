"""Records when eager PyTorch holds which bytes: one forward and backward of small models on one device, nothing
sharded. Bytes alive after each op's forward and before each op's backward, the peaks, and what activation checkpointing
computes again. tests/planner/tape/tape_test.cpp replays the tape of the same model and compares.

    python tests/torch/record_tape.py             compares with tests/torch/golden/tape.json, prints what changed; exit
      1
    python tests/torch/record_tape.py --write     writes it            (needs torch only)

Tensors are fake and on the CPU; operators that a GPU would run (fused RMSNorm, flash attention) are called by name, so
that what autograd saves is what it saves on a GPU. What a kernel allocates inside itself is not visible. A storage
counts from the operator that returns it until the last reference to it is gone. Parameters and the batch exist before
and do not count; parameters' gradients do.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import weakref
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from autograd_engine import as_engine

GOLDEN = pathlib.Path(__file__).parent / "golden" / "tape.json"
aten = torch.ops.aten


class Memory(TorchDispatchMode):
    """Bytes of living storages. `mark(label, x)` notes them now and again when the gradient of x is known."""
    inherited = False   # of as_engine

    def __init__(self):
        super().__init__()
        self.seen, self.live, self.peak = set(), 0, 0
        self.forward, self.backward = {}, {}
        self.phase, self.again = "forward", Counter()

    def ignore(self, tensor):
        self.seen.add(tensor.untyped_storage()._cdata)

    def _gone(self, key, size):
        self.seen.discard(key)
        self.live -= size

    def _count(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.seen:
            return
        self.seen.add(key)
        self.live += storage.nbytes()
        weakref.finalize(storage, self._gone, key, storage.nbytes())

    def mark(self, label, x):
        if self.phase == "forward":
            self.forward[label] = self.live
            if x.requires_grad:
                x.register_hook(lambda g: self.backward.__setitem__(label, self.live))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.phase == "backward":
            func = as_engine(func, args, self.inherited)
        out = func(*args, **(kwargs or {}))
        if self.phase == "backward":
            self.again[func] += 1
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):
                self._count(x)
        self.peak = max(self.peak, self.live)
        return out


class FusedNorm(torch.autograd.Function):
    """What aten._fused_rms_norm saves and returns on a GPU (record_saved.py sees the real one); on the CPU it is many
    operators."""

    @staticmethod
    def forward(ctx, x, weight):
        out, rstd = torch.empty_like(x), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
        ctx.save_for_backward(x, weight, rstd)
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, weight, _ = ctx.saved_tensors
        return (torch.empty_like(x) if ctx.needs_input_grad[0] else None,
                torch.empty_like(weight) if ctx.needs_input_grad[1] else None)


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=torch.bfloat16))

    def forward(self, x):
        return FusedNorm.apply(x, self.weight)


def linear(i, o):
    return nn.Linear(i, o, bias=False, dtype=torch.bfloat16)


def rotate(q, k, angles):
    q_ = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    k_ = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
    angles = angles.view(1, angles.shape[0], 1, angles.shape[1])
    return torch.view_as_real(q_ * angles).flatten(3).type_as(q), torch.view_as_real(k_ * angles).flatten(3).type_as(k)


def repeat(x, n):
    b, s, h, d = x.shape
    return x if n == 1 else x[:, :, :, None, :].expand(b, s, h, n, d).reshape(b, s, h * n, d)


class Attention(nn.Module):
    def __init__(self, c, note):
        super().__init__()
        self.c, self.note = c, note
        kv = c["kv_heads"] * c["head_dim"]
        self.wq, self.wk, self.wv = linear(c["width"], c["width"]), linear(c["width"], kv), linear(c["width"], kv)
        self.wo = linear(c["width"], c["width"])

    def forward(self, x, angles):
        b, s, _ = x.shape
        d, n = self.c["head_dim"], self.c["heads"] // self.c["kv_heads"]
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        self.note("v_proj", xv)
        xq, xk, xv = xq.view(b, s, -1, d), xk.view(b, s, -1, d), xv.view(b, s, -1, d)
        xq, xk = rotate(xq, xk, angles)
        self.note("rotary", xk)
        keys, values = (repeat(xk, n), repeat(xv, n)) if self.c["repeat"] else (xk, xv)
        xq, xk, xv = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        out = aten._scaled_dot_product_flash_attention(xq, xk, xv, 0.0, True)[0]
        out = out.transpose(1, 2).contiguous().view(b, s, -1)
        self.note("attention", out)
        return self.wo(out)


class FeedForward(nn.Module):
    def __init__(self, c, note):
        super().__init__()
        self.w1, self.w2, self.w3 = linear(c["width"], c["ffn"]), linear(c["ffn"], c["width"]), linear(c["width"],
            c["ffn"])
        self.note = note

    def forward(self, x):
        product = F.silu(self.w1(x)) * self.w3(x)
        self.note("swiglu", product)
        return self.w2(product)


class Block(nn.Module):
    def __init__(self, c, index, note):
        super().__init__()
        self.note = lambda label, x: note(f"{index}.{label}", x)
        self.attention_norm, self.ffn_norm = Norm(c["width"]), Norm(c["width"])
        self.attention, self.feed_forward = Attention(c, self.note), FeedForward(c, self.note)

    def forward(self, x, angles):
        h = x + self.attention(self.attention_norm(x), angles)
        self.note("add_1", h)
        out = h + self.feed_forward(self.ffn_norm(h))
        self.note("add_2", out)
        return out


class Llama(nn.Module):
    def __init__(self, c, note):
        super().__init__()
        self.note = note
        self.tok_embeddings = nn.Embedding(c["vocab"], c["width"], dtype=torch.bfloat16)
        self.layers = nn.ModuleDict({str(i): Block(c, i, note) for i in range(c["layers"])})
        self.norm, self.output = Norm(c["width"]), linear(c["width"], c["vocab"])
        self.angles = torch.empty(c["seq_len"], c["head_dim"] // 2, dtype=torch.complex64)

    def forward(self, ids):
        h = self.tok_embeddings(ids)
        self.note("embedding", h)
        for layer in self.layers.values():
            h = layer(h, self.angles)
        h = self.norm(h)
        self.note("norm", h)
        out = self.output(h)
        self.note("head", out)
        return out


def save_every_second_product():
    count = Counter()
    saved = {aten.mm.default, aten._scaled_dot_product_flash_attention.default,
             aten._scaled_dot_product_efficient_attention.default, aten.max.default}

    def policy(ctx, func, *args, **kwargs):
        if func is aten.mm.default:
            count[ctx.is_recompute] += 1
        keep = func in saved and not (func is aten.mm.default and count[ctx.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def loss_of(logits, labels, chunks):
    if chunks == 1:
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
    total = 0.0
    for part, wanted in zip(logits.chunk(chunks, dim=1), labels.chunk(chunks, dim=1)):
        total += F.cross_entropy(part.flatten(0, 1).float(), wanted.flatten(0, 1), reduction="sum")
    return total / labels.numel()


def record(case):
    c = case["shape"]
    with FakeTensorMode():
        memory = Memory()
        model = Llama(c, memory.mark)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(name.startswith(p) for p in case.get("frozen", [])))
            memory.ignore(parameter)
        memory.ignore(model.angles)
        if case["checkpointing"] != "none":
            more = {"context_fn": save_every_second_product} if case["checkpointing"] == "selective_op" else {}
            for i, layer in model.layers.items():
                model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False, early_stop=case["early_stop"],
                                                     **more)
        ids = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
        memory.ignore(ids)
        with memory:
            logits = model(ids)
            loss = loss_of(logits, ids, case["loss_chunks"])
            forward_peak = memory.peak
            del logits
            saved = memory.live
            memory.phase, memory.peak = "backward", 0
            loss.backward()
        gradients = sum(p.grad.untyped_storage().nbytes() for p in model.parameters() if p.grad is not None)
        return {**case, "saved": saved, "forward_peak": forward_peak, "backward_peak": memory.peak, "end": memory.live,
                "gradients": gradients,
                "forward": memory.forward, "backward": memory.backward,
                "again": {str(f): n for f, n in sorted(memory.again.items(), key=str)
                                                                                   if str(f) in COUNTED}}


COUNTED = {"aten.mm.default", "aten._scaled_dot_product_flash_attention.default", "aten.silu.default",
           "aten.embedding.default"}


def cases():
    small = dict(layers=3, width=256, heads=8, kv_heads=2, head_dim=32, ffn=640, vocab=1024, sequences=2, seq_len=256,
                 repeat=True)
    base = dict(shape=small, checkpointing="none", early_stop=True, loss_chunks=1)
    yield {"name": "plain", **base}
    yield {"name": "grouped", **base, "shape": {**small, "repeat": False}}
    yield {"name": "grouped_selective_op", **base, "checkpointing": "selective_op",
           "shape": {**small, "repeat": False, "vocab": 64, "seq_len": 4096}}
    yield {"name": "multi_head_small_vocab", **base, "shape": {**small, "kv_heads": 8, "vocab": 64}}
    yield {"name": "long", **base, "shape": {**small, "vocab": 64, "seq_len": 4096}}
    for how in ("full", "selective_op"):
        for early in (True, False):
            for vocab, seq_len in ((1024, 256), (64, 4096)):
                yield {"name": f"{how}_{'early' if early else 'whole'}_{vocab}", **base, "checkpointing": how,
                       "early_stop": early,
                       "shape": {**small, "vocab": vocab, "seq_len": seq_len}}
    yield {"name": "chunked_loss", **base, "loss_chunks": 4, "shape": {**small, "vocab": 8192}}
    yield {"name": "frozen_embedding", **base, "frozen": ["tok_embeddings"]}
    yield {"name": "frozen_first_blocks", **base, "frozen": ["tok_embeddings", "layers.0", "layers.1"]}
    yield {"name": "frozen_feed_forward", **base, "frozen": [f"layers.{i}.feed_forward" for i in range(3)]}
    yield {"name": "frozen_products", **base,
           "frozen": ["tok_embeddings", "output"]
           + [f"layers.{i}.{w}" for i in range(3) for w in ("attention.w", "feed_forward.w")]}


def saved_by_compiled_block(checkpointing):
    """Bytes that the compiled forward of one block hands to its backward: what PyTorch's partitioner chooses before
    Inductor generates code. Parameters, angles, random state and the 0-dimensional do not count."""
    torch._dynamo.reset()
    shape = next(cases())["shape"] | {"repeat": False}
    block = Block(shape, 0, lambda *_: None)
    for norm in (block.attention_norm, block.ffn_norm):
        norm.forward = lambda x, norm=norm: F.rms_norm(x, x.shape[-1:], norm.weight, 1e-5)
    if checkpointing != "none":
        more = {"context_fn": save_every_second_product} if checkpointing == "selective_op" else {}
        block = checkpoint_wrapper(block, preserve_rng_state=False, **more)
    x = torch.empty(shape["sequences"], shape["seq_len"], shape["width"], dtype=torch.bfloat16, requires_grad=True)
    saved = {}

    def source(node):
        while node.op == "call_function" and node.target in (aten.permute.default, aten._conj.default,
                                                             aten.view.default, aten.alias.default):
            node = node.args[0]
        return node

    def forward_compiler(graph, _):
        for node in list(graph.graph.nodes)[-1].args[0][1:]:
            value, origin = node.meta.get("val"), source(node)
            if isinstance(value, torch.Tensor) and value.dtype != torch.uint64 and (origin.op != "placeholder"
                    or origin.meta["val"].shape == x.shape):
                saved[value.untyped_storage()._cdata] = value.numel() * value.element_size()
        return graph.forward

    backend = aot_autograd(fw_compiler=forward_compiler, bw_compiler=lambda graph, _: graph.forward,
                           decompositions=select_decomp_table(),
                           partition_fn=min_cut_rematerialization_partition)
    try:
        torch.compile(block, backend=backend, fullgraph=True)(x,
            torch.empty(shape["seq_len"], shape["head_dim"] // 2, dtype=torch.complex64))
    except NotImplementedError:   # flash attention cannot run here; it has been compiled
        pass
    return sum(saved.values())


def wide_when_compiled(checkpointing):
    """How many tensors of a feed-forward's inner width are alive at most in the forward, and in the backward, that
    Inductor makes: what is allocated and freed while they run on the CPU."""
    torch._dynamo.reset()
    rows, width, inner = 64, 32, 88

    class FeedForward(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.RMSNorm(width)
            self.w1, self.w3 = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
            self.w2 = torch.nn.Linear(inner, width, bias=False)

        def forward(self, x):
            y = self.norm(x)
            return x + self.w2(F.silu(self.w1(y)) * self.w3(y))

    block = FeedForward().to(torch.bfloat16)
    if checkpointing != "none":
        more = {"context_fn": save_every_second_product} if checkpointing == "selective_op" else {}
        block = checkpoint_wrapper(block, preserve_rng_state=False, **more)
    x = torch.randn(rows, width, dtype=torch.bfloat16, requires_grad=True)
    compiled = torch.compile(block, fullgraph=True)
    compiled(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        with record_function("forward"):
            y = compiled(x)
        with record_function("backward"):
            y.backward(torch.ones_like(y))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        events = json.loads(pathlib.Path(file.name).read_text())["traceEvents"]
    ends = {e["name"]: e["ts"] + e["dur"] for e in events if e.get("name") in ("forward", "backward") and "dur" in e}
    most, live = {"forward": 0, "backward": 0}, 0
    for at, size in sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"):
        live += (abs(size) == 2 * rows * inner) * (1 if size > 0 else -1)
        when = "forward" if at <= ends["forward"] else "backward"
        most[when] = max(most[when], live)
    return most


def optimizer_temporaries():
    """Bytes per element that AdamW's step and clip_grad_norm_ hold at once beside parameters, gradients and states,
    over all parameters and of the largest one: 24 parameters of 2048 elements, 1 of 8192."""
    found = {}
    with FakeTensorMode():
        for name, call in {"adamw_foreach": lambda p: torch.optim.AdamW(p, foreach=True).step,
                           "adamw_loop": lambda p: torch.optim.AdamW(p, foreach=False).step,
                           "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True).step,
                           "clip_foreach": lambda p: lambda: nn.utils.clip_grad_norm_(p, 1.0, foreach=True)}.items():
            parameters = [nn.Parameter(torch.empty(64, 32)) for _ in range(24)] + [nn.Parameter(torch.empty(256, 32))]
            memory = Memory()
            for p in parameters:
                p.grad = torch.empty_like(p)
            step = call(parameters)
            with memory:
                step()   # makes the states
                states, memory.peak = memory.live, memory.live
                step()
            found[name] = {"bytes": memory.peak - states, "elements": 24 * 2048 + 8192, "largest": 8192}
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    found = [record(case) for case in cases()]
    others = {"optimizers": optimizer_temporaries(),
              "compiled_block": {how: saved_by_compiled_block(how) for how in ("none", "full", "selective_op")},
              "wide_when_compiled": {how: wide_when_compiled(how) for how in ("none", "full", "selective_op")}}
    text = (f'{{\n  "recorded_with": "torch {torch.__version__.split("+")[0]}",\n  '
            + "".join(f'"{k}": {json.dumps(v)},\n  ' for k, v in others.items())
            + '"cases": [\n    ' + ",\n    ".join(map(json.dumps, found)) + "\n  ]\n}\n")
    if args.write:
        GOLDEN.write_text(text)
        return
    golden = json.loads(GOLDEN.read_text())
    before = {c["name"]: c for c in golden["cases"]}
    changed = [f"{c['name']}: {key}: {before.get(c['name'], {}).get(key)} -> {value}" for c in found
               for key, value in c.items()
               if before.get(c["name"], {}).get(key) != value]
    changed += [f"{key}: {golden.get(key)} -> {value}" for key, value in others.items() if golden.get(key) != value]
    print("\n".join(changed) or "nothing changed")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
