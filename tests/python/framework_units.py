#!/usr/bin/env python3
"""Frameworks that shard by themselves, on two CPU ranks with real gloo, from the configurations that the program
emits: transformers' DistributedConfig, Accelerate's prepare(). check() finds the plan that the file describes, and
transformers' run is recorded and validated.

    python3 tests/python/framework_units.py            exit 1 and what differs, if anything does
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("FSDP_PLAN_PROGRAM", str(ROOT / "build" / "release" / "fsdp-plan"))
CONFIG = ROOT / "python" / "examples" / "config.json"
BASE = ["--micro-batch", "2", "--activation-checkpointing", "none", "--replicate", "1", "--implementation", "hf"]
# Each plan is one that the framework's configuration holds.
TRANSFORMERS = {"titan": ["--wrap", "titan", "--reshard-after-forward", "auto"],
                "blocks": ["--wrap", "block", "--reshard-after-forward", "auto", "--param-dtype", "fp32"]}
ACCELERATE = {"titan": ["--wrap", "titan", "--reshard-after-forward", "auto", "--reduce-dtype", "bf16"],
              "kept": ["--wrap", "titan", "--reshard-after-forward", "false", "--reduce-dtype", "bf16"]}


def emit(folder, kind, name, more):
    from fsdp_plan import program
    plan = folder / f"{kind} {name}.plan.json"
    config = folder / f"{kind}_{name}.{'py' if kind == 'transformers' else 'yaml'}"
    done = subprocess.run([program.path(), "plan", "--model", CONFIG, "--cluster", "dgx-h100", "--gpus", "2",
                           "--seq-len", "128", *BASE, *more, "-o", plan, "--emit", kind, "--emit-to", config],
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{kind}, {name}: the file is not the plan:\n{done.stderr}")
    linted = json.loads(subprocess.run(
        [program.path(), "lint", config, "--model", CONFIG, "--cluster", "dgx-h100", "--seq-len", "128",
         "--micro-batch", "2", "--grad-accum", "1", "--json", "-o", folder / "linted.json"],
        capture_output=True, text=True).stdout)
    units = [json.loads((folder / f).read_text())["units"] for f in (plan.name, "linted.json")]
    if linted["not_read"] or [u["modules"] for u in units[0]] != [u["modules"] for u in units[1]]:
        raise SystemExit(f"{kind}, {name}: lint reads another plan: {units[1]}")
    from fsdp_plan import Plan
    Plan.load(folder / "linted.json", CONFIG)    # the package takes it, with the loss in the model
    return plan


def of_transformers(folder, name):
    import torch
    import torch.distributed as dist
    import fsdp_plan
    from fsdp_plan.dialects.fsdp2 import force_sum
    specification = importlib.util.spec_from_file_location("emitted", folder / f"transformers_{name}.py")
    emitted = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(emitted)
    model = emitted.load(str(folder / "model")).train()
    model.config.use_cache = False
    force_sum(model)                         # gloo has no averages
    for p in model.parameters():             # on processors what was loaded is a part of the whole weight, which stays
        p._local_tensor = p._local_tensor.clone()
    plan = fsdp_plan.Plan.load(folder / f"transformers {name}.plan.json", CONFIG)
    fsdp_plan.check(model, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with fsdp_plan.record(model, folder / f"transformers {name}.json", plan, profile=False):
        for step in range(3):
            torch.manual_seed(10 * step + dist.get_rank())
            tokens = torch.randint(2048, (2, 129))
            loss_of(model, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()


def loss_of(model, tokens):
    import fsdp_plan
    return fsdp_plan.chunked_loss(model(tokens[:, :-1]).logits, tokens[:, 1:], 1)


def of_accelerate(folder, name):
    import torch
    import yaml
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from transformers import AutoConfig, AutoModelForCausalLM

    import fsdp_plan
    from fsdp_plan.dialects.fsdp2 import force_sum
    given = yaml.safe_load((folder / f"accelerate_{name}.yaml").read_text())["fsdp_config"]
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, reshard_after_forward=given["fsdp_reshard_after_forward"],
        auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False,
        transformer_cls_names_to_wrap=given["fsdp_transformer_layer_cls_to_wrap"].split(","))
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", fsdp_plugin=plugin)
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    plugin.set_mixed_precision("bf16")
    values = json.loads(CONFIG.read_text())
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values, use_cache=False))
    model, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    force_sum(model)
    fsdp_plan.check(model, fsdp_plan.Plan.load(folder / f"accelerate {name}.plan.json", CONFIG))
    accelerator.state._reset_state(True)


def rank(folder):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in TRANSFORMERS:
        of_transformers(folder, name)
    for name in ACCELERATE:
        of_accelerate(folder, name)
    dist.destroy_process_group() if dist.is_initialized() else None


def parent():
    from transformers import AutoConfig, AutoModelForCausalLM

    from fsdp_plan import program
    with tempfile.TemporaryDirectory() as folder:
        folder, wrong = pathlib.Path(folder), []
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(CONFIG.read_text()))).save_pretrained(
            folder / "model")
        for kind, plans in (("transformers", TRANSFORMERS), ("accelerate", ACCELERATE)):
            for name, more in plans.items():
                emit(folder, kind, name, more)
        done = subprocess.run([sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2",
                               "--standalone", __file__, str(folder)], capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        for name in TRANSFORMERS:
            prediction = folder / "prediction.json"
            program.ask("simulate", "--plan", folder / f"transformers {name}.plan.json", "--model", CONFIG, "--cluster",
                        "dgx-h100", "-o", prediction)
            report = json.loads(program.ask("validate", prediction, folder / f"transformers {name}.json", "--json"))
            print(f"  transformers' own sharding, {name}: order {'equal' if report['order_equal'] else 'different'}, "
                  f"peak {report['peak']['error']:+.2%}, memory {'equal' if report['memory_equal'] else 'different'}")
            if not report["within"]:
                wrong.append(f"{name}: {report['differences'][:3]}")
        print("\n".join(wrong) or "frameworks that shard by themselves made the plans of their files: transformers "
              f"({len(TRANSFORMERS)}, recorded and validated), Accelerate ({len(ACCELERATE)})")
        return 1 if wrong else 0


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank(pathlib.Path(sys.argv[1]))
    else:
        sys.exit(parent())
