"""What a GPU runs in place of what PyTorch's own functions do on tensors of the CPU: attention is one kernel, and so is
nn.RMSNorm. Tensors have no data, so that only what is made, kept and let go counts."""
import contextlib
import sys

from fsdp_plan.needs_torch import torch

aten = torch.ops.aten
F = torch.nn.functional


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Flash attention; a mask leaves it: PyTorch makes a bias of it and calls the memory-efficient kernel. Heads of
    more than 256 channels, or of values of another size than keys, are multiplied out, and grouped heads in fp32."""
    grouped = attn_mask is None and key.shape[-3] != query.shape[-3]
    if query.dim() != 4 or query.shape[-1] != value.shape[-1] or query.shape[-1] > 256 or (
            grouped and query.element_size() > 2):
        return multiplied_out(query, key, value, attn_mask, scale)
    if attn_mask is None:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa and key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    bias = attn_mask
    if bias.dtype == torch.bool:
        bias = torch.where(bias, 0.0, torch.full((), float("-inf"), dtype=query.dtype, device=query.device))
    columns = bias.shape[-1]
    if columns % 16:
        bias = F.pad(bias, (0, 16 - columns % 16))[..., :columns]
    bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, dropout_p, is_causal,
                                                        scale=scale)[0]


def multiplied_out(query, key, value, mask, scale):
    if key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = query @ key.transpose(-2, -1) * (scale or query.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores + mask if mask.dtype != torch.bool else scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, -1) @ value


class FusedNorm(torch.autograd.Function):
    """aten._fused_rms_norm keeps its input, the weight and a number per row. Stands for it: what reads and writes the
    same tensors."""

    @staticmethod
    def forward(ctx, x, weight):
        out, statistics = torch.mul(x, weight).to(x.dtype), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
        ctx.save_for_backward(x, weight, statistics)
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, weight, _ = ctx.saved_tensors
        return (torch.addcmul(gradient, x, weight).to(x.dtype) if ctx.needs_input_grad[0] else None,
                torch.empty_like(weight) if ctx.needs_input_grad[1] else None)


def in_place_of(rms_norm):
    def norm(x, normalized_shape, weight=None, eps=None):
        one = weight is not None and tuple(normalized_shape) == tuple(x.shape[-1:])
        return FusedNorm.apply(x, weight) if one else rms_norm(x, normalized_shape, weight, eps)
    return norm


def replacements():
    """(where, name, what)"""
    yield F, "scaled_dot_product_attention", attention
    yield F, "rms_norm", in_place_of(F.rms_norm)
    if masks := sys.modules.get("transformers.masking_utils"):
        # Looks for several sequences in one, and finds none where ids stand in order; a trace has no ids to look at.
        yield masks, "find_packed_sequence_indices", lambda _: None


@contextlib.contextmanager
def in_place():
    kept = []
    try:
        for where, name, what in replacements():
            kept.append((where, name, getattr(where, name)))
            setattr(where, name, what)
        yield
    finally:
        for where, name, what in kept:
            setattr(where, name, what)
