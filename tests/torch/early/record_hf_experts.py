#!/usr/bin/env python3
"""Records what Mixtral holds as transformers 4 computes its experts: one after the other, in a loop.

A step of the whole model, parameters and activations in bf16; FlashAttention 2 keeps q, k, v, its result and a number
per row and head. Routing is even: of the choices of a token the k-th goes to expert (token * top_k + k) mod experts.
Nothing recomputed, or every layer, by torch.utils.checkpoint with use_reentrant=False, or True; all trained, or
adapters alone, on attention, in bf16 (with enable_input_require_grads under True, as transformers calls it).

Bytes beside parameters and the token ids: at most in forward and in backward, between them, when the outputs are gone,
and at the end, when gradients are left. The last case: which operators one mixture calls in forward and in backward.

Usage, in an environment of Python 3.8 to 3.11 with torch==2.4.1, transformers==4.48.1 and peft==0.13.2:

    python tests/torch/early/record_hf_experts.py            compares with tests/torch/golden/hf_experts_4.48.json
    python tests/torch/early/record_hf_experts.py --write    records it again
"""
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import peft
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import modeling_flash_attention_utils
from transformers.models.mixtral import modeling_mixtral

import golden_file
from autograd_engine import as_engine
from record_hf_2023 import Flash, Log

GOLDEN = TESTS / "golden" / "hf_experts_4.48.json"
NO_KERNEL = ("empty", "view", "detach", "alias", "transpose", "t.", "expand", "unsqueeze", "squeeze", "slice", "select",
             "unbind", "permute", "reshape", "lift_fresh", "as_strided", "new_empty", "_unsafe_view", "_reshape_alias",
             "_local_scalar_dense", "is_same_size")


class EngineLog(Log):
    """The gradient of an index is added into zeros in place, where no dispatch mode looks on (index_backward)."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.index_put.default and torch._C._current_graph_task_id() != -1:
            func = torch.ops.aten.index_put_.default
        return super().__torch_dispatch__(as_engine(func, args), types, args, kwargs)


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.")
        if not name.startswith(NO_KERNEL):
            self.names.append(name.split(".")[0])
        return func(*args, **(kwargs or {}))


def even(topk):
    def chosen(x, k, dim=-1):
        values, ids = topk(x, k, dim=dim)
        with torch.utils._python_dispatch._disable_current_modes():
            ids.data.copy_((torch.arange(ids.numel()) % x.shape[-1]).view(ids.shape))
        return values, ids
    return chosen


def model_of(c):
    config = transformers.MixtralConfig(
        vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["inner"], num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"], num_local_experts=c["experts"],
        num_experts_per_tok=c["top_k"], use_cache=False, sliding_window=None)
    net = transformers.MixtralForCausalLM(config).to(torch.bfloat16)
    net.config._attn_implementation = "flash_attention_2"
    if c["adapters"]:
        lora = peft.LoraConfig(r=8, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
                               task_type="CAUSAL_LM")
        net = peft.get_peft_model(net, lora, autocast_adapter_dtype=False)
    if c["recomputed"]:
        base = net.get_base_model() if c["adapters"] else net
        base.gradient_checkpointing_enable(dict(use_reentrant=c["recomputed"] == "reentrant"))
        if c["adapters"] and c["recomputed"] == "reentrant":
            base.enable_input_require_grads()
    return net.train()


def record(c):
    net = model_of(c)
    ids = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
    log = EngineLog([*net.parameters(), *net.buffers(), ids])
    with log:
        outputs = net(input_ids=ids, labels=ids)
        loss = outputs.loss
        torch.empty(1)
        del outputs
        torch.empty(1)
        found = dict(forward_peak=log.peak, saved=log.total)
        log.peak = 0
        loss.backward()
        del loss
        torch.empty(1)
    return {"config": c, **found, "backward_peak": log.peak, "end": log.total}


def operators(c):
    """Of one mixture, with its router; less those of even()."""
    mixture = model_of(c).model.layers[0].block_sparse_moe
    x = torch.randn(c["sequences"], c["seq_len"], c["hidden"], dtype=torch.bfloat16, requires_grad=True)
    forward, backward = Operators(), Operators()
    with forward:
        out, _ = mixture(x)
    with backward:
        out.backward(torch.ones_like(out))
    def counts(names):
        return {name: names.count(name) for name in sorted(set(names))}
    return {"config": dict(c, name="operators"), "forward": counts(forward.names), "backward": counts(backward.names)}


def main():
    modeling_flash_attention_utils.flash_attn_func = lambda q, k, v, *_, **__: Flash.apply(q, k, v)  # not installed
    modeling_flash_attention_utils._flash_supports_window_size = modeling_flash_attention_utils.flash_241 = True
    torch.topk = even(torch.topk)
    base = dict(hidden=256, inner=640, heads=8, kv_heads=2, experts=8, top_k=2, vocab=64, layers=3, sequences=2,
                seq_len=512, adapters=False, recomputed="")
    changes = {"blocks": {}, "many tokens": {"seq_len": 2048, "layers": 2}, "four experts": {"experts": 4},
               "one sequence": {"sequences": 1, "layers": 4}, "one choice": {"top_k": 1, "inner": 512}}
    cases = [record(dict(base, name=", ".join(filter(None, (name, "adapters" * adapters, again))), adapters=adapters,
                         recomputed=again, **change))
             for name, change in changes.items() for adapters in (False, True)
             for again in ("", "non-reentrant", "reentrant")]
    cases.append(operators(base))
    versions = {m.__name__: m.__version__.split("+")[0] for m in (torch, transformers, peft)}
    return golden_file.finish(GOLDEN, golden_file.text_of({**versions, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
