"""Records what PyTorch's autograd keeps and what is alive at the worst moment, for each op as each stack calls it:
torchtitan (of 2026; of 2025, which copied k and v to all heads; of 2024, which had its own RMSNorm), transformers
("hf", with SDPA and with eager attention) and llm-foundry's MPT. tests/models/implementation_test.cpp compares the
eager implementations with it.

    python tests/torch/record_saved.py            compares with tests/torch/golden/models/saved.json, prints what
      changed; exit 1
    python tests/torch/record_saved.py --write    writes it            (needs torch, torchao, transformers and
      peft)

Runs on fake tensors and needs no GPU. What is saved is read off fake CUDA tensors, so that PyTorch dispatches as on a
GPU (rms_norm is one fused operator there, layer_norm's statistics are fp32); memory off fake CPU tensors, because the
autograd engine asks a GPU for its streams. F.scaled_dot_product_attention, which picks a kernel by asking the GPU, is
replaced by the one that it picks there.

saved_*: bits of the inputs and outputs that stay, and bytes that exist for backward only. *_scratch_bytes: bytes alive
at the worst moment less those of inputs, outputs (gradients) and saved tensors; negative where those are not alive
together. What a kernel allocates inside itself is not seen. *_kernels: operators that compute, each a kernel; a custom
function or fused operator counts 1 (its backward 2 or 3), and so does _safe_softmax, which is five.
"""

import argparse
import json
import pathlib
import sys
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
import four_bits
import prime_rl
import titan_experts
import titan_latent
import transformers
from fused_dropout import dropout
from record_tape import FusedNorm, Memory, aten, loss_of, repeat, rotate
from saved_cases import FAMILIES, FLOAT8, PRIME_RL, TITAN, WIDE
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from transformers.activations import FastGELUActivation, NewGELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.glm4_moe import modeling_glm4_moe
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaRMSNorm, eager_attention_forward, rotate_half
from transformers.models.mixtral import modeling_mixtral
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.phi3 import modeling_phi3
from transformers.pytorch_utils import Conv1D

GOLDEN = pathlib.Path(__file__).parent / "golden" / "models" / "saved.json"
SEQUENCES, SEQ_LEN = 2, 64
WIDTH, OUT, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 160, 4, 2, 16
V_DIM, PART, LATENT = 8, 4, 24   # of latent attention: channels of a value's head, those that turn, of the latent
NO_KERNEL = ("empty", "view", "detach", "alias", "transpose", "t.", "expand", "unsqueeze", "squeeze", "slice", "select",
             "split", "unbind",
             "permute", "reshape", "lift_fresh", "as_strided", "new_empty", "real", "device", "_unsafe_view", "_conj")


def flash(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """A mask leaves the flash kernel: PyTorch makes a bias of it and calls the memory-efficient one. So does fp32, for
    which that is the only fused kernel; it takes no grouped heads, and then PyTorch multiplies out."""
    if attn_mask is not None:
        bias = attn_mask
        if bias.dtype == torch.bool:   # as ATen's convert_boolean_attn_mask
            bias = torch.where(attn_mask, 0.0, torch.full((), float("-inf"), dtype=query.dtype, device=query.device))
        if bias.shape[-1] % 16 != 0:
            raise ValueError("a bias of this length is padded, which is not recorded")
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias.expand(query.shape[0], query.shape[1], -1, -1), True, dropout_p, is_causal,
            scale=scale)[0]
    assert enable_gqa or key.shape[1] == query.shape[1]
    if query.dtype == torch.bfloat16 and value.shape[-1] != query.shape[-1]:   # flash has no such heads, cuDNN has
        return aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, dropout_p, is_causal,
                                                        scale=scale)[0]
    if query.dtype == torch.float32:
        if key.shape[1] != query.shape[1]:
            return aten._scaled_dot_product_attention_math(query, key, value, None, dropout_p, is_causal, None,
                                                           scale=scale, enable_gqa=True)[0]
        return aten._scaled_dot_product_efficient_attention(query, key, value, None, True, dropout_p, is_causal,
                                                            scale=scale)[0]
    return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]


def produce(seed, shape):
    """An activation that only the graph owns."""
    return seed.new_empty(shape) + seed


class Consume(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *outs):
        ctx.shapes = [out.shape for out in outs]
        return outs[0].new_empty(1)

    @staticmethod
    def backward(ctx, gradient):
        made = tuple(gradient.new_empty(shape) for shape in ctx.shapes)
        return made if len(made) > 1 else made[0]


class Kernels(Memory):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.")
        self.count += not (name.startswith(NO_KERNEL) or name.startswith("prim"))
        return super().__torch_dispatch__(func, types, args, kwargs)


class Unwrapped(Memory):
    """Of tensors that wrap others, what their operators are made of."""
    inherited = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t.__name__ in ("Float8TrainingTensor", "MXTensor") for t in types):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)


def size(tensor):
    return tensor.numel() * tensor.element_size()


def saved_by(call, inputs, parameters):
    """(bits of inputs, bits of outputs, extra bytes). Scalars, random state, and constants that outlive the step do not
    count."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        out = call(*inputs)
    outs = out if isinstance(out, tuple) else (out,)
    def storage(tensor):
        return tensor.untyped_storage()._cdata
    def bits(tensors):
        return sum(1 << i for i, t in enumerate(tensors) if any(storage(s) == storage(t) for s in saved))
    known = {storage(t) for t in [*inputs, *parameters, *outs]}
    extra = {storage(s): s.untyped_storage().nbytes()
             for s in saved if storage(s) not in known and s.dim() > 0 and s.dtype != torch.uint64}
    return {"saved_inputs": bits(inputs), "saved_outputs": bits(outs), "saved_extra_bytes": sum(extra.values())}


def memory_of(call, shapes, dtype, parameters):
    memory = Kernels()
    for t in parameters:
        t.grad = None
        memory.ignore(t)
    seed = torch.empty(1, dtype=dtype, requires_grad=True)
    memory.ignore(seed)
    with memory:
        inputs = [produce(seed, s) if isinstance(s, tuple) else s for s in shapes]
        for s, t in zip(shapes, inputs):
            if not isinstance(s, tuple):
                memory.ignore(t)
        del t   # or the last input would live on
        before, memory.peak, memory.count = memory.live, memory.live, 0
        out = call(*inputs)
        alive, peak, forward_kernels = memory.live, memory.peak, memory.count
        gradients = sum(size(t) for t in inputs if t.requires_grad)
        outs = out if isinstance(out, tuple) else (out,)
        loss = Consume.apply(*outs) if outs[0].dim() > 0 else out
        result = sum(map(size, outs)) if outs[0].dim() > 0 else 0
        del inputs, out, outs
        kept = memory.live
        memory.phase, memory.peak, memory.count = "backward", memory.live, 0
        loss.backward()
    gradients += sum(size(p.grad) for p in parameters if p.grad is not None)
    activations = sum(isinstance(s, tuple) for s in shapes)
    # the seed's gradients and their sum; the gradient of Consume's output
    helpers = max(0, 2 * activations - 1) + (1 if result else 0)
    return {"forward_scratch_bytes": peak - alive,
            "backward_scratch_bytes": memory.peak - kept - gradients - result - (dtype.itemsize if result else 0),
            "forward_kernels": forward_kernels, "backward_kernels": memory.count - helpers}


class MPTNorm(nn.Module):
    """low_precision_layernorm: everything in the compute type."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias)


class FusedCrossEntropy(torch.autograd.Function):
    """What flash-attn's CrossEntropyLoss, llm-foundry's default loss, keeps and allocates: logits, log-sum-exp and
    labels; a loss per row."""

    @staticmethod
    def forward(ctx, logits, labels):
        losses, lse = logits.new_empty(len(logits), dtype=torch.float32), logits.new_empty(len(logits),
            dtype=torch.float32)
        ctx.save_for_backward(logits, lse, labels)
        return losses

    @staticmethod
    def backward(ctx, gradient):
        return torch.empty_like(ctx.saved_tensors[0]), None


def cases(stack, dtype, device):
    """(op, call, shapes of the inputs or the inputs themselves, parameters)"""
    rows, b16 = (SEQUENCES, SEQ_LEN, WIDTH), dtype == torch.bfloat16
    def weight(*shape):
        return torch.empty(*shape, dtype=dtype, device=device, requires_grad=True)
    ids = torch.zeros(SEQUENCES, SEQ_LEN, dtype=torch.int64, device=device)
    norm, bias = weight(WIDTH), weight(WIDTH)
    on_gpu = device == "cuda"
    # What a model makes once for all layers.
    angles = torch.empty(SEQ_LEN, HEAD_DIM // 2, dtype=torch.complex64, device=device)
    cos, sin = torch.empty(2, 1, SEQ_LEN, HEAD_DIM, dtype=dtype, device=device).unbind(0)
    wide_cos, wide_sin = torch.empty(2, 1, SEQ_LEN, HEAD_DIM, device=device).unbind(0)
    mask = torch.empty(1, 1, SEQ_LEN, SEQ_LEN, dtype=dtype, device=device)
    window_mask = torch.empty(1, 1, SEQ_LEN, SEQ_LEN, dtype=torch.bool, device=device).expand(SEQUENCES, -1, -1, -1)

    def heads(x):
        return x.view(SEQUENCES, SEQ_LEN, -1, HEAD_DIM)

    def titan_rotary(x):
        x_ = torch.view_as_complex(heads(x).float().reshape(SEQUENCES, SEQ_LEN, -1, HEAD_DIM // 2, 2))
        return torch.view_as_real(x_ * angles.view(1, SEQ_LEN, 1, -1)).flatten(3).type_as(x).flatten(2)

    def own_norm(x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * norm

    def composed_norm(x):
        wide = x.float()
        return wide.mul(torch.rsqrt(wide.pow(2).mean(-1, keepdim=True).add_(1e-5))).mul(norm).type_as(x)

    def titan_attention(q, k, v):
        n = HEADS // (k.shape[-1] // HEAD_DIM)
        k, v = heads(k), heads(v)
        if stack == "torchtitan-2025":
            k, v = repeat(k, n), repeat(v, n)
        return flash(heads(q).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, 0.0, True, None,
                     True).transpose(1, 2).reshape(rows)

    def hf_rotary(x):
        x = heads(x).transpose(1, 2)
        return ((x * cos.unsqueeze(1)) + (rotate_half(x) * sin.unsqueeze(1))).transpose(1, 2).reshape(rows)

    def hf_attention(q, k, v):
        q, k, v = (heads(x).transpose(1, 2) for x in (q, k, v))
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=True, is_causal=True)
        if stack == "hf":
            return sdpa_attention_forward(module, q, k, v, None, scaling=HEAD_DIM**-0.5)[0].reshape(rows)
        return eager_attention_forward(module, q, k, v, mask, HEAD_DIM**-0.5)[0].reshape(rows)

    def frozen(attention, inputs):
        """No gradient goes to those of q, k and v: where nothing below them is trained."""
        return lambda *qkv: attention(*(x.detach() if name in inputs else x for name, x in zip("qkv", qkv)))

    def wide_rotary(x):
        x = heads(x).transpose(1, 2)
        turned = (x * wide_cos.unsqueeze(1)) + (rotate_half(x) * wide_sin.unsqueeze(1))
        return turned.to(x.dtype).transpose(1, 2).reshape(rows)

    def phi3_rotary(qkv):
        kv_width = KV_HEADS * HEAD_DIM
        q, k = (heads(x).transpose(1, 2) for x in (qkv[..., :WIDTH], qkv[..., WIDTH : WIDTH + kv_width]))
        return modeling_phi3.apply_rotary_pos_emb(q, k, cos, sin)

    def neox_rotary(qkv):
        q, k, _ = qkv.view(SEQUENCES, SEQ_LEN, -1, 3 * HEAD_DIM).transpose(1, 2).chunk(3, dim=-1)
        part = HEAD_DIM // 2
        return modeling_gpt_neox.apply_rotary_pos_emb(q, k, cos[..., :part], sin[..., :part])

    def glm_rotary(q, k):
        q, k = (heads(x).transpose(1, 2) for x in (q, k))
        part = HEAD_DIM // 2
        return modeling_glm4_moe.apply_rotary_pos_emb(q, k, cos[..., :part], sin[..., :part])

    def latent_rotary(q, latent):
        q_pass, q_rot = torch.split(heads(q).transpose(1, 2), [HEAD_DIM - PART, PART], dim=-1)
        k_rot = latent[..., -PART:].view(SEQUENCES, 1, SEQ_LEN, PART)
        q_rot, k_rot = modeling_deepseek_v3.apply_rotary_pos_emb_interleave(q_rot, k_rot, cos[..., :PART],
                                                                            sin[..., :PART])
        return torch.cat((q_pass, q_rot), dim=-1), k_rot

    def complex_rotary(q, latent):
        q_pass, q_rot = torch.split(heads(q).transpose(1, 2), [HEAD_DIM - PART, PART], dim=-1)
        k_rot = latent[..., -PART:].view(SEQUENCES, 1, SEQ_LEN, PART)
        q_rot, k_rot = modeling_deepseek_v2.apply_rotary_emb(q_rot, k_rot, angles[None, :, : PART // 2])
        return torch.cat((q_pass, q_rot), dim=-1), k_rot

    def latent_attention(q, kv, k_rot):
        """Keys and values from one projection, keys joined with a part that all heads share."""
        module = SimpleNamespace(kv_b_proj=lambda x: x, qk_nope_head_dim=HEAD_DIM - PART, v_head_dim=V_DIM,
                                 qk_rope_head_dim=PART, num_key_value_groups=1, training=True, is_causal=True)
        k, v = modeling_deepseek_v3.DeepseekV3Attention.expand_kv(
            module, kv.view(SEQUENCES, 1, SEQ_LEN, -1), k_rot)
        return sdpa_attention_forward(module, q, k, v, None, scaling=HEAD_DIM**-0.5)[0].reshape(
            SEQUENCES, SEQ_LEN, HEADS * V_DIM)

    def attention_of_packed_v(q, k, qkv):
        """Phi-3's: q and k were turned, and joined head by head; v is a view of what they were turned from."""
        if stack != "hf":
            return hf_attention(q, k, qkv[..., -k.shape[-1] :])
        v = heads(qkv[..., -kv[-1] :]).transpose(1, 2)
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=True, is_causal=True)
        return sdpa_attention_forward(module, q, k, v, None, scaling=HEAD_DIM**-0.5)[0].reshape(rows)

    def attention_by_head(q, k, v):
        """q and k were joined anew, head by head."""
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=True, is_causal=True)
        return sdpa_attention_forward(module, q, k, heads(v).transpose(1, 2), None, scaling=HEAD_DIM**-0.5)[0].reshape(
            rows)

    def windowed_attention(q, k, v):
        q, k, v = (heads(x).transpose(1, 2) for x in (q, k, v))
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=True, is_causal=True)
        return sdpa_attention_forward(module, q, k, v, window_mask, scaling=HEAD_DIM**-0.5)[0].reshape(rows)

    def capped_attention(q, k, v):
        q, k, v = (heads(x).transpose(1, 2) for x in (q, k, v))
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=True, head_dim=HEAD_DIM)
        return modeling_gemma2.eager_attention_forward(module, q, k, v, mask, scaling=HEAD_DIM**-0.5,
                                                       softcap=50.0)[0].reshape(rows)

    def halved_rotary(x):
        half = HEAD_DIM // 2
        return modeling_gpt_oss._apply_rotary_emb(heads(x).transpose(1, 2), cos[..., :half].unsqueeze(1),
                                                  sin[..., :half].unsqueeze(1))

    def attention_with_sinks(q, k, v):
        """q and k were joined anew, head by head."""
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=True, sinks=sinks)
        return modeling_gpt_oss.eager_attention_forward(module, q, k, heads(v).transpose(1, 2), mask,
                                                        scaling=HEAD_DIM**-0.5)[0].reshape(rows)

    def clamped_swiglu(x):
        return modeling_gpt_oss.GptOssExperts._apply_gate(SimpleNamespace(alpha=1.702, limit=7.0), x)

    def soft_cap(x):
        x = x / 30.0
        x = torch.tanh(x)
        return x * 30.0

    def packed_attention(qkv):
        q, k, v = (heads(x).transpose(1, 2) for x in qkv.chunk(3, dim=2))
        return flash(q, k, v, None, 0.0, True).transpose(1, 2).reshape(rows)

    kv = (SEQUENCES, SEQ_LEN, KV_HEADS * HEAD_DIM)
    table, matrix, transposed, out_bias = weight(VOCAB, WIDTH), weight(OUT, WIDTH), weight(WIDTH, OUT), weight(OUT)
    sinks = weight(HEADS)
    by_head = [(SEQUENCES, n, SEQ_LEN, HEAD_DIM) for n in (HEADS, KV_HEADS)]
    vocab, packed = (SEQUENCES, SEQ_LEN, VOCAB), (SEQUENCES, SEQ_LEN, WIDTH + 2 * KV_HEADS * HEAD_DIM)
    hf, titan, foundry = stack.startswith("hf"), stack.startswith("torchtitan"), stack == "foundry"
    if stack == "torchtitan-2026-06":
        def flex(q, k, v):
            return titan_latent.flex(heads(q), heads(k), heads(v)).reshape(rows)
        yield "attention", flex, [rows, rows, rows], []
        yield "attention_grouped", flex, [rows, kv, kv], []
        yield "rotary_latent", lambda q, latent: titan_latent.rotary(q, latent, angles[:, : PART // 2], HEADS, PART), [
            rows, (SEQUENCES, SEQ_LEN, LATENT + PART)], [angles]
        yield "attention_latent", lambda q, kv, shared: titan_latent.attention(q, kv, shared, V_DIM), [
            (SEQUENCES, SEQ_LEN, HEADS, HEAD_DIM), (SEQUENCES, SEQ_LEN, HEADS * (HEAD_DIM - PART + V_DIM)),
            (SEQUENCES, SEQ_LEN, 1, PART)], []
        return
    if stack == "torchtitan-2024":
        yield "rms_norm", own_norm, [rows], [norm]
        return
    if stack == "torchtitan-2025":   # nn.RMSNorm before it was one operator
        yield "rms_norm", composed_norm, [rows], [norm]
    if stack in ("torchtitan-2025", "hf-eager-attention"):
        attention = titan_attention if titan else hf_attention
        yield "attention", attention, [rows, rows, rows], [mask]
        yield "attention_grouped", attention, [rows, kv, kv], [mask]
        if not titan:
            yield "attention_of_packed_v", attention_of_packed_v, [rows, kv, packed], [mask]
            yield "attention_capped", capped_attention, [rows, rows, rows], [mask]
            yield "attention_capped_grouped", capped_attention, [rows, kv, kv], [mask]
        return
    yield "embedding", lambda i: F.embedding(i, table), [ids], [table]
    yield "linear", lambda x: F.linear(x, matrix), [rows], [matrix]
    yield "linear_bias", lambda x: F.linear(x, matrix, out_bias), [rows], [matrix, out_bias]
    yield "add", lambda a, b: a + b, [rows, rows], []
    yield "layer_norm", MPTNorm(norm, bias), [rows], [norm, bias]
    yield "gelu", F.gelu, [rows], []
    yield "attention_packed", packed_attention, [(SEQUENCES, SEQ_LEN, 3 * WIDTH)], []
    if foundry:
        yield "cross_entropy", lambda x, t: FusedCrossEntropy.apply(x.flatten(0, 1), t).mean(), [vocab,
            ids.flatten()], []
        return
    yield "swiglu", lambda gate, up: F.silu(gate) * up, [rows, rows], []
    if titan:
        yield "rms_norm", (lambda x: F.rms_norm(x, (WIDTH,), norm, 1e-5)) if on_gpu else lambda x: FusedNorm.apply(x,
            norm), [rows], [norm]
        yield "attention", titan_attention, [rows, rows, rows], []
        yield "attention_grouped", titan_attention, [rows, kv, kv], []
        yield "rotary", titan_rotary, [rows], [angles]
        if b16:   # the loss is of one type otherwise
            yield "cross_entropy", lambda x, t: loss_of(x, t, 1), [vocab, ids], []
    if hf:
        module = LlamaRMSNorm(WIDTH)
        module.weight = nn.Parameter(norm.detach())
        yield "rms_norm", module, [rows], [module.weight]
        yield "linear_in_fp32", lambda x: F.linear(x.type(torch.float32), matrix.type(torch.float32)), [rows], [matrix]
        router = modeling_glm4_moe.Glm4MoeTopkRouter(transformers.Glm4MoeConfig(
            hidden_size=WIDTH, n_routed_experts=32, num_experts_per_tok=4, n_group=8, topk_group=3))
        router.weight = nn.Parameter(weight(32, WIDTH).detach())
        router.e_score_correction_bias = torch.empty(32, device=device)
        yield "router", lambda x: router(x)[1], [rows], [router.weight, router.e_score_correction_bias]
        conv = Conv1D(OUT, WIDTH)
        conv.weight, conv.bias = nn.Parameter(transposed.detach()), nn.Parameter(weight(OUT).detach())
        yield "linear_transposed", conv, [rows], [conv.weight, conv.bias]
        yield "gelu_tanh", NewGELUActivation(), [rows], []
        yield "gelu_tanh_fast", FastGELUActivation(), [rows], []
        yield "geglu", lambda gate, up: F.gelu(gate, approximate="tanh") * up, [rows, rows], []
        yield "swiglu_packed", lambda x: (lambda gate, up: up * F.silu(gate))(*x.chunk(2, dim=-1)), [
            (SEQUENCES, SEQ_LEN, 2 * WIDTH)], []
        yield "scale", lambda x: x * 0.22, [rows], []
        yield "soft_cap", soft_cap, [rows], []
        for label, norm_class in (("rms_norm_wide", Olmo2RMSNorm), ("rms_norm_offset", Gemma2RMSNorm)):
            module_ = norm_class(WIDTH)
            module_.weight = nn.Parameter(norm.detach())
            yield label, module_, [rows], [module_.weight]
        yield "rotary_wide", wide_rotary, [rows], [wide_cos, wide_sin]
        yield "rotary_halved", halved_rotary, [rows], [cos, sin]
        yield "attention_with_sinks", attention_with_sinks, [by_head[0], by_head[0], rows], [mask, sinks]
        yield "attention_with_sinks_grouped", attention_with_sinks, [*by_head, kv], [mask, sinks]
        yield "swiglu_packed_clamped", clamped_swiglu, [(SEQUENCES, SEQ_LEN, 2 * WIDTH)], []
        of_chosen = modeling_gpt_oss.GptOssTopKRouter(transformers.GptOssConfig(
            hidden_size=WIDTH, num_local_experts=32, num_experts_per_tok=4))
        of_chosen.weight, of_chosen.bias = (nn.Parameter(t.detach()) for t in (weight(32, WIDTH), weight(32)))
        yield "router_of_chosen", lambda x: of_chosen(x)[1], [rows], [of_chosen.weight, of_chosen.bias]
        for label, more in (("router_in_fp32", {}), ("router_in_fp32, groups", dict(
                topk_method="group_limited_greedy", n_group=8, topk_group=3))):
            wide = modeling_deepseek_v2.DeepseekV2TopkRouter(transformers.DeepseekV2Config(
                hidden_size=WIDTH, n_routed_experts=32, num_experts_per_tok=4, routed_scaling_factor=16.0, **more))
            wide.weight = nn.Parameter(weight(32, WIDTH).detach())
            yield label, lambda x, wide=wide: wide(x)[1], [rows], [wide.weight]
        yield "rotary_partial", glm_rotary, [rows, kv], [cos, sin]
        yield "rotary_packed", phi3_rotary, [packed], [cos, sin]
        yield "rotary_packed_partial", neox_rotary, [(SEQUENCES, SEQ_LEN, 3 * WIDTH)], [cos, sin]
        yield "attention_of_packed_v", attention_of_packed_v, [
            (SEQUENCES, HEADS, SEQ_LEN, HEAD_DIM), (SEQUENCES, KV_HEADS, SEQ_LEN, HEAD_DIM), packed], []
        yield "attention_by_head", attention_by_head, [by_head[0], by_head[0], rows], []
        yield "attention_by_head_grouped", attention_by_head, [*by_head, kv], []
        latent = (SEQUENCES, SEQ_LEN, LATENT + PART)
        yield "rotary_latent", latent_rotary, [rows, latent], [cos, sin]
        yield "rotary_latent_complex", complex_rotary, [rows, latent], [angles]
        yield "rms_norm_latent", lambda x: module(x[..., :WIDTH]), [(SEQUENCES, SEQ_LEN, WIDTH + PART)], [module.weight]
        yield "attention_latent", latent_attention, [
            by_head[0], (SEQUENCES, SEQ_LEN, HEADS * (HEAD_DIM - PART + V_DIM)), (SEQUENCES, 1, SEQ_LEN, PART)], []
        yield "attention_windowed", windowed_attention, [rows, rows, rows], [window_mask]
        yield "attention_windowed_grouped", windowed_attention, [rows, kv, kv], [window_mask]
        yield "rotary", hf_rotary, [rows], [cos, sin]
        yield "attention", hf_attention, [rows, rows, rows], []
        yield "attention_grouped", hf_attention, [rows, kv, kv], []
        for inputs in () if b16 else ("q", "k", "v", "qk", "qv", "kv"):
            yield f"attention_grouped, frozen {inputs}", frozen(hf_attention, inputs), [rows, kv, kv], []
        if b16:
            yield "cross_entropy", lambda x, t: ForCausalLMLoss(x, None, VOCAB, shift_labels=t), [vocab, ids], []


def record(stack, dtype):
    F.scaled_dot_product_attention = flash
    with FakeTensorMode():
        on_gpu = list(cases(stack, dtype, "cuda"))
        on_cpu = list(cases(stack, dtype, "cpu"))
        for (op, call, shapes, parameters), other in zip(on_gpu, on_cpu, strict=True):
            inputs = [torch.empty(s, dtype=dtype, device="cuda", requires_grad=True) if isinstance(s, tuple) else s
                      for s in shapes]
            yield {"stack": stack, "op": op, "element_bytes": dtype.itemsize, **saved_by(call, inputs, parameters),
                   **memory_of(*other[1:3], dtype, other[3])}


def adapted(net, text):
    """The model with the adapters that `text` says (rank=8,alpha=8,targets=q_proj+v_proj)."""
    import peft
    said = dict(part.split("=") for part in text.split(","))
    targets = said.get("targets", "all-linear")
    targets = targets if targets == "all-linear" else targets.split("+")
    if "base" in said:
        four_bits.pack(net, double=said["base"] == "nf4-double")
    lora = peft.LoraConfig(r=int(said["rank"]), lora_alpha=float(said.get("alpha", said["rank"])),
                           lora_dropout=float(said.get("dropout", 0)), target_modules=targets)
    return peft.inject_adapter_in_model(lora, net)


def multiply_in_8_bits(net, recipe):
    """As the plan's filter chooses: sides that are multiples of 16, without the output layer; in blocks all."""
    from record_float8_saved import by_recipe
    head = net.lm_head
    if recipe != "mxfp8":
        net.lm_head = None
    by_recipe(net, recipe)
    net.lm_head = net.lm_head or head


def record_family(name, seq_len, recompute=False):
    """As record_model, of a model that AutoModelForCausalLM builds."""
    F.dropout = dropout
    config, attention, *lora = FAMILIES.get(name) or PRIME_RL.get(name) or TITAN.get(name) or WIDE.get(name) or \
        FLOAT8[name][:2]
    form = lora.pop() if name in TITAN else None
    F.scaled_dot_product_attention = flash
    with FakeTensorMode():
        mask = torch.empty(1, 1, seq_len, seq_len, dtype=torch.bfloat16)
        window = torch.empty(1, 1, seq_len, seq_len, dtype=torch.bool)
        with unset_fake_temporarily():  # peft cannot move fake parameters
            net = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(**config), attn_implementation=attention)
            if lora and not name.startswith("adapters"):
                net = adapted(net, *lora)
            if name in FLOAT8:
                multiply_in_8_bits(net, FLOAT8[name][2])
            if name in PRIME_RL:
                prime_rl.put_into(net, config, rank=8 if lora else 0, in_turn="in turn" in name)
            if form:
                titan_experts.put_into(net, config, form)
            if form and config["model_type"].startswith("deepseek"):
                titan_latent.put_into(net, config)
        for owner, leaf, b in [(m, *b) for m in net.modules() for b in m.named_buffers(recurse=False)]:
            setattr(owner, leaf, torch.empty(b.shape, dtype=b.dtype))
        module = sys.modules[type(net).__module__]
        eager = attention == "eager"
        module.create_causal_mask = lambda **_: mask if eager else None
        module.create_sliding_window_causal_mask = lambda **_: mask if eager else window.expand(2, -1, -1, -1)
        ties = {}
        for name_, p in list(net.named_parameters(remove_duplicate=False)):
            owner, leaf = name_.rsplit(".", 1)
            if id(p) not in ties:
                dtype = torch.float32 if name in WIDE and p.requires_grad else torch.bfloat16
                ties[id(p)] = nn.Parameter(torch.empty(p.shape, dtype=dtype), p.requires_grad), p
            setattr(net.get_submodule(owner), leaf, ties[id(p)][0])
        four_bits.fake(net)
        net.train()
        net.config.use_cache = False
        if recompute:
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            if lora:  # transformers lets the embedded tokens require a gradient; checkpoint_wrapper does not
                net.disable_input_require_grads()
        ids = torch.zeros(2, seq_len, dtype=torch.int64)
        memory = Unwrapped()
        for t in [*net.parameters(), *net.buffers(), *(s[2] for s in four_bits.states(net)), ids, mask, window]:
            memory.ignore(t)
        with memory, four_bits.as_on_gpu():
            out = net(input_ids=ids, labels=ids)
            loss, forward_peak = out.loss, memory.peak
            del out
            saved, memory.phase, memory.peak = memory.live, "backward", 0
            loss.backward()
    return {"name": name, "attention": attention, "checkpointing": "full" if recompute else "none", "sequences": 2,
            "seq_len": seq_len, "forward_peak": forward_peak, "saved": saved, "backward_peak": memory.peak,
            "end": memory.live, "config": config, **({"lora": lora[0]} if lora else {}),
            **({"form": form} if form else {}), **({"float8": FLOAT8[name][2]} if name in FLOAT8 else {})}


def record_model(model, attention, recompute, vocab, seq_len):
    """Peaks of forward and backward of a whole model of transformers, logits and loss included, as record_tape.py takes
    them. Its causal mask is None under SDPA (the kernel knows) and one tensor for all layers under eager attention."""
    ffn = {"llama": 640, "mixtral": 320, "gpt2": 1024}[model]
    shape = dict(layers=3, width=256, heads=8, kv_heads=8 if model == "gpt2" else 2, head_dim=32, ffn=ffn, vocab=vocab,
                 sequences=2, seq_len=seq_len)
    F.scaled_dot_product_attention = flash
    with FakeTensorMode():
        mask = None if attention == "sdpa" else torch.empty(1, 1, seq_len, seq_len, dtype=torch.bfloat16)
        for module in (modeling_llama, modeling_gpt2, modeling_mixtral):
            module.create_causal_mask = lambda **_: mask
        tokens = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
        if model == "llama":
            net = transformers.LlamaForCausalLM(transformers.LlamaConfig(
                vocab_size=vocab, hidden_size=256, intermediate_size=640, num_attention_heads=8, num_key_value_heads=2,
                num_hidden_layers=3,
                use_cache=False, attn_implementation=attention, **tokens))
        elif model == "mixtral":
            net = transformers.MixtralForCausalLM(transformers.MixtralConfig(
                vocab_size=vocab, hidden_size=256, intermediate_size=320, num_local_experts=4, num_experts_per_tok=2,
                num_attention_heads=8,
                num_key_value_heads=2, num_hidden_layers=3, use_cache=False, attn_implementation=attention, **tokens))
            assert net.config._experts_implementation == "grouped_mm"
        else:
            net = transformers.GPT2LMHeadModel(transformers.GPT2Config(
                vocab_size=vocab, n_embd=256, n_head=8, n_layer=3, n_positions=seq_len, use_cache=False, resid_pdrop=0,
                embd_pdrop=0, attn_pdrop=0,
                attn_implementation=attention, **tokens))
        for name, p in list(net.named_parameters()):
            owner, leaf = name.rsplit(".", 1)
            setattr(net.get_submodule(owner), leaf, nn.Parameter(torch.empty(p.shape, dtype=torch.bfloat16)))
        if model == "gpt2":
            net.lm_head.weight = net.transformer.wte.weight
        net.train()
        if recompute:
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        ids = torch.zeros(2, seq_len, dtype=torch.int64)
        memory = Memory()
        for t in [*net.parameters(), *net.buffers(), ids, *([] if mask is None else [mask])]:
            memory.ignore(t)
        with memory:
            out = net(input_ids=ids, labels=ids)
            loss, forward_peak = out.loss, memory.peak
            del out
            saved, memory.phase, memory.peak = memory.live, "backward", 0
            loss.backward()
    return {"model": model, "attention": attention, "checkpointing": "full" if recompute else "none", "shape": shape,
            "forward_peak": forward_peak,
            "saved": saved, "backward_peak": memory.peak, "end": memory.live}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    shapes = dict(sequences=SEQUENCES, seq_len=SEQ_LEN, width=WIDTH, out=OUT, vocab=VOCAB, heads=HEADS,
                  kv_heads=KV_HEADS, head_dim=HEAD_DIM, v_dim=V_DIM, part=PART, latent=LATENT)
    stacks = ("torchtitan", "torchtitan-2026-06", "torchtitan-2025", "torchtitan-2024", "hf", "hf-eager-attention",
              "foundry")
    found = [row for stack in stacks for dtype in (torch.bfloat16, torch.float32) for row in record(stack, dtype)]
    models = [record_model(*m)
        for m in (("llama", "sdpa", False, 1024, 256), ("llama", "sdpa", False, 64, 4096),
                  ("llama", "sdpa", True, 64, 4096),
                                         ("llama", "eager", False, 64, 512), ("llama", "eager", True, 64, 512),
                                         ("gpt2", "sdpa", False, 1024, 256),
                                         ("gpt2", "sdpa", True, 64, 1024), ("mixtral", "sdpa", False, 1024, 256),
                                         ("mixtral", "sdpa", False, 64, 4096), ("mixtral", "sdpa", True, 64, 4096))]
    families = [record_family(name, seq_len, recompute) for name in FAMILIES
                for seq_len, recompute in ((512, False), (512, True))]
    replaced = {kind: [record_family(name, 512, recompute) for name in names for recompute in (False, True)]
                for kind, names in (("prime_rl", PRIME_RL), ("torchtitan_experts", TITAN), ("float8", FLOAT8),
                                    ("adapters_in_fp32", WIDE))}
    if args.write:
        rows = ",\n    ".join(map(json.dumps, found))
        GOLDEN.write_text(f'{{\n  "recorded_with": "torch {torch.__version__.split("+")[0]}, '
                          f'transformers {transformers.__version__}",\n'
                          f'  "shapes": {json.dumps(shapes)},\n  "ops": [\n    {rows}\n  ],\n  "models": [\n    '
                          + ",\n    ".join(map(json.dumps, models)) + '\n  ],\n  "families": [\n    '
                          + ",\n    ".join(map(json.dumps, families))
                          + "".join(f'\n  ],\n  "{kind}": [\n    ' + ",\n    ".join(map(json.dumps, recorded))
                                    for kind, recorded in replaced.items()) + "\n  ]\n}\n")
        return
    golden = json.loads(GOLDEN.read_text())
    before = [row for kind in ("ops", "models", "families", *replaced) for row in golden.get(kind, [])]
    found += models + families + sum(replaced.values(), [])
    changed = [f"- {row}" for row in before if row not in found] + [f"+ {row}" for row in found if row not in before]
    print("\n".join(changed) or "nothing changed")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
