"""Runs emitted PyTorch scripts for two steps of a tiny model on two CPU ranks and compares the units that PyTorch made.

    python run_emitted.py SCRIPT EXPECTED.json [SCRIPT EXPECTED.json ...]

EXPECTED.json: {"units": [{"modules": [...], "parameters": [...], "reshard": true|false}, ...], "checkpointed": [...]},
the units as unit_layouts computes them. Exit codes: 0 equal, 1 different, 77 torch cannot be imported (the reason is
printed).
"""
import importlib.util
import json
import math
import os
import socket
import subprocess
import sys
import time

RANKS = 2


def fail(message):
    raise SystemExit(f"run_emitted: {message}")


def plain(name):
    return name.replace("_checkpoint_wrapped_module.", "").replace("._checkpoint_wrapped_module", "")


def fsdp_units(model):
    """What PyTorch holds: per FSDP state with parameters its modules, its parameters and whether it reshards after
    forward."""
    from torch.distributed.fsdp import FSDPModule
    names = {id(p): plain(n) for n, p in model.named_parameters()}
    units = {}
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        group = state._fsdp_param_group
        unit = units.setdefault(id(state), {"modules": [], "parameters": [], "reshard": None})
        unit["modules"].append(plain(name))
        if group is not None and not unit["parameters"]:
            unit["parameters"] = sorted(names[id(p.sharded_param)] for p in group.fsdp_params)
            unit["reshard"] = group.post_forward_mesh_info is not None
    return sorted(([sorted(u["modules"]), u["parameters"], u["reshard"]] for u in units.values() if u["parameters"]))


def recomputed(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
    return sorted(plain(name) for name, module in model.named_modules() if isinstance(module, CheckpointWrapper))


def worker(arguments):
    for (script, expected_file), port in zip(arguments, os.environ["RUN_EMITTED_PORTS"].split()):
        os.environ["MASTER_PORT"] = port     # a fresh one each time: the store of the run before may still listen
        spec = importlib.util.spec_from_file_location("emitted", script)
        emitted = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(emitted)
        with open(expected_file) as f:
            expected = json.load(f)
        units = sorted([sorted(u["modules"]), sorted(u["parameters"]), u["reshard"]]
                       for u in expected["units"] if u["parameters"])
        seen = []
        losses = emitted.main(["--steps", "2", "--tiny", "--cpu", "--reference"],
                              inspect=lambda model: seen.extend([fsdp_units(model), recomputed(model)]))
        if emitted.PLAN["dialect"] != "ddp" and seen[0] != units:
            fail(f"{script}: PyTorch's units are\n{json.dumps(seen[0])}\nthe plan's are\n{json.dumps(units)}")
        if seen[1] != sorted(expected["checkpointed"]):
            fail(f"{script}: recomputed are {seen[1]}, planned are {expected['checkpointed']}")
        if len(losses) != 2 or not all(math.isfinite(x) and 0 < x < 20 for x in losses):
            fail(f"{script}: the losses are {losses}")


def start_ranks(ranks, scripts):
    """This very program once per rank, and ends as they end."""
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed")
        raise SystemExit(77)
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(scripts)]
    ports = " ".join(str(s.getsockname()[1]) for s in sockets)
    for s in sockets:
        s.close()
    started = [subprocess.Popen([sys.executable, "-W", "ignore", *sys.argv],
                                env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(ranks),
                                     "OMP_NUM_THREADS": "1",
                                     "MASTER_ADDR": "127.0.0.1", "RUN_EMITTED_PORTS": ports}) for r in range(ranks)]
    while any(p.poll() is None for p in started) and not any(p.poll() for p in started):
        time.sleep(0.1)
    for p in started:                        # one failed: the others would wait for it
        if p.poll() is None:
            p.terminate()
    raise SystemExit(1 if any(p.wait() for p in started) else 0)


def main():
    arguments = list(zip(sys.argv[1::2], sys.argv[2::2]))
    if "RANK" in os.environ:
        return worker(arguments)
    start_ranks(RANKS, len(arguments))


if __name__ == "__main__":
    main()
