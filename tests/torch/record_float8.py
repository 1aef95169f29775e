#!/usr/bin/env python3
"""Records what PyTorch issues and holds where torchao's float8 linear layers train under fully_shard.

One process with the fake process group plays rank 0. Layers are converted as torchtitan does: sides that are multiples
of 16, without the output layer. Logged in host order, beside what order_log.py logs of fully_shard:

    largest                 elements of an all-reduce of largest values, ranks
    cast                    elements of a tensor that is cast to 8 bits
    mm                      bits of the factors, rows, inner size, columns of every matrix product

and of the second step the bytes alive behind every copy-out and before every reduce-scatter (`live`) and at most
(`peak`); numbers alone left out, and what the training loop holds.

Usage:

    python3 tests/torch/record_float8.py            compares with tests/torch/golden/float8.json
    python3 tests/torch/record_float8.py --write    records it again
"""
import gc
import multiprocessing
import pathlib
import sys
import weakref

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchao.float8.float8_training_tensor import Float8TrainingTensor
from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp

import golden_file
from autograd_engine import as_engine
from order_log import DTYPES, NAMES, OrderLog
from record_fsdp2 import reshard_value
from tensor_llama import Llama, loss_of

GOLDEN = pathlib.Path(__file__).parent / "golden" / "float8.json"
WRAPPERS = (AsyncCollectiveTensor, DTensor, Float8TrainingTensor, WeightWithDynamicFloat8CastTensor)
EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
NAMES.update({torch.uint8: "fp8", **{t: "fp8" for t in EIGHT}})


class Float8Log(TorchDispatchMode):
    """Casts, products and reductions of largest values, into the events of an OrderLog; and the bytes alive."""

    def __init__(self, log):
        super().__init__()
        self.log, self.alive, self.total, self.peak, self.left_out = log, {}, 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, WRAPPERS) for t in types):
            return NotImplemented                       # subclasses: what they call comes here again
        result = as_engine(func, args)(*args, **(kwargs or {}))
        if active_fake_mode() is not None:
            return result
        for t in tree_leaves(result):
            if isinstance(t, torch.Tensor) and t.dim() > 0:
                self.see(t.untyped_storage())
        name, events = func._schema.name, self.log.events
        if name == "_c10d_functional::all_reduce":
            events.append(["largest", args[0].numel(), _resolve_process_group(args[-1]).size()])
        elif name == "aten::_to_copy" and result.dtype in EIGHT:
            events.append(["cast", result.numel()])
        elif name in ("aten::mm", "aten::addmm", "aten::_scaled_mm"):
            a, b = args[1:3] if name == "aten::addmm" else args[:2]
            events.append(["mm", 8 if name == "aten::_scaled_mm" else 16, a.shape[0], a.shape[1], b.shape[1]])
        return result

    def see(self, storage):
        key = storage._cdata
        if key in self.left_out:
            return
        if key not in self.alive:
            self.alive[key] = 0
            weakref.finalize(storage, self.gone, key)
        self.total += storage.nbytes() - self.alive[key]
        self.alive[key] = storage.nbytes()
        self.peak = max(self.peak, self.total)

    def gone(self, key):
        self.total -= self.alive.pop(key)

    def __enter__(self):
        log, self.resize = self, torch.UntypedStorage.resize_

        def resized(storage, size):
            log.resize(storage, size)
            log.see(storage)
        torch.UntypedStorage.resize_ = resized
        return super().__enter__()

    def __exit__(self, *args):
        torch.UntypedStorage.resize_ = self.resize
        return super().__exit__(*args)


class Events(list):
    """Events, with the bytes alive behind each copy-out and before each reduce-scatter."""

    def __init__(self):
        super().__init__()
        self.log, self.live = None, []

    def append(self, event):
        super().append(event)
        if event[0] in ("copy_out", "reduce_scatter"):
            self.live.append(self.log.total)


def units_of(c):
    blocks = [[f"model.layers.{i}"] for i in range(c["layers"])]
    if c.get("wrap") == "titan":
        return [["model.embed_tokens"], *blocks, ["model.norm", "lm_head"], [""]]
    return [*blocks, [""]]


def converted(module, name):
    return all(n % 16 == 0 for n in module.weight.shape) and "lm_head" not in name


def record(c):
    torch.manual_seed(0)
    shard, replicate = c["shard"], c.get("replicate", 1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=replicate * shard)
    try:
        names = ("replicate", "shard") if replicate > 1 else ("shard",)
        mesh = init_device_mesh("cpu", (replicate, shard)[-len(names):], mesh_dim_names=names)
        model = Llama(c).to(DTYPES[c.get("master", "fp32")])
        if c["recipe"] != "none":
            config = Float8LinearConfig.from_recipe_name(c["recipe"])
            if c.get("all_gather"):
                config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
            convert_to_float8_training(model, config=config, module_filter_fn=converted)
        freqs = torch.ones(c["seq_len"], 1, c["hidden"] // c["heads"] // 2, dtype=torch.complex64)
        if c.get("checkpoint"):
            for i in range(c["layers"]):
                model.model.layers[i] = checkpoint_wrapper(model.model.layers[i])
        policy = MixedPrecisionPolicy(param_dtype=DTYPES["bf16"], reduce_dtype=DTYPES["fp32"])
        units, groups = units_of(c), {}
        for u, unit in enumerate(units):
            modules = [model.get_submodule(n) for n in unit]
            fully_shard(modules[0] if len(modules) == 1 else modules, mesh=mesh, mp_policy=policy,
                        reshard_after_forward=reshard_value(c.get("reshard", "auto")))
            param_group = fully_shard.state(modules[0])._fsdp_param_group
            if param_group is not None:
                groups[id(param_group)] = u
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        order = OrderLog(groups, shard)
        order.events = Events()
        with order as log, Float8Log(log) as memory:
            log.events.log = memory
            for p in model.parameters():
                local = p.to_local()
                memory.see(getattr(local, "_tensor", local).untyped_storage())
            memory.left_out.add(freqs.untyped_storage()._cdata)
            gc.collect()
            gc.disable()
            for _ in range(2):                       # the second is the steady one
                log.events.clear()
                log.events.live.clear()
                memory.peak = memory.total
                optimizer.zero_grad()
                for m in range(c.get("micro_batches", 1)):
                    ids = torch.randint(0, c["vocab"], (c["sequences"], c["seq_len"]))
                    loss_of(model(ids, freqs), ids).backward()
                optimizer.step()
                if c.get("precomputed_scales"):
                    precompute_float8_dynamic_scale_for_fsdp(model)
            events = [e for e in log.events if e[0] not in ("free_gather", "free_input", "clip_reduce")]
            live = list(log.events.live)
    finally:
        dist.destroy_process_group()
    return {"config": c, "units": units, "events": events, "live": live, "peak": memory.peak}


def configs():
    base = dict(layers=2, vocab=160, hidden=64, inner=128, heads=4, kv_heads=2, sequences=2, seq_len=16, shard=4)
    base["recipe"] = "tensorwise"
    gathered = dict(base, all_gather=True)
    return [
        dict(base, name="none", recipe="none"),
        dict(base, name="none-checkpoint", recipe="none", checkpoint=True, reshard="true"),
        dict(base, name="tensorwise"),
        dict(base, name="tensorwise-titan", wrap="titan"),
        dict(base, name="tensorwise-wide", inner=1024, sequences=1),
        dict(base, name="tensorwise-checkpoint-reshard", checkpoint=True, reshard="true"),
        dict(base, name="tensorwise-odd-sides", inner=120),
        dict(base, name="tensorwise-bias", qkv_bias=True),
        dict(base, name="tensorwise-hsdp-accumulate", replicate=2, shard=2, micro_batches=2),
        dict(gathered, name="gathered"),
        dict(gathered, name="gathered-titan", wrap="titan"),
        dict(gathered, name="gathered-wide", inner=1024, sequences=1),
        dict(gathered, name="gathered-keep", reshard="false"),
        dict(gathered, name="gathered-checkpoint-reshard", checkpoint=True, reshard="true"),
        dict(gathered, name="gathered-odd-sides", inner=120),
        dict(gathered, name="gathered-hsdp-accumulate", replicate=2, shard=2, micro_batches=2),
        dict(gathered, name="gathered-precomputed", precomputed_scales=True),
        dict(gathered, name="gathered-precomputed-titan-checkpoint", precomputed_scales=True, wrap="titan",
             checkpoint=True),
        dict(gathered, name="gathered-bf16", master="bf16"),
        dict(gathered, name="gathered-bf16-titan-wide", master="bf16", wrap="titan", inner=1024, sequences=1),
        dict(gathered, name="gathered-bf16-precomputed", master="bf16", precomputed_scales=True, reshard="false"),
        dict(base, name="rowwise", recipe="rowwise"),
        dict(base, name="rowwise-checkpoint", recipe="rowwise", checkpoint=True, wrap="titan"),
        dict(base, name="rowwise-with-gw-hp", recipe="rowwise_with_gw_hp"),
        dict(base, name="rowwise-with-gw-hp-wide", recipe="rowwise_with_gw_hp", inner=1024, sequences=1),
    ]


def main():
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # DTensor remembers process groups
        cases = pool.map(record, configs(), chunksize=1)
    return golden_file.finish(GOLDEN, golden_file.text_of({"torch": torch.__version__, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
