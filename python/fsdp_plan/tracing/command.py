"""python -m fsdp_plan export: model.json from a factory, or from a configuration of transformers."""
import argparse
import importlib
import os
import sys
import time

from fsdp_plan.errors import PlanError

FACTORY = """MODULE:FUNCTION of your own Python: the function returns (model, inputs), or (model, inputs, loss). It may
build the model on the meta device."""


def arguments(words):
    parser = argparse.ArgumentParser(prog="fsdp-plan export", description="Runs a model once without data, and writes "
                                     "down what it does: a file for --model of plan, simulate and show.")
    parser.add_argument("factory", nargs="?", help=FACTORY)
    parser.add_argument("--hf", metavar="CONFIG", help="config.json of a model of transformers, or its folder")
    parser.add_argument("--seq-len", type=int, metavar="N", help="tokens of a sequence, with --hf")
    parser.add_argument("--dtype", default="bf16", help="what training computes in; default: bf16")
    parser.add_argument("--name", help="what the model is called; default: its class")
    parser.add_argument("-o", "--output", required=True, metavar="FILE")
    chosen = parser.parse_args(words)
    if (chosen.factory is None) == (chosen.hf is None):
        parser.error("give MODULE:FUNCTION, or --hf CONFIG")
    return chosen


def from_factory(text):
    module, _, function = text.partition(":")
    if not function:
        raise PlanError(f"'{text}' names no function: give MODULE:FUNCTION, such as train:build")
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PlanError(f"{text}: {error}") from None
    from fsdp_plan.tracing import fake
    with fake.mode():
        found = fake.called(made)
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise PlanError(f"{text}: returned a {type(found).__name__}, and must return (model, inputs) or "
                        "(model, inputs, loss)")
    return (*found, None)[:3]


def main(words):
    chosen = arguments(words)
    try:
        from fsdp_plan.tracing.exporting import export
        start = time.monotonic()
        if chosen.hf:
            from fsdp_plan.tracing import hub
            config = hub.configuration(chosen.hf)
            model, inputs, loss = hub.factory(config), hub.batch_of(config, chosen.seq_len), None
        else:
            model, inputs, loss = from_factory(chosen.factory)
        written = export(model, inputs, chosen.output, loss=loss, dtype=chosen.dtype, seq_len=chosen.seq_len,
                         name=chosen.name)
    except PlanError as error:
        raise SystemExit(f"fsdp_plan: {error}") from None
    for note in written["notes"]:
        print(f"note: {note}", file=sys.stderr)
    print(f"{chosen.output}: {written['name']}, {len(written['parameters'])} parameters in {len(written['modules'])} "
          f"modules, {len(written['ops'])} ops of {len(written['kinds'])} kinds, {written['seq_len']} tokens, in "
          f"{time.monotonic() - start:.1f} s")
