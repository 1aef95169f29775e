"""Whether PyTorch carries out a plan that the program refuses."""
import emitted_run
import fsdp1_run

UNIT_OPTIONS = ("grad_sync", "reshard_after_backward", "unshard_in_backward", "gradient_divide_factor",
                "forward_prefetch", "backward_prefetch", "param_dtype", "reduce_dtype", "output_dtype",
                "cast_forward_inputs")
MORE = ("checkpoint_policy", "loss_chunks", "offload", "offload_optimizer", "ignored", "reduce_scatter_buffers",
        "separate_reduce_scatter", "force_sum_reduction")
SAME = ("dialect", "micro_batches", "seq_len", "grad_sync", "forward_prefetch", "backward_prefetch", "param_dtype",
        "reduce_dtype", "master_dtype", "clip_norm", "checkpointed")


# The end of apply_plan, as pytorch_units.cpp writes it.
SHARES = """    from torch.distributed.fsdp import share_comm_ctx
    share_comm_ctx(roots_of(model))
    model.register_forward_pre_hook(lambda *_: [fully_shard.state(r)._lazy_init() for r in roots_of(model)] and None)
    return model


def policy_of"""


def roots_of(plan):
    """First modules of the units that no other holds."""
    names = [name for u in plan["units"] for name in u["modules"]]
    return [u["modules"][0] for u in plan["units"]
            if not any(name == "" or u["modules"][0].startswith(name + ".") for name in names)]


def as_script(plan):
    """A plan.json as the PLAN of an emitted script."""
    units = [(u["modules"], None if u["reshard_after_forward"] == "auto" else u["reshard_after_forward"],
              {k: u[k] for k in UNIT_OPTIONS if k in u}) for u in plan["units"]]
    more = {k: plan[k] for k in MORE if k in plan}
    if "shard_dims" in plan:
        more["shard_dims"] = {d["parameter"]: d["dim"] for d in plan["shard_dims"]}
    roots = {"roots": roots_of(plan)} if plan.get("share_comm_context") else {}
    mesh = tuple(d["size"] for d in plan["mesh"])
    return dict({k: plan[k] for k in SAME if k in plan}, **roots, mesh=mesh, units=units, more=more)


def carried_out(script, plan):
    """None if PyTorch trains two steps under the plan; else what it raised. script: of another plan for the model."""
    try:
        if plan["dialect"] == "fsdp1":
            fsdp1_run.events_of(emitted_run.load(script), plan)
        else:
            if plan.get("share_comm_context"):
                script = script.replace("    return model\n\n\ndef policy_of", SHARES, 1)
            text = script.replace("\n# ---- the plan, applied", f"\nPLAN.update({as_script(plan)!r})\n# ----", 1)
            emitted_run.events_of(text, clips=True)
    except Exception as error:  # whatever PyTorch raises is its answer
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None
