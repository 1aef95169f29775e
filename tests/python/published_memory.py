#!/usr/bin/env python3
"""Published peaks of memory (tests/accuracy/published_memory.json), predicted through export() alone: a model of
torchtitan's form is run on tensors without data at the row's shape, and model.json is planned for. Beside it the
prediction of the program's own model (tests/accuracy/recorded). Rows that were compiled are left out: export() takes
eager models.

Where a run had expandable segments, its prediction has them (`--implementation traced-expandable`).

    python3 tests/python/published_memory.py [ID ...]      exit 1: model.json is further off than our own model
"""
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "torch"), str(ROOT / "python")]
PROGRAM = os.environ.setdefault("FSDP_PLAN_PROGRAM", str(ROOT / "build" / "release" / "fsdp-plan"))
import fsdp_plan  # noqa: E402
from tensor_llama import Llama, loss_of  # noqa: E402

ACCURACY = ROOT / "tests" / "accuracy"
GIB = 2 ** 30
MORE = 0.01                       # of the measured peak: what two descriptions of one model may differ by
# Reserved bytes of March 2024: its AdamW held a root of all parameters' states in its step (3.1 GiB), which no trace of
# a model shows.
OTHER_OPTIMIZER = {1124: 0.08}
SHAPES = {
    "llama3-8b": dict(layers=32, vocab=128256, hidden=4096, inner=14336, heads=32, kv_heads=8),
    "llama2-7b": dict(layers=32, vocab=32000, hidden=4096, inner=11008, heads=32, kv_heads=32),
    "qwen3-32b": dict(layers=64, vocab=151936, hidden=5120, inner=25600, heads=64, kv_heads=8, qk_norm=True,
                      head_dim=128),
}


class Titan(Llama):
    """With its table of rotations, which is no parameter."""

    def __init__(self, shape, tokens):
        super().__init__(shape)
        width = shape.get("head_dim", shape["hidden"] // shape["heads"])
        self.register_buffer("freqs", torch.ones(tokens, 1, width // 2, dtype=torch.complex64), persistent=False)

    def forward(self, ids):
        return super().forward(ids, self.freqs)


class OwnNorm(torch.nn.RMSNorm):
    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class TitanOfMarch2024(Titan):
    """Its norms were its own, and its loop still held the fp32 logits while backward ran."""

    def __init__(self, shape, tokens):
        super().__init__(shape, tokens)
        for module in [m for m in self.modules() if not isinstance(m, torch.nn.RMSNorm)]:
            for name, child in module.named_children():
                if isinstance(child, torch.nn.RMSNorm):
                    setattr(module, name, OwnNorm(child.normalized_shape))

    def forward(self, ids):
        self.held = super().forward(ids).float()
        return self.held


FORMS = {"torchtitan-2024-03": TitanOfMarch2024}


def loss_in_parts(chunks):
    if chunks == 1:
        return lambda logits, inputs: loss_of(logits, inputs["ids"])
    return lambda logits, inputs: fsdp_plan.chunked_loss(logits, inputs["ids"], chunks)


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in (0, 1, 4):
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def plan_of(row, model, file):
    """As tests/accuracy/memory_test.cpp has it."""
    run("plan", "--model", model, "--cluster", "dgx-h100", "--gpus", row["gpus"], "--dialect", row["dialect"], "--wrap",
        row["wrap"], "--micro-batch", row["micro_batch"], "--activation-checkpointing", row["checkpointing"],
        "--reduce-dtype", row["reduce_dtype"], "--clip-norm", 1, "--replicate", 1,
        "--reshard-after-forward", "true" if row["reshard"] == "true" else "auto", "--search", "uniform", "-o", file)
    plan = json.loads(file.read_text())
    if row["reshard"] == "all but the last block":
        plan["units"][-2]["reshard_after_forward"] = False
    if row["wrap"] == "block":
        plan["units"][-1]["reshard_after_forward"] = False
    file.write_text(json.dumps(plan))


def predicted(row, models, folder):
    key = row["model"], row["seq_len"], row["loss_chunks"], row["implementation"]
    if key not in models:
        form, models[key] = FORMS.get(row["implementation"], Titan), folder / f"{'-'.join(map(str, key))}.json"
        ids = torch.zeros(1, row["seq_len"], dtype=torch.int64)
        written = fsdp_plan.export(lambda: form(SHAPES[row["model"]], row["seq_len"]), {"ids": ids}, models[key],
                                   loss=loss_in_parts(row["loss_chunks"]))
        if written["notes"]:
            raise AssertionError(f"{models[key].name}: {written['notes']}")
    plan, prediction = folder / "plan.json", folder / "prediction.json"
    plan_of(row, models[key], plan)
    run("simulate", "--plan", plan, "--model", models[key], "--cluster", "dgx-h100", "-o", prediction,
        "--implementation", "traced-expandable" if row["expandable_segments"] else "traced")
    return json.loads(prediction.read_text())


def gib(size):
    return int(size) / GIB


def main():
    rows = json.loads((ACCURACY / "published_memory.json").read_text())["rows"]
    with open(ACCURACY / "recorded" / "published_memory.csv", encoding="utf8") as file:
        own = {int(r["id"]): r for r in csv.DictReader(file)}
    chosen, models, wrong, errors = [int(i) for i in sys.argv[1:]], {}, [], {}
    print("| row | kind | measured, GiB | own model | model.json | allocated: own | model.json | difference |")
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            if row["compile"] or "doubt" in row or (chosen and row["id"] not in chosen):
                continue
            p, peak, mine = predicted(row, models, pathlib.Path(folder)), row["gib"], own[row["id"]]
            ours, theirs = gib(p[f"peak_{row['kind']}_bytes"]), gib(mine["ours_bytes"])
            allocated = gib(mine["allocated_bytes"]), gib(p["peak_allocated_bytes"])
            print(f"| {row['id']} | {row['kind']} | {peak:.2f} | {theirs:.2f} ({theirs / peak - 1:+.1%}) | "
                  f"{ours:.2f} ({ours / peak - 1:+.1%}) | {allocated[0]:.2f} | {allocated[1]:.2f} | "
                  f"{allocated[1] / allocated[0] - 1:+.2%} |", flush=True)
            errors[row["id"]] = abs(allocated[1] / allocated[0] - 1)
            allowed = abs(theirs / peak - 1) + OTHER_OPTIMIZER.get(row["id"], MORE)
            if abs(ours / peak - 1) > allowed or errors[row["id"]] > MORE:
                wrong.append(str(row["id"]))
    print(f"{len(errors)} rows; allocated bytes differ by {sum(errors.values()) / len(errors):.2%} in the mean, "
          f"{max(errors.values()):.2%} at most, allowed {MORE:.0%}")
    print(f"further off than allowed: {', '.join(wrong) or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
