#!/usr/bin/env python3
"""Records what optimizers hold on one rank's FSDP2 shards: the states, and the bytes that a step takes beside them.

One process plays a rank of a fake process group. Gradients are given, so that nothing but the optimizer is recorded.
Usage:

    python tests/torch/record_optimizers.py            compares with tests/torch/golden/optimizers.json
    python tests/torch/record_optimizers.py --write    records it again (torchao is needed)

Of SGD, with fake tensors: `points`, the bytes above those of before the step, after each operator that changed them, of
a first and of a later step. Of torchao's AdamW8bit, with real ones: the tensors of each parameter's first state (the
second has the same); and, of "adamw-8bit step", the buffers that Inductor's code for GPUs allocates while it steps a
tensor.
"""
import gc
import json
import math
import pathlib
import re
import sys
import warnings

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore

import golden_file
import record_memory

GOLDEN = pathlib.Path(__file__).parent / "golden" / "optimizers.json"
SMALL = dict(layers=2, vocab=1000, hidden=128, inner=344, heads=4, kv_heads=2, tied=False)
ODD = dict(SMALL, vocab=997, hidden=140, inner=339, heads=5, kv_heads=1)
STEPPED = (130, 4095, 4096, 16896, 262144, 262145, 4194304)
LARGE = dict(SMALL, vocab=4096, hidden=256, inner=768)


class Points(record_memory.Tracker):
    """The bytes that are alive after each operator, where they changed."""

    def __init__(self, fake_mode):
        super().__init__(fake_mode)
        self.points, self.start = [], 0

    def __enter__(self):
        tracker, self.propagate = self, ShardingPropagator._propagate_tensor_meta_non_cached

        def propagate(*args, **kwargs):      # DTensor works out shapes of whole tensors
            tracker.propagating += 1
            try:
                return tracker.propagate(*args, **kwargs)
            finally:
                tracker.propagating -= 1
        ShardingPropagator._propagate_tensor_meta_non_cached = propagate
        return super().__enter__()

    def __exit__(self, *args):
        ShardingPropagator._propagate_tensor_meta_non_cached = self.propagate
        return super().__exit__(*args)

    def begin(self):
        self.points, self.start = [], self.total
        self.reset_peak()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if out is not NotImplemented and self.total - self.start != (self.points[-1] if self.points else 0):
            self.points.append(self.total - self.start)
        return out


def sharded(c, mesh):
    """A model whose parameters are this rank's shards, each with a gradient."""
    model = record_memory.Llama(c, None)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for p in model.parameters():
        p.grad = DTensor.from_local(torch.zeros_like(p.to_local()), p.device_mesh, p.placements, run_check=False,
                                    shape=p.shape, stride=p.stride())
    return model


def local_elements(model):
    return [[name, p.to_local().numel()] for name, p in model.named_parameters()]


def sgd(c, mesh):
    fake = FakeTensorMode()
    with fake, Points(fake) as tracker:
        model = sharded(c, mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=c["momentum"], weight_decay=c["weight_decay"],
                                    foreach=c["foreach"])
        result = {"local_elements": local_elements(model)}
        gc.collect()
        gc.disable()
        for step in ("first", "steady"):
            tracker.begin()
            optimizer.step()
            result[step] = {"points": tracker.points, "peak": tracker.peak - tracker.start,
                            "kept": tracker.total - tracker.start}
        gc.enable()
    return result


def adamw_8bit(c, mesh):
    import torchao.optim.adam as torchao_adam
    model = sharded(c, mesh)
    optimizer = torchao_adam.AdamW8bit(model.parameters(), lr=0.1)
    real = torch.compile
    torch.compile = lambda f, **_: lambda *args: None  # states alone
    try:
        optimizer.step()
    finally:
        torch.compile = real
    states = []
    for name, p in model.named_parameters():
        both = []
        for key in ("exp_avg", "exp_avg_sq"):
            local = optimizer.state[p][key].to_local()
            tensors = [local.codes, local.scale, local.qmap] if hasattr(local, "codes") else [local]
            both.append([t.untyped_storage().nbytes() for t in tensors])
        assert both[0] == both[1] and set(optimizer.state[p]) == {"step", "exp_avg", "exp_avg_sq"}
        states.append([name, both[0]])
    return {"local_elements": local_elements(model), "states": states}


def triton_buffers(elements):
    """Bytes of the buffers that Inductor's code for GPUs allocates while it steps one tensor of so many elements. The
    code is made for a GPU that is not there, and not run."""
    import torch._inductor.config
    import triton
    from torch._inductor.graph import GraphLowering
    from torchao.optim.adam import single_param_adam
    from torchao.optim.subclass_8bit import OptimState8bit
    from triton.backends.compiler import GPUTarget

    class Absent:
        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_active_torch_device(self):
            return torch.device("cpu")

    class Seen(Exception):
        pass
    code, original = [], GraphLowering.codegen

    def codegen(graph, *args, **kwargs):
        code.append(original(graph, *args, **kwargs)[0].value)
        raise Seen
    triton.runtime.driver.set_active(Absent())
    GraphLowering.codegen = codegen
    p = torch.zeros(elements)
    states = [OptimState8bit.zeros(p.shape, signed, 256) if elements >= 4096 and elements % 256 == 0 else
              torch.zeros_like(p) for signed in (True, False)]
    try:
        with torch._inductor.config.patch(cpu_backend="triton", fx_graph_cache=False):
            torch._dynamo.reset()
            torch.compile(single_param_adam, fullgraph=True, dynamic=False)(
                p, torch.zeros_like(p), torch.tensor(1.0), *states, None, torch.tensor(0.1), 0.9, 0.95, 0.1, 1e-8, True,
                False)
    except Exception:
        if not code:
            raise
    finally:
        GraphLowering.codegen = original
    body = code[0][code[0].index("def call("):]
    buffers = re.findall(r"= empty_strided_cpu\(\(([\d, ]*)\), \([\d, ]*\), torch\.(\w+)\)", body)
    assert len(buffers) == body.count("= empty_strided") and ".run(" in body
    return [math.prod(int(n) for n in shape.split(",") if n.strip()) * getattr(torch, dtype).itemsize
            for shape, dtype in buffers]


def gpu_step(elements):
    return {"config": {"name": f"adamw-8bit steps {elements} elements", "optimizer": "adamw-8bit step",
                       "elements": elements}, "allocates": triton_buffers(elements)}


def record(c):
    dist.init_process_group("fake", store=FakeStore(), rank=c["rank"], world_size=c["shard"])
    try:
        mesh = init_device_mesh("cpu", (c["shard"],))
        return {"config": c, **(sgd if c["optimizer"] == "sgd" else adamw_8bit)(c, mesh)}
    finally:
        dist.destroy_process_group()


def configs():
    for sizes, shard, rank in ((SMALL, 8, 0), (ODD, 8, 0), (ODD, 8, 7)):
        for momentum in (0.9, 0.0):
            for weight_decay in (0.1, 0.0):
                for foreach in (True, False):
                    name = (f"sgd {'odd' if sizes is ODD else 'even'} rank {rank} of {shard}, momentum {momentum}, "
                            f"decay {weight_decay}, {'foreach' if foreach else 'loop'}")
                    yield dict(sizes, name=name, optimizer="sgd", shard=shard, rank=rank, momentum=momentum,
                               weight_decay=weight_decay, foreach=foreach)
    for what, sizes, shard, rank in (("small", SMALL, 2, 0), ("small", SMALL, 8, 0), ("small", SMALL, 64, 63),
                                     ("large", LARGE, 4, 0), ("large", LARGE, 16, 0), ("large", LARGE, 64, 0),
                                     ("odd", ODD, 2, 0), ("odd", ODD, 2, 1)):
        yield dict(sizes, name=f"adamw-8bit {what} rank {rank} of {shard}", optimizer="adamw-8bit", shard=shard,
                   rank=rank)


def main():
    warnings.filterwarnings("ignore")
    import torchao
    document = {"_about": "Bytes that optimizers hold on one rank's shards. "
                          "Recorded by tests/torch/record_optimizers.py.",
                "torch": torch.__version__.split("+")[0], "torchao": torchao.__version__,
                "cases": [record(c) for c in configs()] + [gpu_step(n) for n in STEPPED]}
    return golden_file.finish(GOLDEN, golden_file.text_of(document))


if __name__ == "__main__":
    sys.exit(main())
