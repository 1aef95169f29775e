#!/usr/bin/env python3
"""Records what transformers 4.31's Llama holds when its cache stays on, and the loop keeps its outputs or the loss.

As ATorch's example of November 2023 and llama-recipes of July 2023 run it, but for sharding: layers in
checkpoint_wrapper, which leaves `use_cache` as it is, parameters and activations in bf16. Attention as ATorch replaces
it, by a kernel that keeps q, k, v, the result and a number per row and head, or written out (`eager`), as the release
has it. `outputs` of one step lives until the next forward has returned; of `model(**batch).loss` (`dropped`) nothing
lives on but the loss.

Bytes alive beside parameters, their gradients and the tables of angles: at the end of a step; the most during the
forward that follows; after it, with what backward needs and with the outputs of before still there.

Usage, in an environment of Python 3.8 to 3.11 with torch==2.1.0, transformers==4.31.0 and numpy below 2:

    python tests/torch/early/record_hf_2023.py            compares with tests/torch/golden/hf_2023_cache.json
    python tests/torch/early/record_hf_2023.py --write    records it again
"""
import gc
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import torch
import transformers
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers.models.llama import modeling_llama

import golden_file

GOLDEN = TESTS / "golden" / "hf_2023_cache.json"


class Flash(torch.autograd.Function):
    """[batch, tokens, heads, head_dim]; its values do not matter."""

    @staticmethod
    def forward(ctx, q, k, v):
        out, statistics = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, statistics)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


def attention(self, hidden_states, attention_mask=None, position_ids=None, past_key_value=None,
              output_attentions=False, use_cache=False):
    batch, tokens, _ = hidden_states.shape
    q, k, v = (project(hidden_states).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
               for project in (self.q_proj, self.k_proj, self.v_proj))
    cos, sin = self.rotary_emb(v, seq_len=tokens)
    q, k = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin, position_ids)
    mixed = Flash.apply(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).reshape(batch, tokens, -1)
    return self.o_proj(mixed), None, (k, v) if use_cache else None


class Log(TorchDispatchMode):
    def __init__(self, left_out):
        super().__init__()
        self.sizes, self.alive = {}, {}
        self.total = self.peak = 0
        self.left_out = {t.untyped_storage()._cdata for t in left_out}

    def forget(self):
        for key in [k for k, reference in self.alive.items() if reference.expired()]:
            del self.alive[key]
            self.total -= self.sizes.pop(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.forget()
        for t in tree_flatten(out)[0]:
            if isinstance(t, torch.Tensor) and t.dim() > 0:
                storage = t.untyped_storage()
                key = storage._cdata
                if key not in self.left_out and key not in self.sizes:
                    self.sizes[key], self.alive[key] = storage.nbytes(), StorageWeakRef(storage)
                    self.total += self.sizes[key]
        self.peak = max(self.peak, self.total)
        return out


EAGER = modeling_llama.LlamaAttention.forward


def record(c):
    modeling_llama.LlamaAttention.forward = EAGER if c.get("eager") else attention
    config = transformers.LlamaConfig(
        vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["inner"], num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"], max_position_embeddings=c["seq_len"])
    net = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    net.train()
    for i, layer in enumerate(net.model.layers):
        net.model.layers[i] = checkpoint_wrapper(layer, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    ids = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
    batch = dict(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids))
    outputs, found = None, {}
    for step in range(3):
        log = Log([*net.parameters(), *net.buffers(), *batch.values()]) if step == 0 else log
        gc.collect()
        with log:
            torch.empty(1)
            found["held"] = log.total
            log.peak = 0
            new = net(**batch).loss if c.get("dropped") else net(**batch)
            torch.empty(1)
            found["forward_peak"], found["after_forward"] = log.peak, log.total
            outputs = new
            del new
            (outputs if c.get("dropped") else outputs.loss).backward()
            for p in net.parameters():
                p.grad = None
    return {"config": c, **found}


def main():
    base = dict(hidden=256, inner=688, heads=4, vocab=1000, layers=3)
    kinds = (("", {}), ("attention written out, ", dict(eager=True)),
             ("attention written out, outputs dropped, ", dict(eager=True, dropped=True)))
    cases = [record(dict(base, name=kind + name, seq_len=seq_len, sequences=sequences, **how))
             for kind, how in kinds
             for name, seq_len, sequences in (("two sequences", 256, 2), ("one sequence", 1024, 1))]
    return golden_file.finish(GOLDEN, golden_file.text_of(
        {"torch": torch.__version__, "transformers": transformers.__version__, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
