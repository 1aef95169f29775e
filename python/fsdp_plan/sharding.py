"""apply(): a plan, carried out on a model."""
import hashlib

from fsdp_plan.needs_torch import torch
from fsdp_plan.dialects import ddp, float8, fsdp1, fsdp2, tensor
from fsdp_plan.dialects.checkpointing import refuse_checkpointed, wrap_checkpoints
from fsdp_plan.errors import PlanError
from fsdp_plan.modules import plain
from fsdp_plan.parameters import check_parameters
from fsdp_plan.plan import Plan
from fsdp_plan.steps import Step
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def apply(model, plan, mesh=None, *, source=None, lora=None):
    """Shards `model` as the plan says, and returns the Step that trains it: call step.model, give micro-batches
    through step.micro_batches(...).

    model: any module with the plan's parameters, before it is sharded; on the meta device, on the CPU or on a GPU.
    plan: plan.json, as a path or a dictionary. mesh: of the plan's sizes, with the dimensions (shard), (replicate,
    shard), and `tensor` behind them where the plan has it; None: one over all ranks.
    source, lora: what `--model` and `--lora` were where the plan was made, if the plan's model_name is not in the
    catalog; a transformers model says it by itself.
    Nothing is changed when it raises PlanError: the model is another one, already sharded, the ranks or what
    they talk through are not the plan's, or PyTorch is too old for it."""
    plan = Plan.load(plan, source if source is not None else model, lora)
    refuse_sharded(model)
    check_parameters(model, plan)
    if plan.dialect == "fsdp2":
        fsdp2.refuse_missing(plan)
    tensor.refuse(model, plan)
    float8.refuse(plan)
    refuse_checkpointed(model)
    refuse_disagreement(model, plan)
    mesh = checked_mesh(mesh, plan) if mesh is not None else make_mesh(model, plan)
    refuse_gpus_alone(mesh, plan)
    float8.convert(model, plan)
    if plan.tensor > 1:
        tensor.split(model, plan, mesh["tensor"])
        mesh = mesh[mesh.mesh_dim_names[:-1]]
    wrap_checkpoints(model, plan)
    if plan.dialect == "ddp":
        return Step(ddp.wrap(model, plan), plan)
    return Step((fsdp1 if plan.dialect == "fsdp1" else fsdp2).shard(model, plan, mesh), plan)


def refuse_sharded(model):
    for name, module in model.named_modules():
        if isinstance(module, (torch.distributed.fsdp.FSDPModule, fsdp1.FullyShardedDataParallel)):
            raise PlanError(f"'{name or 'the model'}' is sharded already: apply the plan to a model that is not")


def make_mesh(model, plan):
    if dist.get_world_size() != plan.ranks:
        raise PlanError(f"the plan is for {plan.ranks} ranks ({' x '.join(map(str, sizes_of(plan)))}), there are "
                        f"{dist.get_world_size()}: start as many, or plan for these (--gpus)")
    return init_device_mesh(device_type(model), sizes_of(plan), mesh_dim_names=names_of(plan))


def sizes_of(plan):
    """Of the mesh: neighbouring ranks form a tensor group."""
    return (plan.replicate,) * (plan.replicate > 1) + (plan.shard,) + (plan.tensor,) * (plan.tensor > 1)


def names_of(plan):
    return ("replicate",) * (plan.replicate > 1) + ("shard",) + ("tensor",) * (plan.tensor > 1)


def refuse_disagreement(model, plan):
    """On every rank, where one has another plan or other parameters than rank 0: they would wait for each other.
    Before the mesh is made, as its process groups are where ranks of different plans would wait first."""
    if not dist.is_initialized():
        raise PlanError("there is no process group: start with torchrun, and call torch.distributed."
                        "init_process_group() first")
    trained = [(plain(name), tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()]
    mine = (plan.digest, hashlib.sha256(repr(trained).encode()).hexdigest())
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        if theirs[0] != everyone[0][0]:
            raise PlanError(f"rank {rank} has the plan {theirs[0]}, and rank 0 the plan {everyone[0][0]}: give all "
                            "ranks the same plan.json")
        if theirs[1] != everyone[0][1]:
            raise PlanError(f"rank {rank} has other parameters than rank 0 (names, shapes, types or what is trained): "
                            "build the same model on all ranks")


def refuse_gpus_alone(mesh, plan):
    """The norm of offloaded gradients is summed over ranks where the gradients are: in host memory, which NCCL does
    not reach."""
    if not plan["offload"] or plan["clip_norm"] is None:
        return
    backends = dist.get_backend_config(mesh.get_group(mesh.ndim - 1))     # "cuda:nccl", "cpu:gloo,cuda:nccl"
    if "cpu" not in {each.partition(":")[0] for each in backends.split(",")}:
        raise PlanError(f"the plan clips offloaded gradients, which lie in host memory, and ranks talk through "
                        f"'{backends}' alone: start with init_process_group(\"cpu:gloo,cuda:nccl\")")


def device_type(model):
    """Where the model is, or will be if it is on the meta device: a GPU, unless ranks talk through gloo alone."""
    kinds = {p.device.type for p in model.parameters()} - {"meta"}
    if kinds - {"cpu"}:
        return (kinds - {"cpu"}).pop()
    return "cuda" if torch.cuda.is_available() and dist.get_backend() != "gloo" else "cpu"


def checked_mesh(mesh, plan):
    wanted = sizes_of(plan)
    if tuple(mesh.shape) != wanted and not (plan.replicate == 1 and tuple(mesh.shape) == (1, *wanted)):
        raise PlanError(f"the mesh is {tuple(mesh.shape)}, the plan's is {wanted} ({', '.join(names_of(plan))})")
    if plan.tensor > 1 and (mesh.mesh_dim_names or ("",))[-1] != "tensor":
        raise PlanError(f"the mesh's dimensions are {mesh.mesh_dim_names}, and the last must be named 'tensor': give "
                        "mesh_dim_names to init_device_mesh")
    for group in mesh.mesh.view(-1, plan.tensor).tolist() if plan.tensor > 1 else ():
        first = group[0] - group[0] % plan.tensor
        if group != list(range(first, first + plan.tensor)):
            raise PlanError(f"the mesh has the tensor group {group}, and the plan's are neighbours, such as "
                            f"{list(range(plan.tensor))}: make the mesh with init_device_mesh, 'tensor' last")
    return mesh
