#!/usr/bin/env python3
"""Records what a compiled Llama block with rowwise 8-bit products kept for backward in January and February 2025.

As tests/torch/record_float8_saved.py, of which this is the past: PyTorch 2.6, torchao 0.8 or 0.9, and torchtitan's list
of results that selective checkpointing keeps, which then named aten::abs ("absolutes"). torchao's pull request 1629 of
30 January, which is in 0.9, gives backward's cast of the weight another tensor than forward's.

Usage, in an environment of Python 3.9 to 3.12 with torch==2.6.0, torchao==0.8.0 or torchao==0.9.0, and numpy:

    python tests/torch/early/record_float8_saved.py            compares with golden/float8_saved_torchao_<version>.json
    python tests/torch/early/record_float8_saved.py --write    records it again
"""
import importlib.metadata
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import torch
import torchao.float8.config as config
from torchao.float8 import convert_to_float8_training

import golden_file
import memory_log
import record_float8_saved
import tensor_llama

TORCHAO = importlib.metadata.version("torchao").rpartition(".")[0]
GOLDEN = TESTS / "golden" / f"float8_saved_torchao_{TORCHAO}.json"
KEPT = record_float8_saved.KEPT


def convert(block, recipe):
    if TORCHAO == "0.8":
        name = config.Float8LinearRecipeName[{"rowwise": "ALL_AXISWISE", "tensorwise": "ALL_TENSORWISE"}[recipe]]
        convert_to_float8_training(block, config=config.recipe_name_to_linear_config(name))
    else:
        record_float8_saved.by_recipe(block, recipe)


def main():
    tensor_llama.nn.functional.scaled_dot_product_attention = memory_log.attention
    base = dict(hidden=256, inner=768, heads=8, kv_heads=2, seq_len=128, selective=True)
    cases = []
    for recipe in ("rowwise", "tensorwise"):
        for absolutes in (True, False):
            kept = KEPT | {torch.ops.aten.abs.default} if absolutes else KEPT
            name = recipe + ("-absolutes" if absolutes else "")
            cases.append(record_float8_saved.record(
                dict(base, name=name, recipe=recipe, absolutes=absolutes), convert, kept))
    return golden_file.finish(GOLDEN, golden_file.text_of(
        {"torch": torch.__version__, "torchao": TORCHAO, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
