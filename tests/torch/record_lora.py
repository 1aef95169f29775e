#!/usr/bin/env python3
"""Records what peft makes of models with LoRA adapters: modules, parameters, what is trained, the order of the forward,
and the flops of matrix products both ways.

    python3 tests/torch/record_lora.py      writes tests/torch/golden/models/lora.json and four_bits.json beside it, and
                                            tests/golden/lora_training.json

tests/models/lora_test.cpp compares models/graph/lora.h with the first, and models/graph/four_bits.h with the second:
frozen weights in bitsandbytes' 4 bits, and the bytes of their scales. The third is a tiny Llama of transformers with
adapters, trained by PyTorch in fp64 from the hash of executor/data/synthetic.cpp: tests/executor/lora_test.cpp trains
the same. `lora` is the text of the program's flag.
"""
import json
import pathlib

import peft
import torch
import torch.nn.functional as F
import transformers

import four_bits
import record_hf_models
import record_models
from synthetic import initial, token

CASES = [
    ("llama", "rank=4,alpha=8", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    ("llama_bias_tied", "3", dict(r=3, lora_alpha=3, target_modules="all-linear")),
    ("qwen2", "rank=2,targets=q_proj+v_proj", dict(r=2, lora_alpha=2, target_modules=["q_proj", "v_proj"])),
    ("gpt2", "5", dict(r=5, lora_alpha=5, target_modules="all-linear")),
    ("gpt2", "rank=2,targets=attn.c_proj", dict(r=2, lora_alpha=2, target_modules=["attn.c_proj"])),
    ("mixtral", "rank=2,targets=q_proj+o_proj", dict(r=2, lora_alpha=2, target_modules=["q_proj", "o_proj"])),
    ("phi3", "4", dict(r=4, lora_alpha=4, target_modules="all-linear")),
    ("llama", "rank=2,targets=1.mlp.down_proj", dict(r=2, lora_alpha=2, target_modules=["1.mlp.down_proj"])),
]


def record(name, text, arguments):
    torch.manual_seed(1)
    model = record_models.build(record_models.CONFIGS[name])
    model = peft.inject_adapter_in_model(peft.LoraConfig(lora_dropout=0.0, **arguments), model)
    recorded = record_models.record(model)
    by_name = dict(model.named_parameters())
    for parameter in recorded["parameters"]:
        parameter["trainable"] = by_name[parameter["name"]].requires_grad
    layer = next(m for m in model.modules() if isinstance(getattr(m, "scaling", None), dict))
    return {"lora": text, "config": record_models.CONFIGS[name], "factor": layer.scaling["default"], **recorded}


PACKED = [
    ("llama", "rank=4,alpha=8,base=nf4", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    ("llama", "rank=4,alpha=8,dropout=0.5,base=nf4-double", dict(r=4, lora_alpha=8, lora_dropout=0.5,
                                                                  target_modules="all-linear")),
    ("qwen2", "rank=2,targets=q_proj+v_proj,base=nf4-double", dict(r=2, lora_alpha=2,
                                                                   target_modules=["q_proj", "v_proj"])),
    *((name, "rank=4,base=nf4", dict(r=4, lora_alpha=4, target_modules="all-linear"))
      for name in ("phi3", "gpt2", "granite_bias", "gemma2_untied_bias", "gpt_neox")),
    ("llama", "rank=2,targets=lm_head+v_proj,base=nf4-double", dict(r=2, lora_alpha=2,
                                                                    target_modules=["lm_head", "v_proj"])),
]


def record_packed(name, text, arguments):
    model = four_bits.pack(record_models.build(record_models.CONFIGS[name]).bfloat16(), double="double" in text)
    numbers = sum(p.numel() * (4 if hasattr(p, "quant_state") else 1) for p in model.parameters())
    model = peft.inject_adapter_in_model(peft.LoraConfig(**arguments), model)
    # A number alone is no tensor to the program.
    scales = {name: sum(value.numel() * value.element_size() for _, _, value in four_bits.states(layer) if value.dim())
              for name, layer in model.named_modules() if hasattr(layer, "quant_state")}
    return {"lora": text, "config": record_models.CONFIGS[name], "frozen_numbers": numbers, "scales": scales,
            "modules": [[name, type(module).__name__] for name, module in model.named_modules()],
            "parameters": [{"name": name, "shape": list(p.shape), "trainable": p.requires_grad}
                           for name, p in model.named_parameters()]}


TINY = dict(model_type="llama", vocab_size=37, hidden_size=24, intermediate_size=29, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=6, max_position_embeddings=64, rms_norm_eps=1e-5,
            rope_theta=500.0, hidden_act="silu", tie_word_embeddings=False)
SEED, SEQUENCES, SEQ_LEN, STEPS = 77, 12, 7, 5
ADAMW = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


def train(text, arguments):
    torch.set_default_dtype(torch.float64)
    model = record_models.build(TINY).double()
    model = peft.inject_adapter_in_model(peft.LoraConfig(lora_dropout=0.0, **arguments), model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial(SEED, name, parameter.shape))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    a = ADAMW
    optimizer = torch.optim.AdamW(trained.values(), lr=a["lr"], betas=(a["beta1"], a["beta2"]), eps=a["eps"],
                                  weight_decay=a["weight_decay"])
    losses, gradients = [], {}
    for step in range(STEPS):
        rows = torch.tensor([[token(SEED, step * SEQUENCES + s, p, TINY["vocab_size"]) for p in range(SEQ_LEN + 1)]
                             for s in range(SEQUENCES)])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        gradients = gradients or {name: p.grad.norm().item() for name, p in trained.items()}
        optimizer.step()
    return {"lora": text, "losses": losses, "first_gradient_norms": gradients,
            "final_norms": {name: p.detach().norm().item() for name, p in model.named_parameters()}}


def record_training():
    with record_hf_models.computing_in(torch.float64):
        runs = [train("rank=3,alpha=6", dict(r=3, lora_alpha=6, target_modules="all-linear")),
                train("rank=5,targets=q_proj+v_proj", dict(r=5, lora_alpha=5, target_modules=["q_proj", "v_proj"]))]
    document = {"_about": f"PyTorch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, peft "
                          f"{peft.__version__}, fp64; made by tests/torch/record_lora.py",
                "config": json.dumps(TINY), "seed": SEED, "sequences": SEQUENCES, "seq_len": SEQ_LEN, "adamw": ADAMW,
                "runs": runs}
    path = pathlib.Path(__file__).parent.parent / "golden" / "lora_training.json"
    path.write_text(json.dumps(document, indent=1) + "\n")


def main():
    cases = [record(*case) for case in CASES]
    for case in cases:
        case["recorded_with"] += f", peft {peft.__version__}"
    rows = ",\n".join(json.dumps(case) for case in cases)
    (pathlib.Path(__file__).parent / "golden" / "models" / "lora.json").write_text("[\n" + rows + "\n]\n")
    packed = ",\n".join(json.dumps(record_packed(*case)) for case in PACKED)
    (pathlib.Path(__file__).parent / "golden" / "models" / "four_bits.json").write_text("[\n" + packed + "\n]\n")
    record_training()


if __name__ == "__main__":
    main()
