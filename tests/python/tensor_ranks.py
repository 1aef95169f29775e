#!/usr/bin/env python3
"""Plans with tensor ranks, and with products in 8 bits, on four CPU ranks with real gloo: applied, checked, trained to
the losses of a model that is whole, recorded, validated.

    python3 tests/python/tensor_ranks.py            exit 1 and what differs, if anything does
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from refusal import refused

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
PROGRAM = os.environ.setdefault("FSDP_PLAN_PROGRAM", str(ROOT / "build" / "release" / "fsdp-plan"))
LLAMA = json.loads((ROOT / "python" / "examples" / "config.json").read_text())
# Queries and keys with norms of their own; biases of split layers, and fewer keys than queries.
CONFIGS = {"llama": LLAMA, "qwen3": dict(LLAMA, model_type="qwen3", head_dim=64, num_hidden_layers=2),
           "qwen2": dict(LLAMA, model_type="qwen2", num_key_value_heads=2, num_hidden_layers=2)}
RANKS, STEPS = 4, 3
WORST = {}                        # of gradients, by plan
BASE = {"--micro-batch": "2", "--param-dtype": "fp32", "--wrap": "block", "--reshard-after-forward": "auto",
        "--activation-checkpointing": "none", "--replicate": "1", "--tensor": "2"}
EIGHT = {"--tensor": "1", "--param-dtype": "bf16", "--float8": "tensorwise"}
PLANS = {
    "blocks": {},
    "titan, checkpointed, bf16": {"--wrap": "titan", "--activation-checkpointing": "full", "--param-dtype": "bf16",
                                  "--reshard-after-forward": "true", "--clip-norm": "0.1"},
    "no sync": {"--grad-accum": "2", "--grad-sync": "last", "--clip-norm": "0.1"},
    "replicas": {"--replicate": "2"},
    "four tensor ranks, one sequence": {"--tensor": "4", "--micro-batch": "1", "--wrap": "root"},
    "gathered logits": {},
    "qwen3": {},
    "qwen2": {},
    "8 bits": EIGHT,
    "8 bits, gathered": {**EIGHT, "--float8-all-gather": "", "--float8-precomputed-scales": "",
                         "--activation-checkpointing": "full"},
}
# How far a parameter's gradient may be from the whole model's, of the latter's norm, by what is multiplied in.
NEAR = {"fp32": 1e-5, "bf16": 3e-2, "8 bits": 3e-1}


def config_of(name):
    return CONFIGS.get(name, LLAMA)


def build(name, **more):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of(name), use_cache=False), **more)


def batches_of(plan, step, data_rank):
    import torch
    torch.manual_seed(1000 * step + data_rank)
    ids = torch.randint(2048, (sum(plan["micro_batches"]), plan["seq_len"] + 1))
    return ids.split(plan["micro_batches"])


def loss_of(model, ids):
    import fsdp_plan
    return fsdp_plan.chunked_loss(model(ids[:, :-1]).logits, ids[:, 1:], 1)


def reference(name, plan):
    """Losses of a whole model on everyone's sequences."""
    import torch
    model, losses, o = build(name), [], plan["optimizer"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                                  weight_decay=o["weight_decay"])
    for n in range(STEPS):
        loss = loss_of(model, torch.cat([torch.cat(batches_of(plan, n, r)) for r in range(RANKS // plan.tensor)]))
        loss.backward()
        if plan["clip_norm"] is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def check_gradients(name, step):
    """Each parameter's against the whole model's: AdamW's steps hardly depend on how long gradients are."""
    import torch
    plan = step.plan
    for weight, ids in step.micro_batches(batches_of(plan, 0, step.data_rank)):
        (weight * loss_of(step.model, ids)).backward()
    whole = build(name)
    loss_of(whole, torch.cat([torch.cat(batches_of(plan, 0, r)) for r in range(RANKS // plan.tensor)])).backward()
    near, there = NEAR["8 bits" if plan.float8 else plan["param_dtype"]], by_plain_name(step.model)
    for key, p in whole.named_parameters():
        gradient = there[key].grad.full_tensor()
        off = ((gradient - p.grad).norm() / p.grad.norm()).item()
        if not off <= near:
            raise AssertionError(f"{name}: the gradient of {key} is {off:.2g} off, norm {gradient.norm():.4g}, of a "
                                 f"whole model {p.grad.norm():.4g}")
        WORST[name] = max(WORST.get(name, 0), off)
    step.model.zero_grad()


def by_plain_name(model):
    from fsdp_plan.modules import plain
    return {plain(key): p for key, p in model.named_parameters()}


def train(step):
    import fsdp_plan
    import torch
    optimizer, losses = step.optimizer(), []
    for n in range(STEPS):
        total = torch.zeros(())
        for i, (weight, ids) in enumerate(step.micro_batches(batches_of(step.plan, n, step.data_rank))):
            fsdp_plan.check(step, micro_batch=i)
            loss = weight * loss_of(step.model, ids)
            loss.backward()
            total += getattr(loss, "_local_tensor", loss).detach()
        step.finish(optimizer)
        torch.distributed.all_reduce(total)
        losses.append(total.item() / RANKS)
    return losses


def rank(folder):
    import fsdp_plan
    import torch
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    for name in PLANS:
        plan = fsdp_plan.Plan.load(folder / f"{name}.plan.json", folder / f"{name}.config.json")
        step = fsdp_plan.apply(build(name), plan)
        fsdp_plan.check(step)
        check_gradients(name, step)
        with fsdp_plan.record(step, folder / f"{name}.json", profile=False):
            losses = train(step)
        fsdp_plan.check(step)
        wanted, near = reference(name, plan), 1e-4 if plan["param_dtype"] == "fp32" else 1e-3
        if not torch.allclose(torch.tensor(losses), torch.tensor(wanted), rtol=near):
            raise AssertionError(f"{name}: losses {losses}, of a whole model {wanted}")
    if os.environ["RANK"] == "0":
        print("  gradients off at most: " + ", ".join(f"{name} {off:.1e}" for name, off in WORST.items()), flush=True)
    refusals(folder)
    what_check_sees(folder)
    left_blocks(folder)
    torch.distributed.destroy_process_group()


def refusals(folder):
    import fsdp_plan
    import torch
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    plan = fsdp_plan.Plan.load(folder / "blocks.plan.json", folder / "blocks.config.json")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tp"))
    refused("the last must be named 'tensor'", lambda: fsdp_plan.apply(build("llama"), plan, mesh))
    refused("the plan's is (2, 2)", lambda: fsdp_plan.apply(build("llama"), plan, mesh["tp"]))
    refused("build it with attn_implementation=\"sdpa\"",
            lambda: fsdp_plan.apply(build("llama", attn_implementation="eager"), plan))

    def of_styles(change):
        values = json.loads(json.dumps(plan.values))
        change(values["tensor_plan"]["modules"])
        try:
            return fsdp_plan.Plan(values, plan.layout, plan.model)
        except fsdp_plan.PlanError as error:
            raise AssertionError(error) from None
    less = of_styles(lambda rows: rows.pop())
    refused("says nothing of 'lm_head.weight'", lambda: fsdp_plan.apply(build("llama"), less))
    other = of_styles(lambda rows: rows[-1].update(module="model.head"))
    refused("splits 'model.head', and it has no such module", lambda: fsdp_plan.apply(build("llama"), other))
    norm = of_styles(lambda rows: [row.update(style="colwise") for row in rows if row["module"] == "model.norm"])
    refused("splits 'model.norm' colwise", lambda: fsdp_plan.apply(build("llama"), norm))
    holder = of_styles(lambda rows: rows.append({"module": "model.layers.*.mlp", "style": "sequence"}))
    refused("'model.layers.0.mlp' sequence, which is for modules without others inside",
            lambda: fsdp_plan.apply(build("llama"), holder))
    own = json.loads(json.dumps(plan.values))
    own["units"][0]["shard"] = 1
    refused("units[0] has a mesh of its own", lambda: fsdp_plan.Plan(own, plan.layout, plan.model))
    outermost = dict(plan.values, trained_outermost=True)
    refused("a unit of all trained parameters", lambda: fsdp_plan.Plan(outermost, plan.layout, plan.model))
    apart = DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]), mesh_dim_names=("shard", "tensor"))
    refused("tensor group", lambda: fsdp_plan.apply(build("llama"), plan, apart))
    # Ranks whose plans have other meshes; a model that is left as it was.
    mine = "replicas" if torch.distributed.get_rank() == 0 else "blocks"
    refused("give all ranks the same plan.json", lambda: fsdp_plan.apply(build("llama"), fsdp_plan.Plan.load(
        folder / f"{mine}.plan.json", folder / f"{mine}.config.json")))
    model = build("llama")
    model.gradient_checkpointing_enable()
    refused("checkpoints 'model' already", lambda: fsdp_plan.apply(model, plan))
    model.gradient_checkpointing_disable()
    fsdp_plan.apply(model, plan)
    # What check() finds: whole layers, another split, layers that do not multiply in 8 bits.
    step = fsdp_plan.apply(build("llama"), plan)
    swapped = of_styles(lambda rows: [row.update(style="rowwise") for row in rows if "gate_proj" in row["module"]])
    refused("'model.layers.0.mlp.gate_proj.weight': (2, 0)", lambda: fsdp_plan.check(step, swapped))
    eight = fsdp_plan.Plan.load(folder / "8 bits.plan.json", folder / "8 bits.config.json")
    refused("ranks (replicate, shard): (1, 2), planned (1, 4)", lambda: fsdp_plan.check(step, eight))
    found = fsdp_plan.differences(step, eight)
    if "module 'model.layers.0.self_attn.q_proj' does not multiply in 8 bits" not in found:
        raise AssertionError(found)
    sys.modules["torchao.float8"], kept = None, sys.modules["torchao.float8"]
    refused("pip install torchao", lambda: fsdp_plan.apply(build("llama"), eight))
    sys.modules["torchao.float8"] = kept


def what_check_sees(folder):
    """A split over ranks of another name; layers in 8 bits behind wrappers. record() needs split layers."""
    import fsdp_plan
    from fsdp_plan.dialects import float8, fsdp2, tensor
    from fsdp_plan.dialects.checkpointing import wrap_checkpoints
    from torch.distributed.device_mesh import init_device_mesh

    def load(name, change=lambda values: None):
        values = json.loads((folder / f"{name}.plan.json").read_text())
        change(values)
        return fsdp_plan.Plan.load(values, folder / f"{name}.config.json")
    plan = load("blocks")
    mesh, model = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tp")), build("llama")
    tensor.split(model, plan, mesh["tp"])
    fsdp2.shard(model, plan, mesh["shard"])
    fsdp_plan.check(model, plan)
    whole = fsdp_plan.Plan({**plan.values, "mesh": [d for d in plan.values["mesh"] if d["name"] != "tensor"]},
                           plan.layout, plan.model)
    refused("'lm_head.weight': (2, 0)", lambda: fsdp_plan.check(model, whole))
    unsplit = build("llama")
    fsdp2.shard(unsplit, whole, mesh["shard"])
    refused("layers are not split over any", lambda: fsdp_plan.record(unsplit, folder / "x.json", plan).__enter__())

    layer = "model.layers.0.mlp.down_proj"
    eight = load("8 bits", lambda values: values.update(units=values["units"][-1:], checkpointed=[layer]))
    for left, expected in ((None, []), (layer, [f"module '{layer}' does not multiply in 8 bits"])):
        model = build("llama")
        float8.library().convert_to_float8_training(
            model, config=float8.config_of(eight), module_filter_fn=lambda m, n: float8.converted(m, n) and n != left)
        wrap_checkpoints(model, eight)
        # A layer that is a unit of its own has another class.
        fsdp2.fully_shard(fsdp_plan.modules.by_name(model)["model.layers.1.mlp.up_proj"])
        found = [text for text in fsdp_plan.differences(model, eight) if "8 bits" in text]
        if found != expected:
            raise AssertionError(found)


def left_blocks(folder):
    """A loop that ends early leaves PyTorch as it was; a plan that does not speak of the loss splits it. States of
    optimizers in 8 bits count as what they hold."""
    import fsdp_plan
    import torch
    from fsdp_plan.memory import StorageMemory
    from torch.distributed.tensor import DTensor
    from torchao.optim.subclass_8bit import OptimState8bit
    values = json.loads((folder / "blocks.plan.json").read_text())
    values["tensor_plan"].pop("loss_parallel", None)
    step = fsdp_plan.apply(build("llama"), fsdp_plan.Plan.load(values, folder / "blocks.config.json"))
    handlers = DTensor._op_dispatcher._custom_op_handlers
    before = set(handlers)
    for _ in step.micro_batches(batches_of(step.plan, 0, step.data_rank)):
        if set(handlers) == before:
            raise AssertionError("the loss of split logits has no operators")
        break
    try:
        for _ in step.micro_batches(batches_of(step.plan, 0, step.data_rank)):
            raise InterruptedError
    except InterruptedError:
        pass
    if set(handlers) != before:
        raise AssertionError(f"left installed: {set(handlers) - before}")
    state, memory = OptimState8bit.zeros((256, 256)), StorageMemory()
    memory.begin([state])
    memory.end()
    if memory.now() != sum(t.nbytes for t in (state.codes, state.scale, state.qmap)):
        raise AssertionError(f"a state in 8 bits counts as {memory.now()} B")


def ask(*arguments, codes=(0,)):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in codes:
        raise AssertionError(f"fsdp-plan {arguments}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_plan(folder, name):
    config, file = folder / f"{name}.config.json", folder / f"{name}.plan.json"
    config.write_text(json.dumps(config_of(name)))
    flags = [text for pair in {**BASE, **PLANS[name]}.items() for text in pair if text]
    ask("plan", "--model", config, "--cluster", "dgx-h100", "--gpus", RANKS, "--seq-len", 128, "--optimizer", "adamw",
        "--implementation", "hf", *flags, "-o", file, codes=(0, 1))
    if name == "gathered logits":
        values = json.loads(file.read_text())
        values["tensor_plan"]["loss_parallel"] = False
        file.write_text(json.dumps(values))


def judge(folder, name):
    config, prediction = folder / f"{name}.config.json", folder / f"{name}.prediction.json"
    ask("simulate", "--plan", folder / f"{name}.plan.json", "--model", config, "--cluster", "dgx-h100", "-o",
        prediction, codes=(0, 1))
    report = json.loads(ask("validate", prediction, folder / f"{name}.json", "--json", "--memory-tolerance",
                            "1%", codes=(0, 1)))
    print(f"  {name}: order {'equal' if report['order_equal'] else 'different'}, peak {report['peak']['error']:+.2%} "
          f"({report['peak']['measured']:,.0f} B), memory {'equal' if report['memory_equal'] else 'different'}")
    return [] if report["within"] and report["order_equal"] else [f"{name}: {report['differences'][:2]}"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in PLANS:
            make_plan(folder, name)
        subprocess.run([sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS),
                        "--standalone", __file__, str(folder), *sys.argv[1:]], check=True,
                       env={**os.environ, "OMP_NUM_THREADS": "1"})
        wrong = [text for name in PLANS for text in judge(folder, name)]
    print("\n".join(wrong) or f"tensor ranks and 8 bits: {len(PLANS)} plans applied, checked, recorded on {RANKS} "
          "ranks and validated")
    return bool(wrong)


if __name__ == "__main__":
    if "--only" in sys.argv:
        PLANS = {name: PLANS[name] for name in ["blocks", "8 bits", *sys.argv[sys.argv.index("--only") + 1:]]}
    if "RANK" in os.environ:
        rank(pathlib.Path(sys.argv[1]))
    else:
        sys.exit(main())
