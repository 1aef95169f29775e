#!/usr/bin/env python3
"""Records what PyTorch does for asynchronous tensor parallelism (torch.compile with _micro_pipeline_tp), without a GPU.

schedules   what torch/distributed/_symmetric_memory issues for a gather with m products and for a product with a
            reduce-scatter, of rank 1 of n: PyTorch's own code runs on CPU tensors, with streams and a workspace that
            log. Events: stream (C: current, S: the second one), what, and part, from this rank's own on:
                barrier | share | pull K | mm M K (product M of part K) | own | exchange K | sum
blocks      what the pass leaves in the forward and backward graph of a compiled transformer block:
                gather_mm M KEPT (products; whether the gathered rows are returned) | mm_scatter | all_gather |
                reduce_scatter | mm N (products that run whole, in all)

Usage:

    python3 tests/torch/record_async_tensor.py            compares with tests/torch/golden/async_tensor.json
    python3 tests/torch/record_async_tensor.py --write    records it again
"""
import multiprocessing
import pathlib
import sys
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import golden_file
from tensor_llama import Llama, parallelize

GOLDEN = pathlib.Path(__file__).parent / "golden" / "async_tensor.json"
RANK = 1


class Streams:
    """PyTorch's two streams, by name; the one that is current."""

    class Stream:
        def __init__(self, owner, name):
            self.owner, self.name = owner, name

        def __enter__(self):
            self.before, self.owner.current = self.owner.current, self

        def __exit__(self, *_):
            self.owner.current = self.before

        def wait_stream(self, other):
            pass

    def __init__(self):
        self.main, self.second = self.Stream(self, "C"), self.Stream(self, "S")
        self.current = self.main


class Workspaces:
    """What every rank shares; this rank reads from the others' and writes to its own."""

    def __init__(self, ranks, log):
        self.rank, self.world_size, self.log = RANK, ranks, log
        self.memory = [torch.zeros(1 << 16, dtype=torch.uint8) for _ in range(ranks)]

    def barrier(self, channel=0):
        self.log("barrier")

    def get_buffer(self, rank, shape, dtype, storage_offset=0):
        numel = torch.Size(shape).numel()
        return self.memory[rank].view(dtype)[storage_offset:storage_offset + numel].view(shape)

    def owner(self, tensor):
        found = [r for r, m in enumerate(self.memory) if m.untyped_storage()._cdata == tensor.untyped_storage()._cdata]
        return found[0] if found else None


class Operations(TorchDispatchMode):
    """Copies and products that PyTorch's schedule issues."""

    def __init__(self, spaces, log, weights):
        super().__init__()
        self.spaces, self.log, self.weights = spaces, log, [w.untyped_storage()._cdata for w in weights]
        self.part_of_rows = {}

    def relative(self, rank):
        return (rank - RANK) % self.spaces.world_size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name == "aten::copy_":
            to, source = self.spaces.owner(args[0]), self.spaces.owner(args[1])
            place = args[0].storage_offset() * self.spaces.world_size * args[0].element_size()
            chunk = place // args[0].untyped_storage().nbytes()
            if to is not None:
                self.log("share")
            elif source is not None:
                self.log("move", self.relative(source), self.relative(chunk), args[0].nbytes)
            else:
                self.log("own")
        elif func is torch.ops.aten.mm.out:
            a, b = args[:2]
            rows = a.storage_offset() // a.shape[1]
            whole = a.untyped_storage().nbytes() // (a.shape[1] * a.element_size())
            part = RANK if whole == a.shape[0] else rows // a.shape[0]
            self.log("mm", self.weights.index(b.untyped_storage()._cdata), self.relative(part))
        return func(*args, **(kwargs or {}))


def schedule(case):
    ranks, products, scatters = case["ranks"], case["products"], case["scatters"]
    events, streams = [], Streams()

    def log(*what):
        events.append([streams.current.name, *what])
    spaces = Workspaces(ranks, log)
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=ranks)
    rows, inner, outer = 4 * ranks, 8, 6
    weights = [torch.randn(inner, outer) for _ in range(products)]
    sums = symmetric.reduce_partials

    def summed(*args, **kwargs):
        log("sum")
        with torch.utils._python_dispatch._disable_current_modes():
            return sums(*args, **kwargs)
    try:
        with mock.patch.object(symmetric, "get_symm_mem_workspace", lambda *_, **__: spaces), \
                mock.patch.object(symmetric, "_get_backend_stream", lambda *_: streams.second), \
                mock.patch.object(torch.accelerator, "current_stream", lambda *_: streams.current), \
                mock.patch.object(symmetric, "reduce_partials", summed), Operations(spaces, log, weights):
            group = dist.group.WORLD.group_name
            if scatters:
                symmetric._fused_matmul_reduce_scatter_impl(
                    torch.ops.aten.mm.out, torch.randn(rows, inner), weights[0], {}, torch.float32, "sum", 0, group)
            else:
                symmetric._fused_all_gather_matmul_impl(
                    torch.ops.aten.mm.out, torch.randn(4, inner), weights, None, [{} for _ in weights],
                    [torch.float32 for _ in weights], 0, group, case["kept"])
    finally:
        dist.destroy_process_group()
    # Of a gather the rows of a rank come from its workspace; of a scatter what it has made for this rank. Either goes
    # to the place of that rank.
    for e in events:
        if e[1] == "move":
            assert e[2] == e[3], e
            e[1:] = ["exchange" if scatters else "pull", e[2]]
    name = ("mm-scatter" if scatters else f"gather-{products}" + ("" if case["kept"] else "-dropped")) + f"-{ranks}"
    return {"config": {**case, "name": name}, "events": events}


def schedules():
    cases = [dict(ranks=n, products=m, scatters=False, kept=kept) for n in (2, 3, 4, 8)
             for m, kept in ((1, True), (2, True), (3, True), (3, False))]
    return cases + [dict(ranks=n, products=1, scatters=True, kept=False) for n in (2, 3, 4, 8)]


def summary(graph):
    """Of one graph, in its order; whole products in all at the end."""
    found, whole = [], 0
    for node in graph.nodes:
        name = str(node.target)
        if "fused_all_gather_matmul" in name:
            found.append(["gather_mm", len(node.args[1]), bool(node.kwargs["return_A"])])
        elif "fused_matmul_reduce_scatter" in name:
            found.append(["mm_scatter"])
        elif "all_gather_into_tensor" in name:
            found.append(["all_gather"])
        elif "reduce_scatter_tensor" in name:
            found.append(["reduce_scatter"])
        elif name.startswith(("aten.mm.", "aten.addmm.")):
            whole += 1
    return [*found, ["mm", whole]]


def block(c):
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor import config as inductor
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.fx_passes import post_grad
    from torch._inductor.virtualized import V
    graphs, own = [], post_grad.micro_pipeline_tp_pass

    def pass_and_log(graph):
        own(graph)
        graphs.append(summary(graph))

    def compiled(module, inputs, **_):
        """Inductor's passes on a graph of autograd's, without its code generation; the graph itself runs."""
        copied = torch.fx.Graph()
        copied.output(copied.graph_copy(module.graph, {}))
        plain = torch.fx.GraphModule(module, copied)
        post_grad.view_to_reshape(module)
        with V.set_fake_mode(torch._guards.detect_fake_mode(inputs)):
            post_grad.post_grad_passes(module, False)
        return make_boxed_func(plain.forward)
    torch.manual_seed(0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=c["tensor"])
    try:
        mesh = init_device_mesh("cpu", (c["tensor"],), mesh_dim_names=("tensor",))
        model = Llama(dict(c, layers=1)).bfloat16()
        parallelize(model, mesh)
        layer = model.model.layers[0]
        if c["checkpoint"]:
            layer = checkpoint_wrapper(layer)
        x = torch.randn(c["sequences"], c["seq_len"] // c["tensor"], c["hidden"], dtype=torch.bfloat16) \
            .requires_grad_()
        freqs = torch.ones(c["seq_len"], 1, c["hidden"] // c["heads"] // 2, dtype=torch.complex64)

        def backend(module, inputs):
            return compile_fx(module, inputs, inner_compile=compiled)
        with inductor.patch(_micro_pipeline_tp=True), \
                mock.patch.object(post_grad, "micro_pipeline_tp_pass", pass_and_log), \
                symmetric._test_mode({mesh.get_group().group_name}):
            y = torch.compile(layer, fullgraph=True, backend=backend)(x * 1, freqs)
            y.backward(torch.randn_like(y))
    finally:
        dist.destroy_process_group()
    return {"config": c, "forward": graphs[0], "backward": graphs[1]}


def blocks():
    base = dict(layers=1, vocab=160, hidden=64, inner=128, heads=8, kv_heads=4, sequences=2, seq_len=16, tensor=2,
                checkpoint=False, family="llama")
    qwen2, qwen3 = dict(base, family="qwen2", qkv_bias=True), dict(base, family="qwen3", qk_norm=True)
    return [
        dict(base, name="default"),
        dict(base, name="checkpoint", checkpoint=True),
        dict(base, name="tensor-4", tensor=4),
        dict(base, name="tensor-4-checkpoint", tensor=4, checkpoint=True, sequences=3),
        dict(base, name="one-sequence", sequences=1),
        dict(base, name="one-sequence-checkpoint", sequences=1, checkpoint=True),
        dict(qwen2, name="qwen2"),
        dict(qwen2, name="qwen2-checkpoint", checkpoint=True),
        dict(qwen3, name="qwen3"),
        dict(qwen3, name="qwen3-checkpoint", checkpoint=True),
    ]


def main():
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # DTensor remembers process groups
        cases = pool.map(schedule, schedules(), chunksize=1) + pool.map(block, blocks(), chunksize=1)
    return golden_file.finish(GOLDEN, golden_file.text_of({"torch": torch.__version__, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
