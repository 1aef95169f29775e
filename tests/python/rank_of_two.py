"""What each rank of two_ranks.py does."""
import json

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from transformers import AutoConfig, AutoModelForCausalLM

import fsdp_plan
from adapters import adapted
from refusal import refused

STEPS = 3                                    # the fewest that record() takes without a profile


def build(config):
    torch.manual_seed(0)
    values = json.loads(config.read_text())
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**values, use_cache=False))


def batches_of(plan, step, rank, vocabulary=2048):
    """The micro-batches of a rank; a step's tokens do not depend on how they are split."""
    torch.manual_seed(1000 * step + rank)
    return torch.randint(vocabulary, (sum(plan["micro_batches"]), plan["seq_len"] + 1)).split(plan["micro_batches"])


def loss_of(model, tokens):
    return fsdp_plan.chunked_loss(model(tokens[:, :-1]).logits, tokens[:, 1:], 1)


def reference(config, plan):
    """Losses of unsharded training on both ranks' tokens."""
    model, losses = build(config), []
    o = plan["optimizer"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                                  weight_decay=o["weight_decay"])
    for step in range(STEPS):
        tokens = [torch.cat(batches_of(plan, step, rank)) for rank in range(2)]
        loss = loss_of(model, torch.cat(tokens))
        loss.backward()
        if plan["clip_norm"] is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train(step, check=True, steps=STEPS):
    optimizer, losses = step.optimizer(), []
    for n in range(steps):
        total = torch.zeros(())
        for i, (weight, tokens) in enumerate(step.micro_batches(batches_of(step.plan, n, dist.get_rank()))):
            if check:
                fsdp_plan.check(step, micro_batch=i)
            loss = weight * loss_of(step.model, tokens)
            loss.backward()
            total += loss.detach()
        step.finish(optimizer)
        dist.all_reduce(total)
        losses.append(total.item() / 2)
    return losses


def same(name, losses, wanted):
    if not torch.allclose(torch.tensor(losses), torch.tensor(wanted), rtol=1e-4):
        raise AssertionError(f"{name}: losses {losses}, of unsharded training {wanted}")


def main(folder, config):
    plans = json.loads((folder / "names.json").read_text())
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    wanted = {}                              # by the sequences of a step and the clipping
    for name, lora in plans.items():
        plan = fsdp_plan.Plan.load(folder / f"{name}.plan.json", config, *lora)
        key = sum(plan["micro_batches"]), plan["clip_norm"]
        if key not in wanted and not lora:
            wanted[key] = reference(config, plan)
        model = adapted(build(config)) if lora else build(config)
        step = fsdp_plan.apply(model, plan)
        fsdp_plan.check(step)
        with fsdp_plan.record(step, folder / f"{name}.json", profile=False):
            losses = train(step)
        fsdp_plan.check(step)
        if plan["param_dtype"] == "fp32":
            same(name, losses, wanted[key])
    changed(folder, config)
    changed_fsdp1(folder, config)
    older_pytorch(folder, config)
    without_host_backend(folder, config)
    disagreement(folder, config)
    profiles(folder, config)
    refusals(folder, config)
    dist.destroy_process_group()


def changed(folder, config):
    """A model that does not do what the plan says: each change is found by name."""
    plan = fsdp_plan.Plan.load(folder / "blocks.plan.json", config)
    step = fsdp_plan.apply(build(config), plan)
    layers = step.model.model.layers
    layers[0].set_modules_to_forward_prefetch([layers[2]])
    refused("[model.layers.0]: forward prefetch: [('model.layers.2',)], planned []", lambda: fsdp_plan.check(step))
    layers[0].set_modules_to_forward_prefetch([])
    fsdp_plan.check(step)
    step.model.set_requires_gradient_sync(False)
    refused("reduces gradients: False, planned True", lambda: fsdp_plan.check(step, micro_batch=0))
    step.model.set_requires_gradient_sync(True)
    layers[2].mlp.gate_proj.weight.requires_grad_(False)
    refused("model.layers.2.mlp.gate_proj.weight: frozen", lambda: fsdp_plan.check(step))
    layers[2].mlp.gate_proj.weight.requires_grad_(True)
    layers[1].set_reshard_after_forward(False)
    refused("[model.layers.1]: ranks after forward: 1, planned 2", lambda: fsdp_plan.check(step))
    other = fsdp_plan.Plan.load(folder / "groups, prefetch.plan.json", config)
    refused("fully_shard was called on it", lambda: fsdp_plan.check(step, other))
    with fsdp_plan.record(step, folder / "changed.json", profile=False):
        train(step, check=False)


def changed_fsdp1(folder, config):
    step = fsdp_plan.apply(build(config), fsdp_plan.Plan.load(folder / "fsdp1, no sync.plan.json", config))
    fsdp_plan.check(step, micro_batch=1)
    refused("[model.layers.0]: reduces gradients: True, planned False", lambda: fsdp_plan.check(step, micro_batch=0))
    with step.model.no_sync():
        fsdp_plan.check(step, micro_batch=0)
        refused("[root]: reduces gradients: False, planned True",
                lambda: fsdp_plan.check(step, micro_batch=1))


def folder_of_rank_0(folder, step):
    """It alone must have the folder of the measurement; where it has none, no rank goes on."""
    there, absent = folder / "none.json", folder / "absent" / "none.json"
    files = [absent, there] if dist.get_rank() == 0 else [there, absent]
    refused("its folder does not exist on rank 0", lambda: fsdp_plan.record(step, files[0]).__enter__())
    recorder = fsdp_plan.record(step, files[1])
    recorder.__enter__()
    recorder.__exit__(KeyboardInterrupt, None, None)   # as when training fails: nothing is written


def older_pytorch(folder, config):
    """A switch that is not there is found before anything is changed: the model takes another plan."""
    plan, name = fsdp_plan.Plan.load(folder / "blocks.plan.json", config), "set_separate_reduce_scatter_group"
    values = dict(plan.values, separate_reduce_scatter=True, checkpointed=["model.layers.0"])
    model, switch = build(config), getattr(FSDPModule, name)
    delattr(FSDPModule, name)
    try:
        refused(f"the plan needs {name}", lambda: fsdp_plan.apply(model, values, source=config))
    finally:
        setattr(FSDPModule, name, switch)
    fsdp_plan.check(fsdp_plan.apply(model, plan))


def without_host_backend(folder, config):
    """Ranks that talk on GPUs alone cannot sum what is in host memory."""
    values = json.loads((folder / "blocks.plan.json").read_text())
    values.update(offload=True, clip_norm=1.0)
    mesh = DeviceMesh.from_group(dist.new_group(backend="cuda:gloo"), "cpu", mesh_dim_names=("shard",))
    model = build(config)
    refused("start with init_process_group(\"cpu:gloo,cuda:nccl\")",
            lambda: fsdp_plan.apply(model, values, mesh, source=config))
    fsdp_plan.check(fsdp_plan.apply(model, values, source=config))   # gloo reaches it


def disagreement(folder, config):
    """Ranks that have other plans or models end, all of them, instead of waiting for each other."""
    plan = fsdp_plan.Plan.load(folder / "blocks.plan.json", config)
    other = fsdp_plan.Plan.load(dict(plan.values, checkpointed=["model.layers.0"]), config)
    model = build(config)
    refused("rank 1 has the plan", lambda: fsdp_plan.apply(model, other if dist.get_rank() else plan))
    fsdp_plan.check(fsdp_plan.apply(model, plan))                    # nothing was changed


def profiles(folder, config):
    """Of a real run: every all-gather and reduction of the step, with the operators. Where somebody else profiles, or
    training fails on the way, there is none, and the next one can begin."""
    step = fsdp_plan.apply(build(config), fsdp_plan.Plan.load(folder / "blocks.plan.json", config))
    file = folder / "profiled.json"

    def recorded(steps=4):
        with fsdp_plan.record(step, file):
            train(step, check=False, steps=steps)
        dist.barrier()
        return json.loads(file.read_text())
    for fails_after in (2, 3):               # prepared; running
        recorder = fsdp_plan.record(step, folder / "none.json")
        recorder.__enter__()
        train(step, check=False, steps=fails_after - 1)
        loss_of(step.model, batches_of(step.plan, 0, dist.get_rank())[0][:1]).backward()
        recorder.__exit__(KeyboardInterrupt, None, None)
        step.finish(step.optimizer())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert "collective_times" not in recorded()["observed"]
    found = recorded()
    assert {"collective_times", "kernel_times"} <= set(found["observed"]), found["observed"]
    for rank in found["ranks"]:
        kinds = [each["kind"] for each in rank["profiled_step"]["collectives"]]
        issued = [text.split()[1] for text in rank["order"]]
        assert kinds.count("all_gather") == issued.count("all_gather"), kinds
        # gloo reduces and scatters by an all-reduce. That of train()'s loss comes after the optimizer's step.
        assert kinds.count("all_reduce") == issued.count("reduce_scatter"), kinds
        assert any(kernel["name"] == "aten::mm" for kernel in rank["profiled_step"]["kernels"])


def refusals(folder, config):
    plan = fsdp_plan.Plan.load(folder / "blocks.plan.json", config)

    def other(change):
        model = build(config)
        change(model)
        return lambda: fsdp_plan.apply(model, plan)
    refused("'model.layers.1.mlp.up_proj.weight' is [600, 256], the plan's is [688, 256]",
            other(lambda m: setattr(m.model.layers[1].mlp, "up_proj", torch.nn.Linear(256, 600, bias=False))))
    refused("'model.norm.weight' is frozen", other(lambda m: m.model.norm.requires_grad_(False)))
    refused("'model.embed_tokens.weight' is bf16", other(lambda m: m.to(torch.bfloat16)))
    refused("it has no 'lm_head.weight'", other(lambda m: delattr(m, "lm_head")))
    refused("has no more parameters", other(lambda m: setattr(m, "more", torch.nn.Linear(2, 2))))
    refused("'lm_head.weight' stands where", other(lambda m: delattr(m.model, "norm")))
    refused("already: leave that to the plan", other(lambda m: m.gradient_checkpointing_enable()))
    refused("is sharded already", other(lambda m: fsdp_plan.apply(m, plan)))
    folder_of_rank_0(folder, fsdp_plan.apply(build(config), plan))
    values = dict(plan.values, mesh=[{"name": "replicate", "size": 1}, {"name": "shard", "size": 4}])
    refused("the plan is for 4 ranks", lambda: fsdp_plan.apply(build(config), values, source=config))
    step = fsdp_plan.apply(build(config), plan)
    refused("1 micro-batches a step, not 2", lambda: list(step.micro_batches([None, None])))
    recorder = fsdp_plan.record(step, folder / "none.json")
    refused("saw 0 whole steps, and needs 4", lambda: [recorder.__enter__(), recorder.__exit__(None, None, None)])
    for profile, steps, words in ((False, 2, "saw 2 whole steps, and needs 3"), (True, 3, "leave the profiler out")):
        recorder = fsdp_plan.record(step, folder / "none.json", profile=profile)
        refused(words, lambda: [recorder.__enter__(), train(step, steps=steps), recorder.__exit__(None, None, None)])
    if (folder / "none.json").exists():
        raise AssertionError("a measurement of nothing was written")
