#!/usr/bin/env python3
"""Records how much memory PyTorch's fully_shard holds, by category, at defined moments of two training steps of small
Llamas.

One process plays rank 0 of a fake process group (8, 64, 128 ranks and others); tensors are fake CPU tensors, so sizes
are real and no memory is. A dispatch mode sees every storage appear, change size and go away, and names it by what owns
it or by the code that made it. torch.distributed._tools.fsdp2_mem_tracker runs beside it where it can: its total must
be ours. Usage:

    python tests/torch/record_memory.py            compares with tests/torch/golden/fsdp2_memory.json, prints what
      changed
    python tests/torch/record_memory.py --write    records it again

Moments, [name, unit, bytes by category], taken just after: init (once), zero (zero_grad), gather (a unit's all-gather
was issued), unshard (its copy-out), reshard (its parameters were freed), reduce (its post-backward, where gradients are
reduced), forward (of a micro-batch, loss included), backward (of a micro-batch), step (of the optimizer). Of the first
step: those of no unit.
"""
import functools
import gc
import json
import pathlib
import sys
import warnings
import weakref

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module
from torch.distributed.fsdp._fully_shard import _fully_shard as fully_shard_module
from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import golden_file
from autograd_engine import as_engine

GOLDEN = pathlib.Path(__file__).parent / "golden" / "fsdp2_memory.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CATEGORIES = ["sharded_param", "optimizer", "optimizer_step", "sharded_grad", "cast_shard", "all_gather",
              "unsharded_param",
              "post_forward_shard", "unsharded_grad", "reduce_scatter", "reduce_output", "activation", "temp", "input",
              "scalar"]


# ---- the model: Llama as torchtitan computes it, with the module names of transformers ----

class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c["heads"], c["kv_heads"], c["hidden"] // c["heads"]
        self.q_proj = nn.Linear(c["hidden"], c["hidden"], bias=False)
        self.k_proj = nn.Linear(c["hidden"], self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(c["hidden"], self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(c["hidden"], c["hidden"], bias=False)

    def rotate(self, x, freqs):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * freqs).flatten(3).type_as(x)

    def repeat(self, x):
        n = self.heads // self.kv_heads
        if n == 1:
            return x
        return x[:, :, :, None, :].expand(-1, -1, -1, n, -1).reshape(*x.shape[:2], self.heads, self.head_dim)

    def forward(self, x, freqs):
        q, k, v = (p(x).view(*x.shape[:2], -1, self.head_dim) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = self.rotate(q, freqs), self.repeat(self.rotate(k, freqs)), self.repeat(v)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(x.shape))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden"], c["inner"], bias=False)
        self.up_proj = nn.Linear(c["hidden"], c["inner"], bias=False)
        self.down_proj = nn.Linear(c["inner"], c["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c, recomputing):
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = nn.RMSNorm(c["hidden"], eps=1e-5)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden"], eps=1e-5)
        self.recomputing = recomputing

    def forward(self, x, freqs):
        with self.recomputing():
            h = x + self.self_attn(self.input_layernorm(x), freqs)
            return h + self.mlp(self.post_attention_layernorm(h))


class Decoder(nn.Module):
    def __init__(self, c, recomputing):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab"], c["hidden"])
        self.layers = nn.ModuleList(Block(c, recomputing) for _ in range(c["layers"]))
        self.norm = nn.RMSNorm(c["hidden"], eps=1e-5)

    def forward(self, ids, freqs):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, freqs)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self, c, recomputing):
        super().__init__()
        self.model = Decoder(c, recomputing)
        self.lm_head = nn.Linear(c["hidden"], c["vocab"], bias=False)
        if c["tied"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids, freqs):
        return self.lm_head(self.model(ids, freqs))


# ---- the tracker ----

def storages(tensor):
    return [] if tensor is None else [(tensor._local_tensor if isinstance(tensor, DTensor) else tensor)
                                      .untyped_storage()]


class Tracker(TorchDispatchMode):
    """Every storage that is alive: its bytes, and a name for the code that made it."""

    def __init__(self, fake_mode):
        super().__init__()
        self.fake_mode = fake_mode
        self.alive = {}                      # id of the storage object -> [bytes, made by]
        self.refs = {}
        self.total = self.peak = 0
        self.at_peak, self.making, self.owners = None, ["activation"], lambda: []
        self.recompute_depth = self.propagating = 0
        self.constants = []                  # tables of angles: no part of the comparison
        self.resize = torch.UntypedStorage.resize_

    def __enter__(self):
        tracker, resize = self, self.resize

        def patched(storage, size):
            resize(storage, size)
            tracker.see(storage, "activation")
            tracker.note_peak()
        torch.UntypedStorage.resize_ = patched
        return super().__enter__()

    def __exit__(self, *args):
        torch.UntypedStorage.resize_ = self.resize
        return super().__exit__(*args)

    def see(self, storage, made_by):
        key = id(storage)
        if key not in self.alive:
            self.alive[key] = [0, made_by]
            self.refs[key] = weakref.ref(storage, functools.partial(self.gone, key))
        self.total += storage.nbytes() - self.alive[key][0]
        self.alive[key][0] = storage.nbytes()

    def gone(self, key, _):
        self.total -= self.alive.pop(key)[0]
        del self.refs[key]

    def note_peak(self):
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, self.snapshot()

    def reset_peak(self):
        self.peak, self.at_peak = 0, None
        self.note_peak()

    def snapshot(self):
        names = {k: made_by for k, (_, made_by) in self.alive.items()}
        for category, tensor in self.owners():
            for storage in storages(tensor):
                names[id(storage)] = category
        sizes = dict.fromkeys(CATEGORIES, 0)
        for k, (size, _) in self.alive.items():
            sizes[names[k]] += size
        return list(sizes.values())

    def made_by(self):
        if self.making[-1] != "activation":
            return self.making[-1]
        backward = torch._C._current_graph_task_id() != -1 and self.recompute_depth == 0
        return "temp" if backward else "activation"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t is DTensor for t in types):
            return NotImplemented            # DTensor asks again with its local tensors
        func = as_engine(func, args)
        out = func(*args, **(kwargs or {}))
        if self.propagating or active_fake_mode() is not self.fake_mode:
            return out                       # DTensor works out shapes of whole tensors
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage() not in self.constants:
                self.see(t.untyped_storage(), "scalar" if t.dim() == 0 else self.made_by())
        self.note_peak()
        return out


class Making:
    """Within it, new storages are named `what`."""

    def __init__(self, tracker, what):
        self.tracker, self.what = tracker, what

    def __enter__(self):
        self.tracker.making.append(self.what)

    def __exit__(self, *_):
        self.tracker.making.pop()


# ---- one configuration ----

class Recording:
    def __init__(self, config):
        self.config, self.moments, self.groups, self.optimizer, self.inputs = config, [], {}, None, []

    def owners(self):
        for group in self.groups:
            for p in group.fsdp_params:
                yield "sharded_param", p._sharded_param_data
                yield "sharded_grad", p.sharded_param.grad
                yield "post_forward_shard", getattr(p, "_sharded_post_forward_param_data", None)
                for t in p.all_gather_outputs:
                    yield "unsharded_param", t
                yield "unsharded_grad", getattr(p, "_unsharded_param", self.nothing).grad
        for state in self.optimizer.state.values() if self.optimizer else []:
            for k, t in state.items():
                yield "optimizer_step" if k == "step" else "optimizer", t
        for t in self.inputs:
            yield "input", t

    def moment(self, name, unit=-1):
        self.moments.append([name, unit, self.tracker.snapshot()])

    def patches(self):
        """(object, attribute, replacement) that name storages and take moments around FSDP's own functions."""
        group, tracker = group_module.FSDPParamGroup, self.tracker

        def unshard(original, g, *args, **kwargs):
            pending = g._all_gather_result is not None
            original(g, *args, **kwargs)
            if g._all_gather_result is not None and not pending and g._all_gather_process_group.size() > 1:
                self.moment("gather", self.groups[g])

        def wait_for_unshard(original, g):
            pending = g._all_gather_result is not None
            with Making(tracker, "cast_shard"):      # one rank: casts; what stays is owned by the parameters
                original(g)
            if pending:
                self.moment("unshard", self.groups[g])

        def free(original, g):
            was = g._sharded_state.name
            original(g)
            if was == "UNSHARDED":
                self.moment("reshard", self.groups[g])

        def post_backward(original, g, *args):
            had = any(getattr(p, "_unsharded_param", self.nothing).grad is not None for p in g.fsdp_params)
            original(g, *args)
            if had and g.reduce_grads:
                self.moment("reduce", self.groups[g])

        def making(what):
            def call(original, *args, **kwargs):
                with Making(tracker, what):
                    return original(*args, **kwargs)
            return call

        def propagate(original, *args, **kwargs):
            tracker.propagating += 1
            try:
                return original(*args, **kwargs)
            finally:
                tracker.propagating -= 1

        def take_gradients(original, g):     # they are gradients still when the parameters own them no more
            for p in g.fsdp_params:
                for storage in storages(getattr(p, "_unsharded_param", self.nothing).grad):
                    tracker.alive[id(storage)][1] = "unsharded_grad"
            return original(g)

        def set_grad_dtypes(original, g, *args, **kwargs):
            with Making(tracker, "unsharded_grad"):
                return original(g, *args, **kwargs)

        def patch(where, name, wrapper):
            original = getattr(where, name)
            return where, name, functools.wraps(original)(lambda *a, **k: wrapper(original, *a, **k))
        return [
            patch(group, "unshard", unshard), patch(group, "wait_for_unshard", wait_for_unshard),
            patch(group, "_to_sharded", free),
            patch(group, "_to_sharded_post_forward", free), patch(group, "post_backward", post_backward),
            patch(group, "_set_unsharded_grad_dtypes", set_grad_dtypes),
            patch(group, "_take_unsharded_grads_to_reduce", take_gradients),
            patch(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate),
            patch(group_module, "foreach_all_gather", making("cast_shard")),
            patch(group_module, "foreach_reduce", making("reduce_output")),
            patch(collectives.DefaultAllGather, "allocate", making("all_gather")),
            patch(collectives.DefaultReduceScatter, "allocate", self.allocate_reduce),
        ]

    def allocate_reduce(self, original, comm, size, **kwargs):
        self.reduce_calls += 1               # foreach_reduce asks for the input, then for the output
        with Making(self.tracker, "reduce_scatter" if self.reduce_calls % 2 else "reduce_output"):
            return original(comm, size, **kwargs)

    def recomputing(self):
        return self                          # a block runs: inside backward that is a recomputation

    def __enter__(self):
        self.tracker.recompute_depth += 1

    def __exit__(self, *_):
        self.tracker.recompute_depth -= 1

    def shard(self, model, mesh):
        c = self.config
        reshard = {"auto": None, "true": True,
                   "false": False}[c["reshard"]] if c["reshard"].isalpha() else int(c["reshard"])
        if c["checkpoint"]:
            for i in range(c["layers"]):
                model.model.layers[i] = checkpoint_wrapper(model.model.layers[i])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(tuple(c.get("frozen", [])) or ("-",)))
        dims = {id(p): c["shard_dims"][n] for n, p in model.named_parameters() if n in c.get("shard_dims", {})}
        placement = dict(shard_placement_fn=lambda p: Shard(dims[id(p)]) if id(p) in dims else None) if dims else {}
        if self.own_mesh is not None:
            placement = dict(shard_placement_fn=self.own_placement(model))
        order = []
        small = fully_shard_module._get_post_forward_mesh_info

        def real_tensors(*args):             # a mesh of ranks is made of real tensors
            with unset_fake_temporarily():
                return small(*args)
        fully_shard_module._get_post_forward_mesh_info = real_tensors
        for u, names in enumerate(c["units"]):
            if u in self.further:
                continue
            modules = [model.get_submodule(n) for n in names]
            own = {"param_dtype": c["param_dtype"], "reduce_dtype": c["reduce_dtype"],
                   **c.get("unit_dtypes", {}).get(names[0], {})}
            fully_shard(modules[0] if len(modules) == 1 else modules, mesh=mesh, reshard_after_forward=reshard,
                        mp_policy=MixedPrecisionPolicy(**{key: DTYPES[dtype] for key, dtype in own.items()}),
                        **placement)
            for group in fully_shard.state(modules[0])._fsdp_param_groups:
                own = next((k for k, host in self.further.items() if host == names[0]), u)
                self.groups[group] = own if group.mesh_info.mesh == self.own_mesh else u
            order.append(modules)
            if names[0] in c.get("not_unsharded_in_backward", []):
                modules[0].set_unshard_in_backward(False)
        if c.get("reduce_scatter_buffers", 1) > 1:
            model.set_reduce_scatter_max_input_buffers(c["reduce_scatter_buffers"])
        fully_shard_module._get_post_forward_mesh_info = small
        lists = order[-1:] + order[:-1]      # execution order: the root first
        for i, modules in enumerate(lists):
            if c["forward_prefetch"]:
                modules[0].set_modules_to_forward_prefetch([m[0] for m in lists[i + 1:i + 1 + c["forward_prefetch"]]])
            if c["backward_prefetch"] > 1:   # in the order in which units end: the root last
                j = (i - 1) % len(lists)
                modules[0].set_modules_to_backward_prefetch([m[0]
                    for m in reversed(order[max(0, j - c["backward_prefetch"]):j])])

    @property
    def further(self):
        """Further groups of units (place among the units: first module of that unit), over another mesh."""
        return {int(u): host for u, host in self.config.get("further", {}).items()}

    def own_placement(self, model):
        of_own = {id(p) for u in self.further for n in self.config["units"][u]
                  for p in model.get_submodule(n).parameters()}
        info = HSDPMeshInfo(self.own_mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
        return lambda p: ShardPlacementResult(None, info) if id(p) in of_own else None

    def run(self):
        c = self.config
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=c["shard"] * c["replicate"])
        try:
            mesh = (init_device_mesh("cpu", (c["replicate"], c["shard"]), mesh_dim_names=("replicate", "shard"))
                    if c["replicate"] > 1
                    else init_device_mesh("cpu", (c["shard"],), mesh_dim_names=("shard",)))
            self.own_mesh = None
            if self.further:
                self.own_mesh = init_device_mesh("cpu", (c["shard"] * c["replicate"] // c["own_shard"], c["own_shard"]),
                                                 mesh_dim_names=("own_replicate", "own_shard"))
            fake = FakeTensorMode()
            with fake:
                return self.train(mesh, fake)
        finally:
            dist.destroy_process_group()

    def build(self, mesh, fake):
        c = self.config
        self.nothing = nn.Parameter(torch.empty(0))
        self.freqs = torch.empty(c["seq_len"], 1, c["hidden"] // c["heads"] // 2, dtype=torch.complex64)
        self.tracker, self.reduce_calls, self.groups = Tracker(fake), 0, {}
        self.tracker.constants = [self.freqs.untyped_storage()]

    def make_optimizer(self, model):
        parameters = list(model.parameters())
        if self.own_mesh is not None:        # a fused step takes parameters of one mesh
            own = [p for p in parameters if p.device_mesh == self.own_mesh]
            parameters = [{"params": own}, {"params": [p for p in parameters if p.device_mesh != self.own_mesh]}]
        self.optimizer = torch.optim.AdamW(parameters,
            **{"single": {"foreach": False}, "fused": {"fused": True}}[self.config["adamw"]])

    def train(self, mesh, fake):
        self.build(mesh, fake)
        patches, saved, result = self.patches(), [], {}
        for where, name, replacement in patches:
            saved.append((where, name, where.__dict__.get(name)))
            setattr(where, name, replacement)
        gc.collect()
        gc.disable()
        try:
            with self.tracker:
                model = Llama(self.config, self.recomputing)
                self.shard(model, mesh)
                self.tracker.owners = self.owners
                gc.collect()
                init = self.tracker.snapshot()
                self.make_optimizer(model)
                for step in ("first", "steady"):
                    self.moments = []
                    self.tracker.reset_peak()
                    self.step(model, lambda inputs: None)
                    gc.collect()
                    moments = [m for m in self.moments if step == "steady" or m[1] < 0]
                    result[step] = {"peak": self.tracker.peak, "at_peak": self.tracker.at_peak, "moments": moments}
        finally:
            gc.enable()
            for where, name, original in saved:
                delattr(where, name) if original is None else setattr(where, name, original)
        self.optimizer, self.inputs = None, []
        # its hooks take a group's modules apart
        # knows one group per unit
        if self.config["layers"] < 8 and all(len(u) == 1 for u in self.config["units"]) and not self.further:
            self.compare_with_pytorchs_tracker(mesh, fake, max(result[step]["peak"] for step in result))
        return {"config": self.config, "init": init, **result}

    def compare_with_pytorchs_tracker(self, mesh, fake, peak):
        """Its peak over both steps, without the table of angles, is ours. It runs after us: the first time, it takes
        the shapes that DTensor works out for memory."""
        self.build(mesh, fake)
        model = Llama(self.config, self.recomputing)
        self.shard(model, mesh)
        self.make_optimizer(model)
        tracker = FSDPMemTracker(model, self.optimizer)
        with tracker:
            for _ in range(2):
                self.step(model, tracker.track_inputs, tracker.reset_mod_stats)
        theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"] - self.freqs.nbytes
        # Its post-backward hook holds a unit's last gradient; where the root's reduction is the peak, that shows.
        held = self.config["vocab"] * self.config["hidden"] * DTYPES[self.config["param_dtype"]].itemsize
        if theirs - peak not in (0, held):
            raise AssertionError(f"{self.config['name']}: our peak {peak}, that of PyTorch's own tracker {theirs}")

    def step(self, model, see_inputs, after_micro_batch=lambda: None):
        c = self.config
        self.optimizer.zero_grad()
        self.moment("zero")
        for m in range(c["micro_batches"]):
            last = m + 1 == c["micro_batches"]
            if c["grad_sync"] == "last":
                model.set_requires_gradient_sync(last)
            elif c["grad_sync"] == "reduce-scatter-only":
                model.set_requires_all_reduce(last)
            if not c.get("reshard_after_backward", True):
                model.set_reshard_after_backward(last)
            with Making(self.tracker, "input"):
                self.inputs = [torch.empty(c["sequences"], c["seq_len"], dtype=torch.int64) for _ in range(2)]
            see_inputs(tuple(self.inputs))
            pred = model(self.inputs[0], self.freqs)
            loss = F.cross_entropy(pred.flatten(0, 1).float(), self.inputs[1].flatten())
            del pred
            self.moment("forward")
            loss.backward()
            self.inputs = []
            after_micro_batch()
            self.moment("backward")
        with Making(self.tracker, "temp"):
            self.optimizer.step()
        self.moment("step")


def configs():
    base = dict(layers=3, vocab=1000, hidden=128, inner=344, heads=4, kv_heads=2, tied=False, sequences=2, seq_len=32,
                shard=8, replicate=1,
                wrap="block", group=1, reshard="auto", param_dtype="bf16", reduce_dtype="fp32", micro_batches=1,
                grad_sync="every",
                checkpoint=False, forward_prefetch=0, backward_prefetch=1, adamw="fused")
    odd = dict(vocab=997, hidden=140, inner=339, heads=5, kv_heads=1)
    full = dict(param_dtype="fp32")
    llama3 = dict(layers=32, vocab=128256, hidden=4096, inner=14336, heads=32, kv_heads=8)

    def case(name, **changes):
        c = dict(base, name=name, **changes)
        blocks = [f"model.layers.{i}" for i in range(c["layers"])]
        units = [blocks[i:i + c["group"]] for i in range(0, len(blocks), c["group"])]
        if c["wrap"] == "titan":
            units = [["model.embed_tokens"]] + units + [["model.norm", "lm_head"]]
        if "own_shard" in c:                 # of each block's feed-forward, as of experts
            units = [u for b in units for u in ([[f"{b[0]}.mlp"], b] if b[0] in blocks else [b])]
            c["further"] = {str(u): names[0][:-len(".mlp")] for u, names in enumerate(units)
                            if names[0].endswith(".mlp")}
        c["units"] = ([] if c["wrap"] == "root" else units) + [[""]]
        return c
    return [
        case("bf16"),
        case("fp32", **full),
        case("bf16-reduce-bf16", reduce_dtype="bf16"),
        case("odd", **odd),
        case("odd-fp32", **odd, **full),
        case("titan", wrap="titan"),
        case("titan-odd-fp32", wrap="titan", **odd, **full),
        case("root", wrap="root"),
        case("grouped", layers=4, group=2),
        case("reshard", reshard="true"),
        case("reshard-over-2", reshard="2"),
        case("reshard-over-4-odd-fp32", reshard="4", **odd, **full),
        case("keep", reshard="false"),
        case("keep-fp32", reshard="false", **full),
        case("hsdp-fp32", shard=2, replicate=4, **full),
        case("hsdp", shard=2, replicate=4),
        case("hsdp-reduce-bf16", shard=2, replicate=4, reduce_dtype="bf16"),
        case("accumulate-every", micro_batches=3),
        case("accumulate-last", micro_batches=3, grad_sync="last"),
        case("accumulate-last-fp32", micro_batches=3, grad_sync="last", **full),
        case("hsdp-reduce-scatter-only", shard=2, replicate=4, micro_batches=3, grad_sync="reduce-scatter-only"),
        case("checkpoint", checkpoint=True),
        case("checkpoint-fp32", checkpoint=True, **full),
        case("forward-prefetch-1", layers=5, forward_prefetch=1),
        case("forward-prefetch-2", layers=5, forward_prefetch=2),
        case("backward-prefetch-2", layers=5, backward_prefetch=2, **full),
        case("tied", tied=True),
        case("tied-fp32", tied=True, **full),
        case("64-ranks", shard=64),
        case("128-ranks-odd", shard=128, **odd),
        case("single-tensor-adamw", adamw="single", sequences=1, seq_len=4, **full),
        case("one-rank", shard=1),
        case("one-rank-accumulate-last", shard=1, micro_batches=2, grad_sync="last"),
        case("one-rank-fp32", shard=1, **full),
        case("titan-checkpoint-reshard", wrap="titan", checkpoint=True, reshard="true"),
        case("tied-accumulate-last", tied=True, micro_batches=2, grad_sync="last"),
        case("tied-accumulate-last-fp32", tied=True, micro_batches=3, grad_sync="last", **full),
        case("tied-accumulate-last-reduce-bf16", tied=True, micro_batches=2, grad_sync="last", reduce_dtype="bf16"),
        case("accumulate-every-reduce-bf16", micro_batches=2, reduce_dtype="bf16"),
        case("hsdp-accumulate-every-reduce-bf16", shard=2, replicate=4, micro_batches=2, reduce_dtype="bf16"),
        case("accumulate-whole", micro_batches=3, grad_sync="last", reshard="false", reshard_after_backward=False),
        case("accumulate-whole-fp32", micro_batches=3, grad_sync="last", reshard="false", reshard_after_backward=False,
             **full),
        case("reduce-scatter-buffers-3", layers=5, reduce_scatter_buffers=3),
        case("embedding-not-unsharded", wrap="titan", reshard="true", not_unsharded_in_backward=["model.embed_tokens"]),
        case("columns", shard_dims={"model.layers.1.self_attn.o_proj.weight": 1,
                                    "model.layers.2.mlp.down_proj.weight": 1}),
        case("columns-fp32", wrap="titan", shard_dims={"lm_head.weight": 1, "model.layers.2.mlp.down_proj.weight": 1},
             **full),
        case("frozen", wrap="titan", frozen=["model.embed_tokens", "model.layers.0."]),
        case("frozen-products-fp32", frozen=["model.layers.1.mlp", "model.layers.2.self_attn.q_proj"], **full),
        case("fp16", param_dtype="fp16", reduce_dtype="fp16"),
        case("dtypes-fp32-block", unit_dtypes={"model.layers.1": full}),
        case("dtypes-bf16-block", unit_dtypes={"model.layers.1": dict(param_dtype="bf16")}, reshard="true", **full),
        case("dtypes-fp16-first", unit_dtypes={"model.layers.0": dict(param_dtype="fp16", reduce_dtype="fp16")},
             reshard="true", **full),
        case("dtypes-fp32-head", wrap="titan", unit_dtypes={"model.norm": full}),
        case("dtypes-output", unit_dtypes={"model.layers.2": dict(full, output_dtype="bf16")}),
        case("dtypes-output-inside", unit_dtypes={"model.layers.1": dict(full, output_dtype="bf16")}, reshard="true"),
        case("dtypes-fp32-embedding", wrap="titan", unit_dtypes={"model.embed_tokens": full}, **odd),
        case("dtypes-checkpoint", unit_dtypes={"model.layers.1": full}, checkpoint=True, reshard="true"),
        case("dtypes-accumulate-last", unit_dtypes={"model.layers.1": full}, micro_batches=2, grad_sync="last"),
        case("dtypes-hsdp-odd", unit_dtypes={"model.layers.1": dict(full, reduce_dtype="bf16")}, shard=2, replicate=4,
             **odd),
        case("dtypes-reduce", unit_dtypes={"model.layers.1": dict(reduce_dtype="bf16")}),
        case("own-8-2", own_shard=2),
        case("own-4-2-fp32", shard=4, own_shard=2, **full),
        case("own-titan-reshard", wrap="titan", own_shard=4, reshard="true"),
        case("own-keep", own_shard=2, reshard="false"),
        case("own-checkpoint", own_shard=2, checkpoint=True),
        case("own-accumulate-every", own_shard=2, micro_batches=3),
        case("own-accumulate-last", own_shard=2, micro_batches=3, grad_sync="last"),
        case("own-hsdp-odd", shard=4, replicate=2, own_shard=2, **odd),
        case("own-reduce-scatter-only", own_shard=2, micro_batches=3, grad_sync="reduce-scatter-only"),
        # The sizes of Llama-3-8B, at 64 and 128 ranks.
        case("llama3-8b", **llama3, wrap="titan", sequences=1, seq_len=4096, shard=64, checkpoint=True),
        case("llama3-8b-hsdp", **llama3, sequences=1, seq_len=2048, shard=8, replicate=16),
    ]


def document():
    warnings.filterwarnings("ignore")
    return {"_about": "Bytes that PyTorch's fully_shard holds on rank 0, by category, at moments of a first and of a "
                      "later training step. "
                      "Recorded by tests/torch/record_memory.py, which says what the moments are.",
            "torch": torch.__version__.split("+")[0], "categories": CATEGORIES,
            "cases": [Recording(c).run() for c in configs()]}


def text_of(document):
    def case(c):
        rows = [json.dumps(k) + ": " + json.dumps(v) for k, v in c.items() if k in ("config", "init")]
        for step in ("first", "steady"):
            s = c[step]
            moments = ",\n     ".join(json.dumps(m, separators=(",", ":")) for m in s["moments"])
            peak = f'"peak": {s["peak"]}, "at_peak": {json.dumps(s["at_peak"])}'
            rows.append(f'"{step}": {{{peak}, "moments": [\n     {moments}]}}')
        return "{" + ",\n   ".join(rows) + "}"
    return golden_file.text_of(document, case)


def main():
    text = text_of(document())
    return golden_file.finish(GOLDEN, text)


if __name__ == "__main__":
    sys.exit(main())
