"""Runs emitted PyTorch scripts of tensor plans on CPU ranks (gloo), beside the same model on one rank, unsharded.

    python run_tensor.py RANKS SCRIPT EXPECTED.json [SCRIPT EXPECTED.json ...]

EXPECTED.json: what run_emitted.py expects, and {"mesh": [replicate, shard, tensor], "tensor_dims": {parameter: dim or
null}, "collectives": [[kind, elements of the whole, dtype], ...], "tolerance": ..., "reference": whether the model is
the one that the script writes out}: the layouts that lowering uses, and what it issues over tensor ranks in one step.
Compared are units, placements and shapes of shards, weights put in place
by the plan's layout, losses and weights of three steps, and every collective of the last step. Exit codes as
run_emitted.py's.
"""
import importlib.util
import json
import os
import sys
import types

from run_emitted import fail, fsdp_units, plain, recomputed, start_ranks

STEPS = 3


def local_part(whole, dim, mesh, coordinate):
    """The part of a parameter that a rank of the plan holds: its part over the tensor ranks, then rows over the shards,
    in equal numbers but at the end."""
    (_, shard, tensor), (_, s, t) = mesh, coordinate
    part = whole if dim is None else whole.chunk(tensor, dim)[t]
    rows = -(-part.shape[0] // shard)
    return part[min(s * rows, part.shape[0]) : min((s + 1) * rows, part.shape[0])]


def check_placements(script, model, expected, whole, coordinate):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard
    replicate, _, tensor = expected["mesh"]
    for name, p in model.named_parameters():
        dim = expected["tensor_dims"][plain(name)]
        wanted = (_StridedShard(0, split_factor=tensor) if dim == 0 and tensor > 1 else Shard(0),
                  Replicate() if dim is None else Shard(dim))
        if replicate > 1:
            wanted = (Replicate(), *wanted)
        if p.placements != wanted:
            fail(f"{script}: {name} is placed {p.placements}, planned {wanted}")
        shape = local_part(whole[plain(name)], dim, expected["mesh"], coordinate).shape
        if p.to_local().shape != shape:
            fail(f"{script}: {name} has {tuple(p.to_local().shape)} here, planned {tuple(shape)}")


def largest_difference(a, b):
    return ((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item()


class Beside:
    """The script's own model, whole, trained on the sequences of all ranks."""

    def __init__(self, emitted, reference):
        import torch
        self.emitted, self.torch = emitted, torch
        torch.manual_seed(5)
        self.model = emitted.build_model(emitted.model_config(Arguments), reference)
        self.model = self.model.to(emitted.DTYPES[emitted.PLAN["master_dtype"]])
        with torch.no_grad():
            for p in self.model.parameters():
                p.normal_(0.0 if p.dim() > 1 else 1.0, 0.2)
        self.optimizer = emitted.make_optimizer(self.model)

    def step(self, batches):
        """batches: by micro-batch, of all data ranks."""
        self.optimizer.zero_grad()
        total, loss_sum = sum(len(b) for b in batches), 0.0
        for tokens in batches:
            loss = self.emitted.loss_of(self.model, tokens) * (len(tokens) / total)
            loss.backward()
            loss_sum += loss.item()
        if self.emitted.PLAN["clip_norm"] is not None:
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.emitted.PLAN["clip_norm"])
        self.optimizer.step()
        return loss_sum


class Arguments:
    tiny, blocks = False, 0


def run(script, expected, reference):
    import torch
    import torch.distributed as dist
    from record_tensor import TensorLog
    spec = importlib.util.spec_from_file_location("emitted", script)
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    if emitted.PLAN["param_dtype"] == "fp64":
        emitted.wide = lambda logits: logits             # for a comparison to the last digits
    replicate, shard, tensor = expected["mesh"]
    rank, tolerance = int(os.environ["RANK"]), expected["tolerance"]
    coordinate = rank // (shard * tensor), rank // tensor % shard, rank % tensor
    beside = Beside(emitted, reference)
    whole = {n: p.detach().clone() for n, p in beside.model.named_parameters()}
    materialize, train_step, seen = emitted.materialize, emitted.train_step, {"steps": 0}

    def as_planned(model, device):
        materialize(model, device)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.to_local().copy_(local_part(whole[plain(name)], expected["tensor_dims"][plain(name)],
                                              expected["mesh"], coordinate))
        seen["mesh"] = next(model.parameters()).device_mesh

    def both(model, optimizer, batches):
        seen["steps"] += 1
        mesh = seen["mesh"]
        groups = {mesh[n].get_group().group_name: n for n in mesh.mesh_dim_names}
        if seen["steps"] == STEPS:
            log = types.SimpleNamespace(events=[])
            with TensorLog(log, groups):
                loss = train_step(model, optimizer, batches)
            seen["collectives"] = [e[:3] for e in log.events if e[0].startswith("tensor ")]
        else:
            loss = train_step(model, optimizer, batches)
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, batches)
        if any(not torch.equal(a, b) for r, of_rank in enumerate(every)
               for a, b in zip(of_rank, every[r - r % tensor])):
            fail(f"{script}: ranks of one tensor group see different tokens")
        own = beside.step([torch.cat(parts) for parts in zip(*every[::tensor])])
        mean = loss.detach().clone().double()
        dist.all_reduce(mean)
        mean = mean.item() / dist.get_world_size()
        if not abs(mean - own) <= tolerance * abs(own):
            fail(f"{script}: step {seen['steps']}: the loss is {mean!r}, on one rank {own!r}")
        return loss

    def inspect(model):
        check_placements(script, model, expected, whole, coordinate)
        seen["units"], seen["recomputed"] = fsdp_units(model), recomputed(model)
        one = dict(beside.model.named_parameters())
        for name, p in model.named_parameters():
            error = largest_difference(p.full_tensor().detach(), one[plain(name)].detach())
            moved = largest_difference(one[plain(name)].detach(), whole[plain(name)])
            if not error <= 100 * tolerance or not moved > 1e-5:
                fail(f"{script}: {name} differs by {error} from one rank's; it was trained by {moved}")

    emitted.materialize, emitted.train_step = as_planned, both
    losses = emitted.main(["--steps", str(STEPS), "--cpu"] + ["--reference"] * reference, inspect=inspect)
    units = sorted([sorted(u["modules"]), sorted(u["parameters"]), u["reshard"]]
                   for u in expected["units"] if u["parameters"])
    if seen["units"] != units:
        fail(f"{script}: PyTorch's units are\n{json.dumps(seen['units'])}\nthe plan's are\n{json.dumps(units)}")
    if seen["recomputed"] != sorted(expected["checkpointed"]):
        fail(f"{script}: recomputed are {seen['recomputed']}, planned are {expected['checkpointed']}")
    if seen["collectives"] != expected["collectives"]:
        different = [p for p in zip(seen["collectives"], expected["collectives"]) if p[0] != p[1]]
        fail(f"{script}: {len(seen['collectives'])} collectives over tensor ranks, planned "
             f"{len(expected['collectives'])}; different: {different[:5]}")
    if rank == 0:
        print(f"{os.path.basename(script)}: {len(losses)} steps as on one rank, {len(seen['collectives'])} collectives "
              "over tensor ranks as planned", flush=True)


def worker(arguments):
    import record_tensor                     # what all scripts need is imported once
    del record_tensor
    for (script, expected_file), port in zip(arguments, os.environ["RUN_EMITTED_PORTS"].split()):
        child = os.fork()                    # DTensor remembers process groups: a process of its own for each script
        if child == 0:
            os.environ["MASTER_PORT"] = port
            with open(expected_file) as f:
                expected = json.load(f)
            run(script, expected, expected["reference"])
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            fail(f"{script}: rank {os.environ['RANK']} failed")


def main():
    arguments = list(zip(sys.argv[2::2], sys.argv[3::2]))
    if "RANK" in os.environ:
        return worker(arguments)
    start_ranks(int(sys.argv[1]), len(arguments))


main()
