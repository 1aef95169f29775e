#!/usr/bin/env python3
"""Records what a compiled block keeps for backward where its linear layers are torchao's float8 ones: a Llama block as
torchtitan has it, and blocks of transformers' own.

torch.compile traces the block with AOTAutograd, whose partitioner decides that; what Inductor would make of the two
graphs does not matter here. Attention is the flash kernel with the layouts that it has on a GPU (memory_log.py). Per
case: bytes that the forward graph hands to the backward graph, of tensors that are no inputs of the block; tensors that
share memory count once, and so do not those of one element or fewer.

gathered: weights as FSDP2 hands them over where it gathers in 8 bits, so that they are graph inputs in 8 bits.
casts_kept: as PyTorch before 2.7, whose partitioner did not know that a parameter is there anyway.

mxfp8 is torchao's MXFP8Linear, whose two casting kernels need a Blackwell GPU: custom operators stand in for them,
which the partitioner can see into as little. It is recorded selectively alone: without recomputation the partitioner
may keep a cast in place of an input, which depends on what it takes those kernels for.

Usage:

    python3 tests/torch/record_float8_saved.py            compares with tests/torch/golden/float8_saved.json
    python3 tests/torch/record_float8_saved.py --write    records it again
"""
import collections
import pathlib
import sys

import torch
import transformers
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._inductor.decomposition import select_decomp_table
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import GemmInputRole

import golden_file
import memory_log
import tensor_llama

GOLDEN = pathlib.Path(__file__).parent / "golden" / "float8_saved.json"
aten = torch.ops.aten
VIEWS = (aten.view.default, aten.permute.default, aten.alias.default, aten._unsafe_view.default)
KEPT = {aten.mm.default, aten._scaled_dot_product_flash_attention.default, aten.max.default}


class Recorded(Exception):
    """The graphs are there, and need not run."""


def source(node):
    while node.target in VIEWS:
        node = node.args[0]
    return node


def selective(kept):
    """torchtitan's policy: attention, largest values and every second matrix product stay."""
    counts = collections.defaultdict(int)

    def policy(context, func, *args, **kwargs):
        if func == aten.mm.default:
            counts[context.is_recompute] += 1
            if counts[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if func in kept else CheckpointPolicy.PREFER_RECOMPUTE
    return create_selective_checkpoint_contexts(policy)


def by_rows(x):
    return (x.new_empty(x.shape, dtype=torch.float8_e4m3fn),
            x.new_empty(x.shape[0], x.shape[1] // 32, dtype=torch.float8_e8m0fnu))


def by_columns(x):
    return (x.new_empty(x.shape[1], x.shape[0], dtype=torch.float8_e4m3fn).t(),
            x.new_empty(x.shape[0] // 32, x.shape[1], dtype=torch.float8_e8m0fnu).t())


def stand_in(name, function):
    operator = torch.library.custom_op(f"recorded::{name}", function, mutates_args=(),
                                       schema="(Tensor x) -> (Tensor, Tensor)")
    operator.register_fake(function)
    return operator


def to_mxfp8(block):
    from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear
    from torchao.prototype.mx_formats import kernels, mx_tensor

    rows, columns = stand_in("cast_by_rows", by_rows), stand_in("cast_by_columns", by_columns)

    def quantize(x, **how):
        data, scales = columns(x)
        return None, data, None, scales

    mx_tensor.triton_to_mxfp8_dim0 = lambda x, **how: rows(x)
    kernels.mxfp8_quantize_cuda = quantize
    for module in list(block.modules()):
        for name, layer in list(module.named_children()):
            if type(layer) is torch.nn.Linear:
                converted = MXFP8Linear(layer.in_features, layer.out_features, bias=False)
                converted.weight = layer.weight
                setattr(module, name, converted)


def by_recipe(block, recipe):
    if recipe == "mxfp8":
        return to_mxfp8(block)
    if recipe != "none":
        convert_to_float8_training(block, config=Float8LinearConfig.from_recipe_name(recipe))


def gather_in_8_bits(block):
    for m in block.modules():
        if isinstance(m, Float8Linear):
            m.weight = torch.nn.Parameter(hp_tensor_to_float8_dynamic(
                m.weight.detach(), torch.float8_e4m3fn, m.linear_mm_config, gemm_input_role=GemmInputRole.WEIGHT))


class LayerOfTransformers(torch.nn.Module):
    """A decoder layer of transformers' own, called with its tables of angles, which are no part of it."""

    def __init__(self, c):
        super().__init__()
        config = transformers.AutoConfig.for_model(
            c["model_type"], vocab_size=160, hidden_size=c["hidden"], intermediate_size=c["inner"],
            num_hidden_layers=1, num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"],
            head_dim=c["hidden"] // c["heads"], use_cache=False, bos_token_id=None, eos_token_id=None,
            pad_token_id=None)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        self.layer = model.model.layers[0].train()

    def forward(self, x, angles):
        return self.layer(x, position_embeddings=angles)


def block_and_angles(c):
    width = c["hidden"] // c["heads"]
    if "model_type" in c:
        return LayerOfTransformers(c), torch.ones(2, 1, c["seq_len"], width, dtype=torch.bfloat16).unbind(0)
    return tensor_llama.Layer(c), torch.ones(c["seq_len"], 1, width // 2, dtype=torch.complex64)


def stop(*args):
    raise Recorded


def record(c, convert=by_recipe, kept=KEPT):
    torch._dynamo.reset()
    saved = {}

    def forward(graph, inputs):
        results = next(n for n in graph.graph.nodes if n.op == "output").args[0][1:]     # the first is the block's
        for node in results:
            value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
            if node is None or source(node).op == "placeholder" or not isinstance(value, torch.Tensor):
                continue
            if value.numel() > 2 and value.dtype != torch.complex64:                    # the table of angles
                saved[source(node).name] = value.numel() * value.element_size()
        return make_boxed_func(stop)

    backend = aot_autograd(fw_compiler=forward, bw_compiler=lambda graph, inputs: make_boxed_func(graph.forward),
                           partition_fn=min_cut_rematerialization_partition, decompositions=select_decomp_table())
    block, freqs = block_and_angles(c)
    block = block.to(torch.bfloat16)
    convert(block, c["recipe"])
    if c.get("gathered"):
        gather_in_8_bits(block)
    if c.get("selective"):
        block = checkpoint_wrapper(block, context_fn=lambda: selective(kept), preserve_rng_state=False)
    x = torch.randn(1, c["seq_len"], c["hidden"], dtype=torch.bfloat16, requires_grad=True)
    with functorch_config.patch(treat_parameters_as_free_to_save=not c.get("casts_kept", False)):
        try:
            torch.compile(block, backend=backend, fullgraph=True)(x, freqs)
        except Recorded:
            pass
    return {"config": c, "saved": sum(saved.values())}


def main():
    tensor_llama.nn.functional.scaled_dot_product_attention = memory_log.attention
    base = dict(hidden=256, inner=512, heads=8, kv_heads=8, seq_len=128)
    configs = [dict(base, name=f"{recipe}{kind}", recipe=recipe, selective=kind != "")
               for recipe in ("none", "tensorwise", "rowwise", "rowwise_with_gw_hp") for kind in ("", "-selective")]
    configs.append(dict(base, name="mxfp8-selective", recipe="mxfp8", selective=True))
    for model_type, kv_heads in (("llama", 8), ("llama", 2), ("qwen2", 2), ("qwen3", 8)):
        configs += [dict(base, name=f"{model_type}-{kv_heads}-{recipe}", model_type=model_type, kv_heads=kv_heads,
                         recipe=recipe, selective=False)
                    for recipe in ("none", "tensorwise", "rowwise", "rowwise_with_gw_hp")]
    gathered = dict(base, recipe="tensorwise", gathered=True)
    configs += [dict(gathered, name="gathered", selective=False), dict(gathered, name="gathered-selective",
                                                                       selective=True)]
    configs += [dict(gathered, name=f"{model_type}-{kv_heads}-gathered", model_type=model_type, kv_heads=kv_heads,
                     selective=False)
                for model_type, kv_heads in (("llama", 8), ("llama", 2), ("qwen2", 2), ("qwen3", 8), ("qwen3", 2))]
    for how in (dict(recipe="tensorwise"), dict(recipe="rowwise"), dict(recipe="rowwise_with_gw_hp"),
                dict(recipe="tensorwise", gathered=True)):
        kind = "gathered" if "gathered" in how else how["recipe"]
        configs += [dict(base, name=f"{kind}-casts-kept", selective=False, casts_kept=True, **how),
                    dict(base, name=f"{kind}-casts-kept-selective", selective=True, casts_kept=True, **how),
                    dict(base, name=f"llama-8-{kind}-casts-kept", model_type="llama", selective=False,
                         casts_kept=True, **how)]
    cases = [record(c) for c in configs]
    return golden_file.finish(GOLDEN, golden_file.text_of({"torch": torch.__version__, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
