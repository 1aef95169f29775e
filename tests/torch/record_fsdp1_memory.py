#!/usr/bin/env python3
"""Records how many bytes PyTorch's FullyShardedDataParallel has allocated at moments of two training steps of small
Llamas.

One process plays rank 0 of a fake process group on the CPU, with real tensors. The tracker of record_memory.py sees
every storage appear, change size and go away; what is freed counts as gone at once, as in PyTorch's count of allocated
bytes on a GPU. Usage:

    python tests/torch/record_fsdp1_memory.py            compares with tests/torch/golden/fsdp1_memory.json, prints what
      changed
    python tests/torch/record_fsdp1_memory.py --write    records it again

Moments, [name, unit, bytes], taken just after: zero (zero_grad), gather (a unit's all-gather was issued), free (of its
gathered parameter), reduce (its gradients' reduction was issued; autograd lets go of the flat gradient next), forward
(of a micro-batch), backward (of a micro-batch), step. Scalars (the loss) are left out. `peak` is the most that is there
at once in a step.
"""
import contextlib
import gc
import json
import logging
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp import _flat_param, _runtime_utils
from torch.testing._internal.distributed.fake_pg import FakeStore

import golden_file
from record_fsdp1 import PREFETCH, input_gradients, reentrant, strategy, trained_outermost
from record_memory import CATEGORIES, DTYPES, Llama, Tracker

GOLDEN = pathlib.Path(__file__).parent / "golden" / "fsdp1_memory.json"


def frozen(model, config):
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not any(name.startswith(f) for f in config.get("frozen", []))
    return model


class Recording:
    def __init__(self, config):
        self.config, self.moments, self.handles = config, [], {}

    def total(self):
        return self.tracker.total - sum(size for size, made_by in self.tracker.alive.values() if made_by == "scalar")

    def moment(self, name, unit=-1):
        self.moments.append([name, unit, self.total()])

    def __enter__(self):                     # a block runs: inside backward that is a recomputation
        self.tracker.recompute_depth += 1

    def __exit__(self, *_):
        self.tracker.recompute_depth -= 1

    def patched(self, stack):
        def patch(where, name, before_name):
            original = getattr(where, name)

            def call(*args, **kwargs):
                handle = next(a for a in args if a in self.handles)
                out = original(*args, **kwargs)
                self.moment(before_name, self.handles[handle])
                return out
            setattr(where, name, call)
            stack.callback(setattr, where, name, original)
        patch(_flat_param.FlatParamHandle, "_all_gather_flat_param", "gather")
        patch(_flat_param.FlatParamHandle, "_free_unsharded_flat_param", "free")
        original = _runtime_utils._post_backward_hook

        def reduced(state, handle, *args):
            original(state, handle, *args)
            if state._sync_gradients and handle.uses_sharded_strategy:
                self.moment("reduce", self.handles[handle])
        _runtime_utils._post_backward_hook = reduced
        stack.callback(setattr, _runtime_utils, "_post_backward_hook", original)

    def wrap(self, model, mesh):
        c = self.config
        options = {"device_mesh": mesh} if mesh else {}
        if (c["param_dtype"], c["reduce_dtype"]) != ("fp32", "fp32"):
            options["mixed_precision"] = MixedPrecision(param_dtype=DTYPES[c["param_dtype"]],
                                                        reduce_dtype=DTYPES[c["reduce_dtype"]])
        if c.get("input_gradients"):
            input_gradients(model.model.embed_tokens)
        if c.get("trained_outermost"):
            options |= dict(device_id=torch.device("cpu"), use_orig_params=c["use_orig_params"],
                            backward_prefetch=PREFETCH[c["backward_prefetch"]], forward_prefetch=c["forward_prefetch"])
            model, self.handles = trained_outermost(model, model.model.layers, c, options)
            return model
        if c["checkpoint"] and not c.get("reentrant"):
            for i in range(c["layers"]):
                model.model.layers[i] = checkpoint_wrapper(model.model.layers[i])
        for u, (name,) in enumerate(c["units"]):
            for i in range(c["layers"]) if c.get("reentrant") and not name else ():
                model.model.layers[i] = reentrant(model.model.layers[i])
            unit = FSDP(model.get_submodule(name), device_id=torch.device("cpu"), sharding_strategy=strategy(c, u),
                        use_orig_params=c["use_orig_params"],
                        backward_prefetch=PREFETCH[c["backward_prefetch"]], forward_prefetch=c["forward_prefetch"],
                        **options)
            self.handles[unit._handle] = u
            if name:
                setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], unit)
        return unit

    def run(self):
        c, result = self.config, {}
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=c["shard"] * c["replicate"])
        hybrid = c["replicate"] > 1 and c["shard"] > 1
        mesh = init_device_mesh("cpu", (c["replicate"], c["shard"]),
                                mesh_dim_names=("replicate", "shard")) if hybrid else None
        freqs = torch.zeros(c["seq_len"], 1, c["hidden"] // c["heads"] // 2, dtype=torch.complex64)
        self.tracker = Tracker(None)
        self.tracker.constants = [freqs.untyped_storage()]
        gc.collect()
        gc.disable()
        with contextlib.ExitStack() as stack:
            stack.callback(gc.enable)
            stack.callback(dist.destroy_process_group)
            stack.enter_context(self.tracker)
            self.patched(stack)
            model = self.wrap(frozen(Llama(c, lambda: self), c), mesh)
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            for step in range(3):
                gc.collect()
                self.moments = []
                self.tracker.reset_peak()
                self.step(model, optimizer, freqs)
                peak = self.tracker.peak - self.tracker.at_peak[CATEGORIES.index("scalar")]
                # The first forward also makes every tensor that FSDP keeps for later once, and frees it: no part of the
                # comparison.
                if step > 0:
                    result["second" if step == 1 else "third"] = {"peak": peak, "moments": self.moments}
            model = optimizer = None
        assert result["second"] == result["third"], c["name"]
        return {"config": c, "steady": result["third"]}

    def step(self, model, optimizer, freqs):
        c = self.config
        optimizer.zero_grad()
        self.moment("zero")
        for m in range(c["micro_batches"]):
            last = m + 1 == c["micro_batches"]
            with contextlib.nullcontext() if last or c["grad_sync"] == "every" else model.no_sync():
                ids = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
                targets = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
                pred = model(ids, freqs)
                loss = F.cross_entropy(pred.flatten(0, 1).float(), targets.flatten())
                del pred
                self.moment("forward")
                loss.backward()
            del ids, targets, loss
            self.moment("backward")
        optimizer.step()
        self.moment("step")


def configs():
    base = dict(layers=3, vocab=1000, hidden=128, inner=344, heads=4, kv_heads=2, tied=False, sequences=2, seq_len=32,
                shard=8, replicate=1,
                reshard="auto", param_dtype="fp32", reduce_dtype="fp32", micro_batches=1, grad_sync="every",
                checkpoint=False,
                forward_prefetch=False, backward_prefetch="pre", use_orig_params=True)
    odd = dict(vocab=997, hidden=140, inner=339, heads=5, kv_heads=1)
    bf16 = dict(param_dtype="bf16")

    def case(name, root=False, **changes):
        c = dict(base, name=name, **changes)
        return dict(c, units=([] if root else [[f"model.layers.{i}"] for i in range(c["layers"])]) + [[""]])

    def frozen_mlp(name, layers, **changes):
        c, modules = case(name, **changes), [f"model.layers.{i}.mlp" for i in layers]
        return dict(c, units=[[m] for m in modules] + c["units"], frozen=modules)

    def again(name, **changes):
        return case(name, checkpoint=True, reentrant=True, **changes)

    def adapted(name, **changes):           # units that are trained inside of frozen ones, as adapters are
        c = again(name, **changes)
        trained = [f"model.layers.{i}.{m}" for i in range(c["layers"])
                   for m in ("input_layernorm", "post_attention_layernorm", "mlp")]
        frozen = ["model.embed_tokens", "lm_head", *(f"model.layers.{i}.self_attn" for i in range(c["layers"]))]
        units = [[m] for m in trained] + c["units"]
        return dict(c, input_gradients=True, units=units[:-1] + [["model.norm"]] + units[-1:], frozen=frozen)

    def outermost(name, **changes):
        c = case(name, **changes)
        frozen = ["model.embed_tokens", "lm_head", *(f"model.layers.{i}.self_attn" for i in range(c["layers"]))]
        # Without them PyTorch saves less for the first norm, which the facts of norms do not say.
        return dict(c, trained_outermost=True, input_gradients=True, units=c["units"] + [[""]], frozen=frozen)
    return [
        case("full-shard"),
        case("flat", use_orig_params=False),
        case("odd", **odd),
        case("odd-flat", **odd, use_orig_params=False),
        case("grad-op", reshard="false"),
        case("post", backward_prefetch="post"),
        case("no-prefetch", backward_prefetch="none"),
        case("forward-prefetch", forward_prefetch=True, layers=5),
        case("root", root=True),
        case("small-batch", sequences=1, seq_len=2),
        case("small-batch-forward-prefetch", sequences=1, seq_len=2, forward_prefetch=True),
        case("tied", tied=True),
        case("bf16", **bf16, sequences=1, seq_len=2),
        case("bf16-reduce-bf16", **bf16, reduce_dtype="bf16", sequences=1, seq_len=2),
        case("bf16-odd-flat", **bf16, **odd, use_orig_params=False, sequences=1, seq_len=2),
        case("accumulate-every", micro_batches=3),
        case("accumulate-last", micro_batches=3, grad_sync="last"),
        case("accumulate-last-grad-op", micro_batches=2, grad_sync="last", reshard="false"),
        case("accumulate-every-bf16", micro_batches=2, **bf16, reduce_dtype="bf16", sequences=1, seq_len=2),
        case("hybrid", shard=2, replicate=4),
        case("hybrid-bf16", shard=2, replicate=4, **bf16, reduce_dtype="bf16", sequences=1, seq_len=2),
        case("no-shard", shard=1, replicate=4),
        case("no-shard-bf16", shard=1, replicate=4, **bf16, reduce_dtype="bf16", sequences=1, seq_len=2),
        case("no-shard-accumulate", shard=1, replicate=4, micro_batches=2, **bf16, sequences=1, seq_len=2),
        case("checkpoint", checkpoint=True),
        case("64-ranks", shard=64, **odd),
        # Products alone: PyTorch saves less for a norm whose weight is frozen, which the facts of norms do not say.
        frozen_mlp("frozen", [1]),
        frozen_mlp("frozen-flat-grad-op", [0, 2], use_orig_params=False, reshard="false"),
        frozen_mlp("frozen-bf16-last", [1], micro_batches=2, grad_sync="last", **bf16, sequences=1, seq_len=2),
        case("frozen-checkpoint", frozen=["model.layers.1"], checkpoint=True),
        again("reentrant"),
        again("reentrant-no-prefetch", backward_prefetch="none"),
        again("reentrant-grad-op", reshard="false"),
        again("reentrant-last", micro_batches=2, grad_sync="last"),
        again("reentrant-bf16", **bf16, sequences=1, seq_len=2),
        again("reentrant-no-shard", shard=1, replicate=4),
        adapted("reentrant-adapters"),
        adapted("reentrant-adapters-bf16", **bf16, reduce_dtype="bf16", sequences=1, seq_len=2),
        adapted("reentrant-adapters-last", micro_batches=2, grad_sync="last"),
        outermost("outermost"),
        outermost("outermost-no-prefetch", backward_prefetch="none", use_orig_params=False),
        outermost("outermost-grad-op-last", reshard="false", micro_batches=2, grad_sync="last"),
        outermost("outermost-checkpoint", checkpoint=True, forward_prefetch=True),
        outermost("outermost-checkpoint-bf16", checkpoint=True, forward_prefetch=True, **bf16, reduce_dtype="bf16",
                  sequences=1, seq_len=2),
    ]


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    chosen = [c for c in configs() if "--only" not in sys.argv or c["name"] in sys.argv]
    result = {"_about": "Bytes that PyTorch's FullyShardedDataParallel has allocated on rank 0 at moments of a later "
                        "training step. "
                        "Recorded by tests/torch/record_fsdp1_memory.py, which says what the moments are.",
              "torch": torch.__version__.split("+")[0], "cases": [Recording(c).run() for c in chosen]}
    text = golden_file.text_of(result)
    if "--only" in sys.argv:
        print(text)
        return 0
    return golden_file.finish(GOLDEN, text)


if __name__ == "__main__":
    sys.exit(main())
