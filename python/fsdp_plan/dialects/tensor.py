"""Layers split over the mesh's `tensor` dimension, by the plan's tensor_plan: DTensor's parallel styles of the same
names, before fully_shard.

What flows between modules is a DTensor whose sequence is split, so that a model that asks for its shape gets that of
whole sequences. It is gathered once for all modules that read it: before the module that holds them."""
from fsdp_plan.needs_torch import VERSION, torch
from fsdp_plan.errors import PlanError
from fsdp_plan.modules import by_name, parameters_by_name
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._pytree import tree_map

SEQUENCE, FEATURES, HEADS = Shard(1), Shard(-1), 2


def matches(pattern, name):
    """A "*" stands for one part of a name."""
    wanted, parts = pattern.split("."), name.split(".")
    return len(wanted) == len(parts) and all(w in ("*", p) for w, p in zip(wanted, parts))


def styles_of(model, plan):
    """{module: "colwise", "rowwise" or "sequence"}; empty without tensor ranks."""
    if plan.tensor == 1:
        return {}
    rows = plan["tensor_plan"]["modules"]
    found = {name: row["style"] for name in by_name(model) for row in rows if matches(row["module"], name)}
    for row in rows:
        if not any(matches(row["module"], name) for name in found):
            raise PlanError(f"the model is not the plan's: tensor_plan splits '{row['module']}', and it has no such "
                            "module")
    return found


def placements(model, plan):
    """{parameter: the dimension that is split over tensor ranks, or None where every rank holds all of it}"""
    modules, found = by_name(model), {}
    for name, style in styles_of(model, plan).items():
        wide = isinstance(modules[name], torch.nn.Linear)
        for leaf, _ in modules[name].named_parameters(recurse=False):
            dim = None if style == "sequence" or (style == "rowwise" and wide and leaf == "bias") else 0
            found[f"{name}.{leaf}"] = 1 if dim == 0 and style == "rowwise" and wide else dim
    return found


def refuse(model, plan):
    """Before anything is changed."""
    if plan.tensor == 1:
        return
    if VERSION < (2, 15):
        raise PlanError(f"the plan has tensor ranks, which are known as they are in PyTorch 2.15; this is "
                        f"{torch.__version__}: use a newer one, or plan without --tensor")
    modules, split = by_name(model), placements(model, plan)
    for name, style in styles_of(model, plan).items():
        if style != "sequence" and not isinstance(modules[name], (torch.nn.Linear, torch.nn.Embedding)):
            raise PlanError(f"tensor_plan splits '{name}' {style}, which PyTorch does for nn.Linear and nn.Embedding; "
                            f"it is a {type(modules[name]).__name__}: plan without --tensor")
        if style == "sequence" and any(modules[name].children()):
            raise PlanError(f"tensor_plan splits '{name}' sequence, which is for modules without others inside, as "
                            "norms are: name those inside of it")
    for name, p in parameters_by_name(model).items():
        if name not in split:
            raise PlanError(f"tensor_plan says nothing of '{name}', and every parameter must lie on the same mesh: add "
                            "its module to tensor_plan, or plan without --tensor")
        dim = split[name]
        if dim is not None and p.shape[dim] % plan.tensor:
            raise PlanError(f"dimension {dim} of '{name}', {p.shape[dim]}, cannot be split over {plan.tensor} tensor "
                            "ranks alike: plan with a divisor of it (--tensor)")
    config = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) == "eager":
        raise PlanError("the model's attention is 'eager', which sees a mask and the number of all heads: build it "
                        "with attn_implementation=\"sdpa\", as the plan's prediction has it")


def split(model, plan, mesh):
    """In place. mesh: of the tensor ranks, which begin with equal parameters: those of the first are taken."""
    from torch.distributed.tensor.parallel import parallelize_module
    modules, styles = by_name(model), styles_of(model, plan)
    readers = gatherers(styles)
    for p in (p for name in styles for p in modules[name].parameters(recurse=False)):
        share(p, mesh)
    for name in readers:
        modules[name].register_forward_pre_hook(gather_inputs, with_kwargs=True)
    for name, style in styles.items():
        parallelize_module(modules[name], mesh, parallel_style(name, style, modules[name], readers, plan))


def share(p, mesh):
    if not p.is_meta:
        torch.distributed.broadcast(p.detach(), torch.distributed.get_global_rank(mesh.get_group(), 0),
                                    group=mesh.get_group())


def parent_of(name):
    return name.rpartition(".")[0]


def gatherers(styles):
    """Modules that hold several which read whole sequences (attention, a feed-forward): they gather for all of them."""
    parents = [parent_of(name) for name, style in styles.items() if style == "colwise"]
    return {name for name in parents if parents.count(name) > 1}


def gather_inputs(module, args, kwargs):
    def whole(value):
        if not isinstance(value, DTensor) or value.placements != (SEQUENCE,):
            return value
        return value.redistribute(placements=(Replicate(),))
    return tree_map(whole, args), tree_map(whole, kwargs)


def parallel_style(name, style, module, readers, plan):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
    inside = parent_of(name) in readers
    if style == "sequence":                  # of queries and keys inside of attention: each rank has its heads
        return SequenceParallel(sequence_dim=HEADS, use_local_output=True) if inside else SequenceParallel()
    if style == "colwise" and inside:
        return ColwiseParallel()
    if style == "colwise":                   # the output layer
        return ColwiseParallel(input_layouts=SEQUENCE, output_layouts=FEATURES if plan.splits_loss else Replicate(),
                               use_local_output=not plan.splits_loss)
    layouts = {"input_layouts": Replicate()} if isinstance(module, torch.nn.Embedding) else {}
    return RowwiseParallel(output_layouts=SEQUENCE, use_local_output=False, **layouts)
