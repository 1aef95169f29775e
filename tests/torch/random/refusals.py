"""Whether PyTorch carries out a plan that the program refuses."""
import emitted_run
import fsdp1_run

UNIT_OPTIONS = ("grad_sync", "reshard_after_backward", "unshard_in_backward", "gradient_divide_factor",
                "forward_prefetch", "backward_prefetch", "param_dtype", "reduce_dtype", "output_dtype",
                "cast_forward_inputs")
MORE = ("checkpoint_policy", "loss_chunks", "offload", "ignored", "reduce_scatter_buffers",
        "separate_reduce_scatter", "force_sum_reduction")
SAME = ("dialect", "micro_batches", "seq_len", "grad_sync", "forward_prefetch", "backward_prefetch", "param_dtype",
        "reduce_dtype", "master_dtype", "clip_norm", "checkpointed")


def as_script(plan):
    """A plan.json as the PLAN of an emitted script."""
    units = [(u["modules"], None if u["reshard_after_forward"] == "auto" else u["reshard_after_forward"],
              {k: u[k] for k in UNIT_OPTIONS if k in u}) for u in plan["units"]]
    more = {k: plan[k] for k in MORE if k in plan}
    if "shard_dims" in plan:
        more["shard_dims"] = {d["parameter"]: d["dim"] for d in plan["shard_dims"]}
    return dict({k: plan[k] for k in SAME if k in plan}, mesh=tuple(d["size"] for d in plan["mesh"]), units=units,
                more=more)


def carried_out(script, plan):
    """None if PyTorch trains two steps under the plan; else what it raised. script: of another plan for the model."""
    try:
        if plan["dialect"] == "fsdp1":
            fsdp1_run.events_of(emitted_run.load(script), plan)
        else:
            text = script.replace("\n# ---- the plan, applied", f"\nPLAN.update({as_script(plan)!r})\n# ----", 1)
            emitted_run.events_of(text, clips=True)
    except Exception as error:  # whatever PyTorch raises is its answer
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None
