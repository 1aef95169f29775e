#!/usr/bin/env python3
"""Records what a model in 4 bits holds as trl's SFTTrainer prepares it, trained under autocast.

trl 0.13 (trainer/sft_trainer.py, SFTTrainer.__init__) calls peft's prepare_model_for_kbit_training where bitsandbytes
packed the weights and FSDP does not shard them, which casts all others to fp32; then get_peft_model, whose adapters are
fp32; then with bf16=True peft_module_casting_to_bf16, after which embeddings and the output layer are bf16 again and
norms are not. accelerate 1.0 runs forward under autocast and casts what it returns to fp32. Those functions run here,
and bitsandbytes' layer and its function; only the kernel that unpacks a weight is replaced, by what it makes.

FlashAttention 2, which transformers gives q, k and v in bf16, keeps them and its result. Bytes beside parameters, at
most in forward and in backward, and between them, when the outputs are gone; the types that parameters have; the type
of what each block is called with.

Usage, in an environment of Python 3.8 to 3.11 with torch==2.4.1, transformers==4.48.1, peft==0.13.2, accelerate==1.0.1,
trl==0.13.0, bitsandbytes==0.43.3 and numpy below 2:

    python tests/torch/early/record_prepared.py            compares with tests/torch/golden/prepared.json
    python tests/torch/early/record_prepared.py --write    records it again
"""
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import accelerate
import bitsandbytes as bnb
import peft
import torch
import torch.nn.functional as F
import transformers
import trl
from accelerate.utils.operations import ConvertOutputsToFp32
from transformers import modeling_flash_attention_utils
from trl.trainer.utils import peft_module_casting_to_bf16

import golden_file
from autograd_engine import as_engine
from fused_dropout import dropout
from record_hf_2023 import Flash, Log

GOLDEN = TESTS / "golden" / "prepared.json"
BLOCK = 64                                       # numbers with one scale; 256 of those with another


class EngineLog(Log):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return super().__torch_dispatch__(as_engine(func, args), types, args, kwargs)


def flash_attn_func(q, k, v, *args, **kwargs):
    return Flash.apply(q, k, v)


def unpacked(packed, state):
    """bitsandbytes.functional.dequantize_4bit: scales of 8 bits in fp32, and the weight in the type it was given in."""
    if state.nested:
        scales = torch.empty(state.absmax.shape, dtype=torch.float32)
        scales += 1
    whole = torch.empty(state.shape, dtype=state.dtype)
    return whole.t() if packed.shape[0] == 1 else whole


def pack(net, double):
    """Every linear layer but the one that makes the logits, as transformers' BitsAndBytesConfig says."""
    for name, layer in list(net.named_modules()):
        if not isinstance(layer, torch.nn.Linear) or name == "lm_head":
            continue
        numbers, kind = layer.weight.numel(), {"compress_statistics": double, "quant_type": "nf4"}
        scales = torch.empty(numbers // BLOCK, dtype=torch.uint8 if double else torch.float32)
        outer = bnb.functional.QuantState(torch.empty(-(-scales.numel() // 256)), code=torch.empty(256), blocksize=256)
        state = bnb.functional.QuantState(scales, layer.weight.shape, torch.empty(16), BLOCK, "nf4", torch.bfloat16,
                                          torch.zeros(()) if double else None, outer if double else None)
        new = bnb.nn.Linear4bit(layer.in_features, layer.out_features, layer.bias is not None, torch.bfloat16, **kind)
        new.weight = bnb.nn.Params4bit(torch.empty(numbers // 2, 1, dtype=torch.uint8), quant_state=state,
                                       bnb_quantized=True, **kind)
        new.bias = layer.bias
        parent, _, leaf = name.rpartition(".")
        setattr(net.get_submodule(parent), leaf, new)
    net.is_loaded_in_4bit = True


def record(c):
    config = transformers.AutoConfig.for_model(
        c["family"], vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["inner"],
        num_hidden_layers=c["layers"], num_attention_heads=c["heads"], num_key_value_heads=c["heads"],
        use_cache=False, tie_word_embeddings=c.get("tied", False), attn_implementation="sdpa")
    net = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    net.config._attn_implementation = "flash_attention_2"
    pack(net, double=c["base"] == "nf4-double")
    net = peft.prepare_model_for_kbit_training(net, gradient_checkpointing_kwargs={})
    if not c["recomputed"]:
        net.gradient_checkpointing_disable()
    targets = c["targets"] if c["targets"] == "all-linear" else c["targets"].split("+")
    net = peft.get_peft_model(net, peft.LoraConfig(r=c["rank"], lora_dropout=c["dropout"], target_modules=targets,
                                                   task_type="CAUSAL_LM"))
    peft_module_casting_to_bf16(net)
    net.train()
    reads = []
    for layer in net.get_base_model().model.layers:
        layer.register_forward_pre_hook(lambda module, inputs: reads.append(str(inputs[0].dtype)[6:]))
    trained = [p for p in net.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.empty_like(p)                     # gradients are added to these
    ids = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
    log = EngineLog([*net.parameters(), *(p.grad for p in trained), *net.buffers(), ids])
    forward = ConvertOutputsToFp32(torch.autocast("cpu", torch.bfloat16)(net.forward))
    with log:
        outputs = forward(input_ids=ids, labels=ids)
        loss = outputs.loss
        torch.empty(1)
        del outputs
        torch.empty(1)
        found = dict(forward_peak=log.peak, after_forward=log.total)
        log.peak = 0
        loss.backward()
    kinds = {"adapters": "lora_", "norms": "norm", "embedding": "embed_tokens", "head": "lm_head"}
    types = {kind: sorted({str(p.dtype)[6:] for name, p in net.named_parameters() if part in name})
             for kind, part in kinds.items()}
    return {"config": c, **found, "backward_peak": log.peak, "blocks_read": reads[:c["layers"]], "types": types}


def main():
    torch.is_autocast_enabled = lambda *device: torch.is_autocast_cpu_enabled()    # they ask of the GPU's
    torch.get_autocast_gpu_dtype = lambda: torch.bfloat16
    modeling_flash_attention_utils.flash_attn_func = flash_attn_func               # which is not installed
    modeling_flash_attention_utils._flash_supports_window_size = modeling_flash_attention_utils.flash_241 = True
    F.dropout, bnb.functional.dequantize_4bit = dropout, unpacked
    base = dict(family="llama", hidden=256, inner=640, heads=8, vocab=64, layers=3, sequences=2, seq_len=512,
                base="nf4-double", rank=8, dropout=0.1, targets="q_proj+k_proj+v_proj+o_proj", recomputed=False)
    changes = {"blocks": {}, "logits": {"vocab": 4096}, "all layers": {"targets": "all-linear"},
               "without dropout": {"dropout": 0}, "scales in fp32": {"base": "nf4"}, "Mistral": {"family": "mistral"},
               "weights": {"seq_len": 64, "hidden": 512}, "many": {"layers": 6, "vocab": 2048}}
    cases = [record(dict(base, name=name + (", recomputed" if again else ""), recomputed=again, **change))
             for name, change in changes.items() for again in (False, True)]
    versions = {m.__name__: m.__version__.split("+")[0] for m in (torch, transformers, peft, accelerate, trl, bnb)}
    return golden_file.finish(GOLDEN, golden_file.text_of({**versions, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
