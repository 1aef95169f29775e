#!/usr/bin/env python3
"""Records what peft makes of models with LoRA adapters: modules, parameters, what is trained, the order of the forward,
and the flops of matrix products both ways.

    python3 tests/torch/record_lora.py           writes tests/torch/golden/lora.json

tests/models/lora_test.cpp compares models/graph/lora.h with it. `lora` is the text of the program's flag.
"""
import json
import pathlib

import peft
import torch

import record_models

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


def main():
    cases = [record(*case) for case in CASES]
    for case in cases:
        case["recorded_with"] += f", peft {peft.__version__}"
    rows = ",\n".join(json.dumps(case) for case in cases)
    (pathlib.Path(__file__).parent / "golden" / "lora.json").write_text("[\n" + rows + "\n]\n")


if __name__ == "__main__":
    main()
