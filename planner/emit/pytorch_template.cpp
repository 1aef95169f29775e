// The part of the emitted PyTorch script that is the same for every plan; pytorch.cpp puts in what stands
// between two @.
#include "planner/emit/pytorch_template.h"

namespace fsdp {

const char* const kPytorchTemplate = R"python(
import argparse
import collections
import inspect
import math
import os
import resource

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper, offload_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard@SHARE@
from torch.distributed.tensor import DTensor, @REPLICATE@Shard
@IMPORT_STYLES@from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

@PLAN@
@MODEL@
@TENSOR@
# ---- the plan, applied ----------------------------------------------------------------------------------------------

def find(model, name):
    """The module of that name, or None (a model with fewer blocks)."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def found(model, names):
    """Those modules of that name that there are."""
    return [m for m in (find(model, name) for name in names) if m is not None]


def keep_selectively():
    """Of a checkpointed module, results of attention, of products with a bias and of every second one without are
    kept."""
    aten, products = torch.ops.aten, collections.Counter()
    attention = {getattr(aten, "_scaled_dot_product_" + name).default for name in
                 ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")}

    def policy(context, op, *args, **kwargs):
        if op == aten.mm.default:
            products[context.is_recompute] += 1
        keep = op in attention or op == aten.addmm.default
        keep = keep or (op == aten.mm.default and products[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def as_kept(model):
    """Parameters in the types that they are kept in. Before fully_shard."""
    model = model.to(DTYPES[PLAN["master_dtype"]])
    trained = PLAN.get("more", {}).get("trained_dtype", PLAN["master_dtype"])
    for p in model.parameters():
        if p.requires_grad:
            p.data = p.data.to(DTYPES[trained])
    return model


def wrap_checkpoints(model):
    """Replaces each checkpointed module by one that recomputes its forward in backward. Before fully_shard."""
    more = PLAN.get("more", {})
    how = {"context_fn": keep_selectively} if more.get("checkpoint_policy") == "selective-op" else {}
    for name in PLAN["checkpointed"]:
        module = find(model, name)
        if module is not None:
            parent, _, child = name.rpartition(".")
            again = checkpoint_wrapper(module, **how)
            to_host = name in more.get("offload_activations", ())   # its input, until backward
            setattr(model.get_submodule(parent), child, offload_wrapper(again) if to_host else again)


def units_of(model):
    """[(modules, reshard_after_forward, options)] of the units that this model has, inner before outer, the root
    last."""
    units = []
    for names, reshard, *options in PLAN["units"]:
        modules = found(model, names)
        if modules:
            units.append((modules, reshard, options[0] if options else {}))
    return units


def roots_of(model):
    """The modules that are roots to PyTorch: the whole model, where the plan names no others."""
    return found(model, PLAN.get("roots", [""]))


def ddp_options():
    """Gradients are views of the buckets that are reduced, made when they are needed where PyTorch can (2.15)."""
    known = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    return {name: True for name in ("gradient_as_bucket_view", "lazy_bucket_allocation") if name in known}


def apply_plan(model, mesh):
    """Shards `model` in place as the plan says; mesh: as make_mesh makes it. Returns the model to call."""
@SPLIT@    wrap_checkpoints(model)
    if PLAN["dialect"] == "ddp":
        return nn.parallel.DistributedDataParallel(model, **ddp_options())
    units, more = units_of(model), PLAN.get("more", {})
    arguments = further_arguments(model, more)
    for modules, reshard, options in units:
        if type(reshard) is int and mesh.size(-1) % reshard:   # --tiny on other ranks than the plan's
            reshard = True
        fully_shard(modules if len(modules) > 1 else modules[0], mesh=mesh, mp_policy=policy_of(options),
                    reshard_after_forward=reshard, **arguments)
    set_prefetch([modules[0] for modules, _, _ in units],
                 {name: m for (name, *_), *_ in PLAN["units"] if (m := find(model, name)) is not None})
    set_options(model, units, more)
    # gloo has no averaging reduce-scatter: sum, then divide.
    if mesh.device_type == "cpu" or more.get("force_sum_reduction"):
        for module in model.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)
@ROOTS@    return model


def policy_of(options):
    """A unit's mixed precision: its own dtypes where it has any, and those of the plan."""
    dtypes = {key: DTYPES[options.get(key, PLAN[key])] for key in ("param_dtype", "reduce_dtype")}
    if "output_dtype" in options:
        dtypes["output_dtype"] = DTYPES[options["output_dtype"]]
    return MixedPrecisionPolicy(**dtypes, cast_forward_inputs=options.get("cast_forward_inputs", True))


def further_arguments(model, more):
    named = {name.replace("_checkpoint_wrapped_module.", ""): p for name, p in model.named_parameters()}
    ignored = {p for name, p in named.items() for i in more.get("ignored", []) if name == i or name.startswith(i + ".")}
    dims = {id(named[name]): dim for name, dim in more.get("shard_dims", {}).items() if name in named}
    arguments = {}
    if more.get("offload"):
        arguments["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    if ignored:
        arguments["ignored_params"] = ignored
    if dims:
        arguments["shard_placement_fn"] = lambda p: Shard(dims[id(p)]) if id(p) in dims else None
    return arguments


def set_options(model, units, more):
    for (module, *_), _, options in units:
        if "forward_prefetch" in options:
            module.set_modules_to_forward_prefetch(found(model, options["forward_prefetch"]))
        if "backward_prefetch" in options:
            module.set_modules_to_backward_prefetch(found(model, options["backward_prefetch"]))
        if "gradient_divide_factor" in options:
            module.set_gradient_divide_factor(options["gradient_divide_factor"])
        if "unshard_in_backward" in options:
            module.set_unshard_in_backward(False)
    if "reduce_scatter_buffers" in more:
        for root in roots_of(model):
            root.set_reduce_scatter_max_input_buffers(more["reduce_scatter_buffers"])
    if more.get("separate_reduce_scatter"):
        model.set_separate_reduce_scatter_group(True)


def set_prefetch(firsts, named):
    """firsts: the first module of each unit, the root last; named: the same by name. Forward: the next units, in the
    order in which they begin. Backward: those before, in the order in which they end."""
    forward, backward = PLAN["forward_prefetch"], PLAN["backward_prefetch"]
    begins, ends = firsts[-1:] + firsts[:-1], firsts
    if "forward_order" in PLAN:
        begins = [named[n] for n in PLAN["forward_order"] if n in named]
    if "backward_order" in PLAN:
        ends = [named[n] for n in PLAN["backward_order"] if n in named]
    for i, module in enumerate(begins):
        if forward and begins[i + 1 : i + 1 + forward]:
            module.set_modules_to_forward_prefetch(begins[i + 1 : i + 1 + forward])
    for i, module in enumerate(ends):
        if backward == 0:                    # itself is there already: nothing is prefetched, not even the default
            module.set_modules_to_backward_prefetch([module])
        elif backward > 1 and i > 0:
            module.set_modules_to_backward_prefetch(ends[max(0, i - backward) : i][::-1])


def make_mesh(device_type, any_size):
    """The plan's mesh; with any_size, one of the same kind over the ranks there are."""
    world, (replicate, shard), tensor = dist.get_world_size(), PLAN["mesh"], PLAN.get("tensor", 1)
    planned = replicate * shard * tensor
    if world != planned:
        if not any_size:
            raise SystemExit(f"the plan is for {planned} ranks, there are {world}; start as many, or try it with "
                             "--tiny")
        tensor = math.gcd(tensor, world)
        replicate = next(r for r in range(min(replicate, world // tensor), 0, -1) if world // tensor % r == 0)
        shard = world // tensor // replicate
    sizes = {"replicate": replicate, "shard": shard, "tensor": tensor}
    names = tuple(n for n in sizes if n == "shard" or sizes[n] > 1 or (n == "tensor" and n in PLAN))
    return init_device_mesh(device_type, tuple(sizes[n] for n in names), mesh_dim_names=names)


# ---- a training loop to try it with ---------------------------------------------------------------------------------

class on_meta:
    """Parameters made inside take no memory; buffers are real. Keeps tied parameters tied."""

    def __enter__(self):
        self.register = nn.Module.register_parameter

        def register(module, name, parameter, original=self.register):
            if parameter is not None and not parameter.is_meta:
                parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            original(module, name, parameter)

        nn.Module.register_parameter = register

    def __exit__(self, *_):
        nn.Module.register_parameter = self.register


def materialize(model, device):
    """Gives the (sharded) parameters memory and initial values; buffers keep theirs."""
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    model.to_empty(device=device)
    with torch.no_grad():
        for name, b in model.named_buffers():
            b.copy_(buffers[name])
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0.0, 0.02)
            else:
                p.fill_(0.0 if name.endswith("bias") else 1.0)
@SCALES@

def wide(logits):
    """What the loss is computed in: fp32."""
    return logits.float()


def loss_of(model, tokens):
    targets = tokens[:, 1:]
    if PLAN.get("more", {}).get("loss_in_model"):
        targets = targets.contiguous()
        return model(tokens[:, :-1], labels=targets, shift_labels=targets)["loss"]
    logits = model(tokens[:, :-1])
    logits = getattr(logits, "logits", logits)
    chunks = PLAN.get("more", {}).get("loss_chunks", 1)
    if chunks == 1:
        return F.cross_entropy(wide(logits.flatten(0, 1)), targets.flatten())
    parts = zip(logits.chunk(chunks, dim=1), targets.chunk(chunks, dim=1))
    losses = (F.cross_entropy(wide(x.flatten(0, 1)), y.flatten(), reduction="sum") for x, y in parts)
    return sum(losses) / targets.numel()


@STATES@@DECORATOR@def train_step(model, optimizer, batches):
    """One optimizer step over the micro-batches; the loss is the mean over all tokens of this rank."""
    optimizer.zero_grad()
    total, loss_sum = sum(t.shape[0] for t in batches), 0.0
    for i, tokens in enumerate(batches):
        last = i + 1 == len(batches)
        if PLAN["dialect"] == "ddp":
            model.require_backward_grad_sync = last or PLAN["grad_sync"] == "every"
        for root in roots_of(model) if PLAN["dialect"] != "ddp" else []:
            if PLAN["grad_sync"] == "last":
                root.set_requires_gradient_sync(last)
            elif PLAN["grad_sync"] == "reduce-scatter-only":
                root.set_requires_all_reduce(last)
        for (module, *_), _, options in units_of(model) if PLAN["dialect"] != "ddp" else []:
            if "grad_sync" in options:
                module.set_requires_gradient_sync(last or options["grad_sync"] != "last", recurse=False)
                module.set_requires_all_reduce(last or options["grad_sync"] != "reduce-scatter-only", recurse=False)
            if "reshard_after_backward" in options:
                module.set_reshard_after_backward(last, recurse=False)
        loss = loss_of(model, tokens) * (tokens.shape[0] / total)
        loss.backward()
        loss_sum += loss.detach()
    if PLAN["clip_norm"] is not None:
        nn.utils.clip_grad_norm_(model.parameters(), PLAN["clip_norm"], PLAN.get("more", {}).get("clip_norm_type", 2.0))
    @STEP@
    return loss_sum.full_tensor() if isinstance(loss_sum, DTensor) else loss_sum


def parameter_groups(model):
    # Ignored parameters are plain tensors: one pass over many parameters cannot hold both kinds.
    trained = [p for p in model.parameters() if p.requires_grad]
    sharded = [p for p in trained if isinstance(p, DTensor)]
    whole = [p for p in trained if not isinstance(p, DTensor)]
    return [{"params": parameters} for parameters in (sharded, whole) if parameters]


def make_optimizer(model):
    o = PLAN["optimizer"]
    if o["kind"] == "sgd":
        return torch.optim.SGD(parameter_groups(model), lr=o["lr"], momentum=o.get("momentum", 0.0),
                               weight_decay=o["weight_decay"])
    if o["kind"] == "adamw-8bit":
        from torchao.optim import AdamW8bit
        return AdamW8bit(parameter_groups(model), lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                         weight_decay=o["weight_decay"])
    on_gpu = next(model.parameters()).is_cuda  # there one kernel steps many parameters and makes no temporaries
    return torch.optim.AdamW(parameter_groups(model), lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                             weight_decay=o["weight_decay"], fused=on_gpu)


def peak_memory(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description="trains on random tokens under the plan; start it with torchrun")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tiny", action="store_true",
                        help="narrow layers, short sequences, any number of ranks; names and units stay")
    parser.add_argument("--blocks", type=int, default=0, help="only the first so many blocks (0: all)")
    parser.add_argument("--cpu", action="store_true", help="gloo on processors instead of NCCL on GPUs")
    parser.add_argument("--reference", action="store_true",
                        help="the model written out above even where transformers is installed")
    return parser.parse_args(argv)


def main(argv=None, inspect=None):
    """inspect(model), if given, sees the sharded model after the last step. Returns the losses."""
    args = parse_arguments(argv)
    # Gradients in host memory are clipped by a norm that is summed there.
    gpus = "cpu:gloo,cuda:nccl" if "offload" in PLAN.get("more", {}) and PLAN["clip_norm"] is not None else "nccl"
    dist.init_process_group("gloo" if args.cpu else gpus)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu") if args.cpu else torch.device("cuda", local_rank)
    if not args.cpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(PLAN.get("more", {}).get("host_threads", torch.get_num_threads()))    # for what is offloaded
    torch.manual_seed(PLAN["seed"] % 2**63)
    config = model_config(args)
    with on_meta():
        model = as_kept(build_model(config, args.reference))
    mesh = make_mesh(device.type, args.tiny)
    if PLAN["dialect"] == "ddp":
        materialize(model, device)
    model = apply_plan(model, mesh)
    if PLAN["dialect"] != "ddp":
        materialize(model, "cpu" if "offload" in PLAN.get("more", {}) else device)
    optimizer = make_optimizer(model)
    tensor = mesh["tensor"].size() if "tensor" in mesh.mesh_dim_names else 1
    torch.manual_seed(PLAN["seed"] % 2**63 + 1 + dist.get_rank() // tensor)    # ranks of a layer see the same tokens
    seq_len = min(PLAN["seq_len"], max(tensor, 32 - 32 % tensor)) if args.tiny else PLAN["seq_len"]
    losses = []
    for step in range(args.steps):
        batches = [torch.randint(vocab_size(config), (n, seq_len + 1), device=device) for n in PLAN["micro_batches"]]
        loss = train_step(model, optimizer, batches).double()
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {losses[-1]:.4f}, peak memory {peak_memory(device) / 2**30:.2f} GiB",
                  flush=True)
    if inspect is not None:
        inspect(model)
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
)python";

const char* const kPytorchFourBits = R"python(

def in_four_bits(model):
    """Linear layers but the head's as bitsandbytes', without numbers yet: materialize draws them, packed."""
    import bitsandbytes as bnb
    packing = {"compress_statistics": @DOUBLE@, "quant_type": "nf4", "quant_storage": DTYPES[PLAN["master_dtype"]]}
    for name, layer in list(model.named_modules()):
        turned = type(layer).__name__ == "Conv1D"           # [in, out]
        if name == "@HEAD@" or not (turned or type(layer) is nn.Linear):
            continue
        sizes = layer.weight.shape if turned else layer.weight.shape[::-1]
        packed = bnb.nn.Linear4bit(*sizes, bias=layer.bias is not None, compute_dtype=DTYPES[PLAN["param_dtype"]],
                                   device="meta", **packing)
        elements = torch.empty(layer.weight.numel() // 4, 1, dtype=packing["quant_storage"], device="meta")
        packed.weight = bnb.nn.Params4bit(elements, requires_grad=False, module=packed, bnb_quantized=True, **packing)
        packed.bias = layer.bias
        model.set_submodule(name, packed)
    model.is_loaded_in_4bit = True                          # peft asks
    return model


def give_scales(model, device):
    """Scales of drawn weights, whole on every rank, as those of a checkpoint are."""
    import bitsandbytes as bnb
    for layer in model.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            weight = torch.randn(layer.out_features, layer.in_features, dtype=layer.quant_storage, device=device)
            layer.quant_state = bnb.functional.quantize_4bit(
                weight * 0.02, compress_statistics=@DOUBLE@, quant_type="nf4", quant_storage=layer.quant_storage)[1]
)python";

}  // namespace fsdp
