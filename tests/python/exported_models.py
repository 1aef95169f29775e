"""Exported models beside PyTorch: what model.json says of memory equals, byte by byte, the storages of a real run on
processors, with real numbers in them; so do parameters, ties and gradients.

    python tests/python/exported_models.py [NAME ...]       exit 1: something differs
    python tests/python/exported_models.py --write          writes tests/golden/exported as well, for tests of C++
"""
import argparse
import json
import pathlib
import sys
import time
import warnings
import weakref

import torch
import transformers
import transformers.masking_utils as masks
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "torch"), str(ROOT / "python")]
from autograd_engine import as_engine  # noqa: E402
from fsdp_plan.tracing import hub  # noqa: E402
from fsdp_plan.tracing.exporting import export  # noqa: E402
from model_cases import CONFIGS, GPT2, OWN, SEQUENCES, SIZES, case  # noqa: E402
from replayed import Replayed  # noqa: E402

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
# With the attention that a GPU runs, for comparisons with the program's own models of these families.
WIDE = dict(SIZES, vocab_size=2048, hidden_size=256, intermediate_size=704, num_hidden_layers=2,
            attn_implementation="sdpa")
FAMILIES = {
    "llama": WIDE, "qwen3": dict(WIDE, head_dim=32, tie_word_embeddings=True), "phi3": WIDE, "olmo2": WIDE,
    "granite": WIDE, "gpt_neox": WIDE, "olmoe": dict(WIDE, num_experts=4, num_experts_per_tok=2),
    "mixtral": dict(WIDE, num_local_experts=4),
    "gpt2": dict(GPT2, vocab_size=2048, n_embd=256, n_layer=2, n_positions=512, attn_implementation="sdpa"),
}
FAMILY_TOKENS = 512
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "exported"
# Their experts' gradients are made at the end of an op's backward, and count from its begin.
EARLY_GRADIENTS = ("mixtral",)


class Storages(TorchDispatchMode):
    """Bytes of living storages that operators make; numbers alone are left out."""

    def __init__(self, known):
        super().__init__()
        self.seen, self.live, self.peak = {t.untyped_storage()._cdata for t in known}, 0, 0

    def gone(self, key, size):
        self.seen.discard(key)
        self.live -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = as_engine(func, args)(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.dim() and t.dtype != torch.uint64:
                storage = t.untyped_storage()
                if storage._cdata in self.seen or not storage.nbytes():
                    continue
                self.seen.add(storage._cdata)
                self.live += storage.nbytes()
                weakref.finalize(storage, self.gone, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out


def real(model, inputs, loss):
    """The same four numbers of a run with numbers."""
    known = [*model.parameters(), *model.buffers(), *(inputs.values() if isinstance(inputs, dict) else inputs)]
    with Storages(known) as storages:
        masks.find_packed_sequence_indices, kept = lambda _: None, masks.find_packed_sequence_indices
        try:
            result = (loss(model(*inputs), inputs) if loss else model(**inputs).loss)
            saved, forward_peak, storages.peak = storages.live, storages.peak, storages.live
            result.backward()
        finally:
            masks.find_packed_sequence_indices = kept
        gradients = sum(p.grad.untyped_storage().nbytes() for p in model.parameters() if p.grad is not None)
        return {"saved": saved, "forward_peak": forward_peak, "backward_peak": storages.peak, "end": gradients}


def many(inputs):
    grow = lambda t: t.repeat(SEQUENCES, *[1] * (t.dim() - 1))  # noqa: E731
    cast = lambda t: t.bfloat16() if t.is_floating_point() else t  # noqa: E731
    if isinstance(inputs, dict):
        return {k: cast(grow(t)) for k, t in inputs.items()}
    return [cast(grow(t)) for t in inputs]


def recomputes(model):
    """T5's first block makes a table for all others, which a recomputation of it does not make alone."""
    return getattr(model, "supports_gradient_checkpointing", False) and model.config.model_type != "t5"


def recomputed(model, inputs, loss):
    """The same of a run that checkpoints each block."""
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if any(not p.requires_grad for p in model.parameters()):
        model.disable_input_require_grads()
    return real(model, inputs, loss)


def keep(name, written, **more):
    GOLDEN.mkdir(exist_ok=True)
    release = torch.__version__.split("+")[0]
    about = f"By tests/python/exported_models.py with PyTorch {release} and transformers {transformers.__version__}."
    (GOLDEN / f"{name.replace(' ', '_')}.json").write_text(
        json.dumps({"_about": about, **more, "model": written}, separators=(",", ":")) + "\n")


def keep_families():
    for name, sizes in FAMILIES.items():
        config = hub.settle(transformers.AutoConfig.for_model(name, **sizes))
        written = export(hub.factory(config), hub.batch_of(config, FAMILY_TOKENS), name=name)
        text = json.loads(json.dumps({**config.to_dict(), "model_type": name}, default=str))
        keep(f"family {name}", written, config={k: v for k, v in text.items() if v is not None})


def differences(name, write):
    model, inputs, loss = case(name)
    began = time.perf_counter()
    written = export(model, inputs, loss=loss, name=name)
    seconds, ours = time.perf_counter() - began, Replayed(written, SEQUENCES)
    for p in model.parameters():
        p.data = p.data.bfloat16()
    if hasattr(model, "config"):
        model.config.use_cache = False
    there = real(model.train(), many(inputs), loss)
    if write:
        more = {"recomputed": recomputed(model, many(inputs), loss)} if recomputes(model) else {}
        keep(name, written, sequences=SEQUENCES, early=name in EARLY_GRADIENTS, pytorch=there, **more)
    names = [n for n, _ in model.named_parameters()]
    if [p["name"] for p in written["parameters"]] != names:
        yield "parameters differ"
    of_peak = [max(peaks["forward_peak"], peaks["backward_peak"]) for peaks in (vars(ours), there)]
    print(f"| {name} | {sum(p.numel() for p in model.parameters()):,} | {len(written['ops'])} | {seconds:.1f} | "
          f"{of_peak[0]:,} | {of_peak[1]:,} | {of_peak[0] / of_peak[1] - 1:+.2%} |")
    for what, bytes_ in there.items():
        found = getattr(ours, what)
        print(f"  {name:24} {what:14} {found:12,} model.json, {bytes_:12,} PyTorch, {found - bytes_:+,}")
        largest = max(p.numel() * p.element_size() for p in model.parameters())
        if found != bytes_ and not (what == "backward_peak" and name in EARLY_GRADIENTS
                                    and 0 < found - bytes_ <= largest):
            yield f"{what}: {found - bytes_:+,} bytes"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    chosen = given.names or [*OWN, *CONFIGS, "llama with adapters"]
    print("| model | parameters | ops | export, s | peak predicted, B | peak of PyTorch, B | error |")
    wrong = [f"{name}: {d}" for name in chosen for d in differences(name, given.write)]
    if given.write:
        keep_families()
    print("\n".join(wrong) or f"{len(chosen)} models: model.json and PyTorch agree")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
