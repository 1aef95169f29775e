"""export(): a model as PyTorch runs it, written down for the program to plan. No weights, no GPU."""
import json
import os
import pathlib
import tempfile
import warnings

from fsdp_plan.errors import PlanError
from fsdp_plan.needs_torch import DTYPES, NAMES, TESTED, VERSION, torch
from fsdp_plan.tracing import document, groups, run


def export(model, inputs, file=None, *, loss=None, dtype="bf16", seq_len=None, name=None, prices=None,
           compile=False):
    """The content of model.json, a dictionary; written to `file` if that is given. `--model model.json` takes it.

    model: a torch.nn.Module, which stays as it is, or a function that builds one. inputs: what it is called with, a
    dictionary or a list of tensors whose first dimension is the sequences; their values do not matter. loss: of the
    model's output and the inputs; without it the output has a `loss`, or is one. dtype: what training computes in.
    seq_len: tokens of one sequence where no inputs are ids. prices: {"library::operator": function} for operators that
    are not PyTorch's own: of its arguments and its results, as tensors without data, the function returns the extents
    (m, n, k) of the matrix product that costs as much, or a list of such, or None for one that only moves bytes.
    compile: refused; see docs/python.md.
    """
    if compile:
        raise PlanError("compile: what a compiler keeps and fuses is not exported: leave compile out, which exports "
                        "the model as it runs in eager PyTorch. For a family that the program knows, plan with --model "
                        "CONFIG --implementation hf or torchtitan and --compile")
    check_prices(prices)
    element = DTYPES.get(dtype) if isinstance(dtype, str) else dtype if dtype in NAMES else None
    if element is None:
        raise PlanError(f"dtype: {dtype} is not known; use one of: {', '.join(DTYPES)}")
    if seq_len is not None and seq_len < 1:
        raise PlanError(f"seq_len: {seq_len} is out of range; use 1 or more")
    recorded = run.record(model, inputs, loss, element, seq_len, prices or {})
    sorter = groups.sorted_groups(recorded)
    written = document.Writer(recorded, sorter).document(name or recorded.tree.classes[0], element,
                                                         notes_of(recorded, sorter))
    if file is not None:
        write(file, written)
    return written


def notes_of(recorded, sorter):
    notes = []
    if VERSION > TESTED:
        notes.append(f"PyTorch {torch.__version__} is newer than {TESTED[0]}.{TESTED[1]}, with which exports were "
                     "tested")
    works = [e.item.work for e in recorded.recorder.events if e.what == "op"]
    unknown = sorted({work.unknown for work in works if work.unknown})
    if unknown:
        warnings.warn(f"{', '.join(unknown)}: taken as opaque, without arithmetic; export(prices=...) prices them",
                      stacklevel=3)
        notes.append(f"{', '.join(unknown)}: no operators of PyTorch; they count with the bytes that they read and "
                     "write, and without arithmetic: export(prices=...) gives them a price")
    if sorter.again:
        notes.append(f"{len(sorter.again)} modules run again after others, such as "
                     f"'{recorded.tree.names[min(sorter.again)]}': what they do counts as their callers'")
    unused = set(range(len(recorded.tree.parameters))) - {p for g in sorter.groups for p in g.parameters}
    if unused:
        first = recorded.tree.parameters[min(unused)].name
        notes.append(f"{len(unused)} parameters take no part in the forward, such as '{first}'")
    return notes


def check_prices(prices):
    for name, price in (prices or {}).items():
        if "::" not in str(name) or not callable(price):
            raise PlanError(f"prices: {name!r}: give the operator's name as library::operator, and a function of its "
                            "arguments and results")


def write(file, written):
    """Whole, or not at all."""
    path = pathlib.Path(file)
    text = json.dumps(written, separators=(",", ":"))
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as f:
            f.write(text)
        os.chmod(f.name, 0o644)
        os.replace(f.name, path)
    except OSError as error:
        raise PlanError(f"{file}: cannot be written: {error.strerror}") from None
