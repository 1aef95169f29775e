#!/usr/bin/env python3
"""Records what transformers before 4.49 holds around the loss, whose function copied logits without each sequence's
last token: as 4.48 has it, and as 4.45, whose models cast their logits first.

A model whose logits are nearly all of its memory; its outputs go before backward, as in transformers' Trainer. Bytes
beside parameters, at most in forward and in backward, and between them.

Usage, in an environment with torch and transformers==4.48.1, and in one with transformers==4.45.2:

    python tests/torch/early/record_hf_loss.py            compares with tests/torch/golden/hf_loss_4.48.json, or _4.45
    python tests/torch/early/record_hf_loss.py --write    records it again
"""
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import torch
import transformers

import golden_file
from record_hf_2023 import Log

RELEASE = ".".join(transformers.__version__.split(".")[:2])
GOLDEN = TESTS / "golden" / f"hf_loss_{RELEASE}.json"


def record(c):
    config = transformers.LlamaConfig(
        vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["inner"], num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"], use_cache=False)
    net = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
    for p in net.parameters():
        p.grad = torch.empty_like(p)                     # gradients are added to these
    ids = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
    log = Log([*net.parameters(), *(p.grad for p in net.parameters()), *net.buffers(), ids])
    with log:
        loss = net(input_ids=ids, labels=ids).loss
        torch.empty(1)
        found = dict(forward_peak=log.peak, after_forward=log.total)
        log.peak = 0
        loss.backward()
    return {"config": c, **found, "backward_peak": log.peak}


def main():
    base = dict(hidden=32, inner=64, heads=4, vocab=32000, layers=1, seq_len=128)
    cases = [record(dict(base, name=name, sequences=sequences))
             for name, sequences in (("two sequences", 2), ("one sequence", 1))]
    return golden_file.finish(GOLDEN, golden_file.text_of(
        {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
