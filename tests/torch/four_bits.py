"""Frozen linear layers in bitsandbytes' 4 bits, for recorders, and what its products hold on a GPU."""
import contextlib

import bitsandbytes as bnb
import torch
import torch.nn.functional as F
from transformers import BitsAndBytesConfig
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import HfQuantizer


def pack(net, double):
    """The layers that transformers would pack, with 16-bit elements, as QLoRA's recipes for FSDP say."""
    packing = {"compress_statistics": double, "quant_type": "nf4", "quant_storage": torch.bfloat16}
    for name in packed_by_transformers(net):
        layer = net.get_submodule(name)
        weight = layer.weight.data.T if isinstance(layer, Conv1D) else layer.weight.data    # [out, in]
        packed = bnb.nn.Linear4bit(weight.shape[1], weight.shape[0], layer.bias is not None,
                                   compute_dtype=torch.bfloat16, **packing)
        packed.weight = bnb.nn.Params4bit(weight.to(torch.bfloat16).contiguous(), requires_grad=False, module=packed,
                                          **packing).to("cpu")
        packed.bias = layer.bias
        net.set_submodule(name, packed)
    net.is_loaded_in_4bit = True                # peft asks
    return net


def packed_by_transformers(net):
    copy, config = copy_of(net), BitsAndBytesConfig(load_in_4bit=True)
    replace_with_bnb_linear(copy, HfQuantizer.get_modules_to_not_convert(copy, add_default_skips=True), config)
    return [name for name, module in copy.named_modules() if isinstance(module, bnb.nn.Linear4bit)]


def copy_of(net):
    with torch.device("meta"):
        return type(net)(net.config)


def states(net):
    """Every rank's scales: (what holds them, the name of a tensor in it, the tensor)."""
    for layer in net.modules():
        state = getattr(layer, "quant_state", None)
        while state is not None:
            yield from ((state, key, value) for key, value in vars(state).items() if isinstance(value, torch.Tensor))
            state = state.state2


def fake(net):
    """After weights were replaced by fake ones: of fake tensors their states, too."""
    for state, key, value in list(states(net)):
        setattr(state, key, torch.empty(value.shape, dtype=value.dtype))
    for layer in net.modules():
        if getattr(layer, "quant_state", None) is not None:
            layer.weight.quant_state = layer.quant_state


def unfused(x, weight, shape, absmax, blocksize, quant_type, bias=None, absmax_8bit=None, absmax_code=None,
            absmax_offset=None):
    """bitsandbytes::gemm_4bit of more than 1,536 tokens on a GPU (backends/cuda/ops.py, 0.50.2): which tensors it
    makes, in its order and held as long. Their values do not matter."""
    if absmax_8bit is not None:
        scales = torch.empty_like(absmax_8bit, dtype=torch.float32)
        absmax = scales + absmax_offset
    whole = torch.empty(shape, dtype=x.dtype, device=x.device)
    return F.linear(x, whole, bias)


def make_table():
    """bitsandbytes makes the values of 8-bit scales once for the process, when they are first asked for."""
    bnb.functional.quantize_4bit(torch.zeros(64), compress_statistics=True)


@contextlib.contextmanager
def as_on_gpu():
    product = torch.ops.bitsandbytes.gemm_4bit
    fused, product.default = product.default, unfused
    try:
        yield
    finally:
        product.default = fused
