#!/usr/bin/env python3
"""What people get wrong with export(), each refused with words that say what to do; and custom operators.

    python3 tests/python/bad_input.py            exit 1 and what differs, if anything does
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch

from refusal import refused

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
import fsdp_plan  # noqa: E402
from fsdp_plan.tracing import fake  # noqa: E402

WIDTH, TOKENS = 64, 32
IDS = {"ids": torch.zeros(1, TOKENS, dtype=torch.int64)}


class Small(torch.nn.Module):
    """What changes: forward's middle."""

    def __init__(self, middle=lambda x: x):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(32, WIDTH), torch.nn.Linear(WIDTH, 32, bias=False)
        self.middle = middle

    def forward(self, ids):
        return self.head(self.middle(self.words(ids)))


def loss(logits, inputs):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["ids"].flatten())


def data_dependent(x):
    return x[x > 0].sum() * x if x.sum() > 0 else x


def needs_gpu():
    model = Small()
    model.table = torch.nn.Parameter(torch.ones(4, device="cuda:7") @ torch.ones(4, 4, device="cuda:7"))
    torch.cuda.synchronize(7)
    return model


def chooses_device(x):
    return x + torch.ones(WIDTH, device="cuda")


def broken():
    return Small(lambda x: x @ torch.ones(WIDTH + 1, 3, dtype=x.dtype))


def refuses(words, call):
    print(f"  refused: {refused(words, call)[:150]}")


def refusals(folder):
    export, file = fsdp_plan.export, folder / "model.json"
    refuses("depends on values of tensors", lambda: export(Small(data_dependent), IDS, file, loss=loss))
    refuses("_experts_implementation = 'grouped_mm'", lambda: export(Small(data_dependent), IDS, file, loss=loss))
    refuses("build it on the CPU, or on the meta device", lambda: export(needs_gpu, IDS, file, loss=loss))
    refuses("the model fails on tensors without data", lambda: export(broken, IDS, file, loss=loss))
    refuses("must return a torch.nn.Module", lambda: export(lambda: 3, IDS, file, loss=loss))
    refuses("give loss=", lambda: export(Small(), IDS, file))
    refuses("unexpected keyword argument 'other'", lambda: export(Small(), {"other": IDS["ids"]}, file, loss=loss))
    refuses("hold no tensor", lambda: export(Small(), {}, file, loss=loss))
    refuses("seq_len: is 64, and the inputs have ids of 32", lambda: export(Small(), IDS, file, loss=loss, seq_len=64))
    refuses("bad_input.py:", lambda: export(lambda: Small(chooses_device), IDS, file, loss=loss))
    refuses("as in x.to(ids.device)", lambda: export(lambda: Small(chooses_device), IDS, file, loss=loss))
    refuses("(return x[x > 0]", lambda: export(lambda: Small(data_dependent), IDS, file, loss=loss))
    refuses("dtype: int7 is not known", lambda: export(Small(), IDS, file, loss=loss, dtype="int7"))
    refuses("seq_len: 0 is out of range", lambda: export(Small(), IDS, file, loss=loss, seq_len=0))
    refuses("export the model before torch.compile", lambda: export(torch.compile(Small()), IDS, file, loss=loss))
    refuses("compile: what a compiler keeps", lambda: export(Small(), IDS, file, loss=loss, compile=True))
    refuses("prices: 'fused'", lambda: export(Small(), IDS, file, loss=loss, prices={"fused": len}))
    refuses("nothing of the model is trained", lambda: export(Small().requires_grad_(False), IDS, file, loss=loss))
    refuses("cannot be written", lambda: export(Small(), IDS, folder / "absent" / "model.json", loss=loss))
    if list(folder.iterdir()):
        raise AssertionError(f"something was written: {list(folder.iterdir())}")


def larger_than_the_host():
    """A model whose parameters are 64 TiB: only their extents are read, of a module, too."""
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Embedding(32, WIDTH), torch.nn.Linear(WIDTH, 2 ** 38, bias=False),
                                    torch.nn.Linear(2 ** 38, 32, bias=False))
    written = fsdp_plan.export(model, [IDS["ids"]], loss=lambda logits, inputs: logits.float().mean())
    assert written["parameters"][1]["shape"] == [2 ** 38, WIDTH]


def custom_operators():
    """Taken as opaque, named in a warning and a note; with a price, it is a product of those extents."""
    library = torch.library.Library("bad_input", "DEF")
    library.define("fused(Tensor x, Tensor w) -> Tensor")
    library.impl("fused", lambda x, w: x @ w, "CompositeExplicitAutograd")
    library.impl("fused", lambda x, w: x.new_empty(*x.shape[:-1], w.shape[1]), "Meta")

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return torch.ops.bad_input.fused(x, w)

        @staticmethod
        def backward(ctx, gradient):
            x, w = ctx.saved_tensors
            return gradient @ w.t(), x.flatten(0, 1).t() @ gradient.flatten(0, 1)

    class Own(Small):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))
            self.middle = lambda x: Fused.apply(x, self.weight)

    def work(written):
        return [kind["forward_work"] for kind in written["kinds"] if kind["forward_work"]]

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        without = fsdp_plan.export(Own, IDS, loss=loss)
    assert any("bad_input::fused: taken as opaque" in str(w.message) for w in said), [str(w.message) for w in said]
    assert any("bad_input::fused" in note for note in without["notes"])
    priced = fsdp_plan.export(Own, IDS, loss=loss, prices={"bad_input::fused": lambda args, kwargs, results: (
        args[0].shape[0] * args[0].shape[1], args[1].shape[1], args[1].shape[0])})
    assert not any("bad_input::fused" in note for note in priced["notes"])
    product = [-TOKENS, WIDTH, WIDTH, 1]
    assert not any(product in w.get("products", []) for w in work(without))
    assert any(product in w.get("products", []) for w in work(priced)), work(priced)
    refuses("must return (m, n, k)", lambda: fsdp_plan.export(Own, IDS, loss=loss, prices={
        "bad_input::fused": lambda args, kwargs, results: (1, 2)}))


def newer_pytorch():
    from fsdp_plan.tracing import exporting
    tested, exporting.TESTED = exporting.TESTED, (2, 5)
    try:
        assert any("is newer than 2.5" in note for note in fsdp_plan.export(Small(), IDS, loss=loss)["notes"])
    finally:
        exporting.TESTED = tested


def command(folder):
    """The command line's errors are a line, not a traceback."""
    (folder / "own.py").write_text("def wrong():\n    raise ValueError('no weights here')\n\n"
                                   "def three():\n    return 3\n")
    for factory, words in (("own:wrong", "no weights here"), ("own:three", "must return (model, inputs)"),
                           ("own:absent", "has no attribute"), ("absent:build", "No module named"),
                           ("own", "names no function")):
        done = subprocess.run([sys.executable, "-m", "fsdp_plan", "export", factory, "-o", "model.json"], cwd=folder,
                              capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "python"), "PATH": ""})
        if done.returncode != 1 or words not in done.stderr or "Traceback" in done.stderr:
            raise AssertionError(f"{factory}: {done.returncode}: {done.stderr}")
        if (folder / "model.json").exists():
            raise AssertionError(f"{factory}: model.json was written")


def main():
    with tempfile.TemporaryDirectory() as folder:
        refusals(pathlib.Path(folder))
        larger_than_the_host()
        custom_operators()
        newer_pytorch()
        command(pathlib.Path(folder))
    print("export() refuses what it should, and says what to do")


if __name__ == "__main__":
    assert fake.BATCH and json
    main()
