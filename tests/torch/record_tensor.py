#!/usr/bin/env python3
"""Records what PyTorch issues for tensor parallelism (DTensor, sequence parallel) beside fully_shard.

One process with the fake process group plays rank 0 of a mesh replicate x shard x tensor. Logged in host order, beside
what order_log.py logs of fully_shard:

    tensor all_gather | reduce_scatter | all_reduce     elements of the whole tensor, dtype, ranks
    shard all_reduce                                    of clipping
    wait                                                elements of the result, number of the collective over `tensor`;
                                                        only the first one of each result, and not of all-reduces,
                                                        which are waited for at once
    mm                                                  rows, inner size, columns of every matrix product

Usage:

    python3 tests/torch/record_tensor.py            compares with tests/torch/golden/tensor_order.json
    python3 tests/torch/record_tensor.py --write    records it again
"""
import contextlib
import gc
import multiprocessing
import pathlib
import sys
import weakref

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import golden_file
from autograd_engine import as_engine
from order_log import DTYPES, NAMES, OrderLog
from record_fsdp2 import reshard_value
from tensor_llama import Llama, loss_of, parallelize

GOLDEN = pathlib.Path(__file__).parent / "golden" / "tensor_order.json"


class TensorLog(TorchDispatchMode):
    """Functional collectives, waits and matrix products, into the events of an OrderLog."""

    def __init__(self, log, groups):
        super().__init__()
        self.log, self.groups, self.running, self.started = log, groups, {}, 0
        self.alive, self.total, self.live, self.reordered, self.left_out = {}, 0, [], [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, (AsyncCollectiveTensor, DTensor)) for t in types):
            return NotImplemented                       # DTensor and the like: what they call comes here again
        result = as_engine(func, args)(*args, **(kwargs or {}))
        if active_fake_mode() is None:                  # DTensor works out shapes of whole tensors
            for t in tree_leaves(result):
                if isinstance(t, torch.Tensor) and t.dim() > 0 and not isinstance(t, AsyncCollectiveTensor):
                    self.see(t.untyped_storage())
        name = func._schema.name
        events = self.log.events
        if name.startswith("_c10d_functional::"):
            what = name.split("::")[1]
            tensor = args[0]
            if what == "wait_tensor":
                started = self.running.pop(tensor.untyped_storage()._cdata, None)
                if started is not None:
                    events.append(["wait", tensor.numel(), started[0]])
            elif kind := next((k for k in ("all_gather", "reduce_scatter", "all_reduce") if what.startswith(k)), None):
                group = _resolve_process_group(args[-1])
                self.live.append(self.total)
                self.started += self.groups[group.group_name] == "tensor"
                whole = result if kind == "all_gather" else tensor
                events.append([f"{self.groups[group.group_name]} {kind}", whole.numel(), NAMES[tensor.dtype],
                               group.size()])
                if kind != "all_reduce":              # those are waited for at once
                    self.running[result.untyped_storage()._cdata] = self.started, result
        elif name == "aten::cat":                       # parts of sequences, before a reduce-scatter or after a gather
            self.reordered.append(self.total)
        elif name in ("aten::mm", "aten::addmm"):
            a, b = args[-2:]
            events.append(["mm", a.shape[0], a.shape[1], b.shape[1]])
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


def units_of(c):
    blocks = [[f"model.layers.{i}"] for i in range(c["layers"])]
    if c.get("wrap") == "titan":
        return [["model.embed_tokens"], *blocks, ["model.norm", "lm_head"], [""]]
    return [[""]] if c.get("wrap") == "root" else [*blocks, [""]]


def record(c):
    torch.manual_seed(0)
    replicate, shard, tensor = c.get("replicate", 1), c["shard"], c["tensor"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=replicate * shard * tensor)
    try:
        names = ("replicate", "shard", "tensor") if replicate > 1 else ("shard", "tensor")
        mesh = init_device_mesh("cpu", (replicate, shard, tensor)[-len(names):], mesh_dim_names=names)
        model = Llama(c)
        freqs = torch.ones(c["seq_len"], 1, c["hidden"] // c["heads"] // 2, dtype=torch.complex64)
        parallelize(model, mesh["tensor"], c.get("loss_parallel", True))
        if c.get("checkpoint"):
            for i in range(c["layers"]):
                model.model.layers[i] = checkpoint_wrapper(model.model.layers[i])
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[c["param_dtype"]], reduce_dtype=DTYPES[c["reduce_dtype"]])
        data = mesh["replicate", "shard"] if replicate > 1 else mesh["shard"]
        units, groups, firsts = units_of(c), {}, []
        for u, unit in enumerate(units):
            modules = [model.get_submodule(n) for n in unit]
            fully_shard(modules[0] if len(modules) == 1 else modules, mesh=data, mp_policy=policy,
                        reshard_after_forward=reshard_value(c.get("reshard", "auto")))
            param_group = fully_shard.state(modules[0])._fsdp_param_group
            if param_group is not None:
                groups[id(param_group)] = u
            firsts.append(modules[0])
        of_groups = {mesh[name].get_group().group_name: name for name in names}
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        with OrderLog(groups, shard) as log, TensorLog(log, of_groups) as functional:
            for p in model.parameters():
                functional.see(p.to_local().untyped_storage())
            functional.left_out.add(freqs.untyped_storage()._cdata)
            gc.collect()
            gc.disable()
            for _ in range(2):                       # the second is the steady one
                log.events.clear()
                functional.started = 0
                functional.live.clear()
                functional.reordered.clear()
                optimizer.zero_grad()
                count = c.get("micro_batches", 1)
                for m in range(count):
                    last, sync = m + 1 == count, c.get("grad_sync", "every")
                    model.set_requires_gradient_sync(last or sync != "last")
                    model.set_requires_all_reduce(last or sync != "reduce-scatter-only")
                    ids = torch.randint(0, c["vocab"], (c["sequences"], c["seq_len"]))
                    with loss_parallel() if c.get("loss_parallel", True) else contextlib.nullcontext():
                        loss_of(model(ids, freqs), ids).backward()
                if c.get("clip"):
                    torch.nn.utils.clip_grad_norm_(model.parameters(), c["clip"])
                optimizer.step()
            events = [e for e in log.events if e[0] not in ("free_gather", "free_input", "clip_reduce")]
        local = {n.replace("_checkpoint_wrapped_module.", ""): list(p.to_local().shape)
                 for n, p in model.named_parameters()}
    finally:
        dist.destroy_process_group()
    return {"config": c, "units": units, "events": events, "live": functional.live,
            "reordered": functional.reordered, "local_shapes": local}


def configs():
    base = dict(layers=2, vocab=160, hidden=64, inner=128, heads=8, kv_heads=4, sequences=2, seq_len=16, shard=4,
                tensor=2, param_dtype="bf16", reduce_dtype="fp32", family="llama")
    qwen3 = dict(base, family="qwen3", qk_norm=True)
    qwen2 = dict(base, family="qwen2", qkv_bias=True)
    return [
        dict(base, name="default"),
        dict(base, name="reshard", reshard="true"),
        dict(base, name="keep", reshard="false"),
        dict(base, name="titan", wrap="titan"),
        dict(base, name="root", wrap="root"),
        dict(base, name="fp32", param_dtype="fp32"),
        dict(base, name="reduce-bf16", reduce_dtype="bf16"),
        dict(base, name="one-sequence", sequences=1),
        dict(base, name="gathered-logits", loss_parallel=False),
        dict(base, name="gathered-logits-one-sequence", loss_parallel=False, sequences=1),
        dict(base, name="tensor-4", tensor=4),
        dict(base, name="tensor-4-uneven-shards", tensor=4, shard=3, hidden=72, inner=120, heads=4, vocab=164),
        dict(base, name="checkpoint", checkpoint=True),
        dict(base, name="checkpoint-reshard-titan", checkpoint=True, reshard="true", wrap="titan"),
        dict(base, name="checkpoint-one-sequence", checkpoint=True, sequences=1, layers=3),
        dict(base, name="clip", clip=1.0),
        dict(base, name="accumulate-every", micro_batches=2),
        dict(base, name="accumulate-last", micro_batches=3, grad_sync="last"),
        dict(base, name="accumulate-last-titan", micro_batches=2, grad_sync="last", wrap="titan", checkpoint=True),
        dict(base, name="accumulate-last-fp32", micro_batches=2, grad_sync="last", param_dtype="fp32"),
        dict(base, name="hsdp", replicate=2, shard=2),
        dict(base, name="hsdp-rs-only", replicate=2, shard=2, micro_batches=2, grad_sync="reduce-scatter-only"),
        dict(base, name="hsdp-checkpoint-clip", replicate=2, shard=2, checkpoint=True, clip=1.0, reshard="true"),
        dict(base, name="one-shard", shard=1),
        dict(qwen2, name="qwen2"),
        dict(qwen2, name="qwen2-checkpoint-accumulate", checkpoint=True, micro_batches=2),
        dict(qwen3, name="qwen3"),
        dict(qwen3, name="qwen3-checkpoint", checkpoint=True, reshard="true"),
        dict(qwen3, name="qwen3-hsdp-last", replicate=2, shard=2, micro_batches=2, grad_sync="last"),
        dict(qwen3, name="qwen3-tensor-4-titan", tensor=4, wrap="titan", clip=1.0),
    ]


def main():
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # DTensor remembers process groups
        cases = pool.map(record, configs(), chunksize=1)
    return golden_file.finish(GOLDEN, golden_file.text_of({"torch": torch.__version__, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
