"""Records what prime-rl's head and loss in chunks of tokens (_SequenceChunkedLogProbEntropyFn of
trainer/models/layers/lm_head.py since pull request 1987 of March 2026) keep and hold at most, and how many kernels they
launch for a pair of chunks. tests/simulator/published/chunked_head_test.cpp compares.

    python tests/torch/record_token_chunks.py            compares with tests/torch/golden/token_chunks.json; exit 1
    python tests/torch/record_token_chunks.py --write    writes it            (needs torch alone)

The function is restated operator by operator. Tensors are real, small and on the CPU: it asks whether a chunk of the
vocabulary has labels. All labels are in the first, as those of the benchmark's fake data.
"""

import argparse
import json
import pathlib
import sys

import torch
from record_tape import Memory

GOLDEN = pathlib.Path(__file__).parent / "golden" / "token_chunks.json"
NO_KERNEL = ("empty", "view", "detach", "alias", "transpose", "t.", "expand", "unsqueeze", "slice", "_unsafe_view")


class Counted(Memory):
    """kernels: operators that compute. reads: numbers, or shapes, that the host takes from the device."""
    inherited = True
    kernels = reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.")
        masks = name.startswith("index") and any(
            t is not None and t.dtype == torch.bool for t in args[1]) if len(args) > 1 else False
        if name.startswith("_local_scalar_dense") or name.startswith("is_nonzero") or masks:
            self.reads += 1
        self.kernels += not (name.startswith(NO_KERNEL) or name.startswith("_local_scalar"))
        return super().__torch_dispatch__(func, types, args, kwargs)


def update(m, s, t, logits):
    chunk_m = torch.amax(logits, dim=-1)
    m_new = torch.maximum(m, chunk_m)
    exp_old = torch.exp(m - m_new)
    chunk_exp = torch.exp(logits - m_new.unsqueeze(-1))
    s_new = s * exp_old + chunk_exp.sum(dim=-1)
    t_new = t * exp_old + (chunk_exp * logits).sum(dim=-1)
    return m_new, s_new, t_new


class TokenChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, inv_t, tokens, words):
        n, vocab = hidden.shape[0], weight.shape[0]
        logprobs, entropy, logz = (torch.empty((n,), dtype=torch.float32) for _ in range(3))
        for start in range(0, n, tokens):
            end = min(start + tokens, n)
            rows, here, scale = hidden[start:end], labels[start:end], inv_t[start:end].unsqueeze(-1)
            m = torch.full((end - start,), float("-inf"), dtype=torch.float32)
            s, t, target = (torch.zeros((end - start,), dtype=torch.float32) for _ in range(3))
            for first in range(0, vocab, words):
                last = min(first + words, vocab)
                part = weight[first:last]
                logits = rows @ part.t()
                scaled = logits.to(torch.float32) * scale
                m, s, t = update(m, s, t, scaled)
                mask = (here >= first) & (here < last)
                if torch.any(mask):
                    idx = (here[mask] - first).to(torch.long)
                    target[mask] = scaled[mask, idx]
            logz_chunk = m + torch.log(s)
            logz[start:end] = logz_chunk
            logprobs[start:end] = target - logz_chunk
            entropy[start:end] = logz_chunk - (t / s)
        ctx.save_for_backward(hidden, weight, labels, inv_t, logz)
        ctx.chunks = tokens, words
        return logprobs, entropy

    @staticmethod
    def backward(ctx, grad_logprobs, _):
        hidden, weight, labels, inv_t, logz = ctx.saved_tensors
        tokens, words = ctx.chunks
        n, vocab = hidden.shape[0], weight.shape[0]
        grad_hidden, grad_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
        for start in range(0, n, tokens):
            end = min(start + tokens, n)
            rows, here, scale = hidden[start:end], labels[start:end], inv_t[start:end].unsqueeze(-1)
            grad, logz_chunk = grad_logprobs[start:end].to(torch.float32), logz[start:end]
            for first in range(0, vocab, words):
                last = min(first + words, vocab)
                part = weight[first:last]
                logits = rows @ part.t()
                scaled = logits.to(torch.float32) * scale
                probs = torch.exp(scaled - logz_chunk.unsqueeze(-1))
                grad_logits = (-grad).unsqueeze(-1) * probs
                mask = (here >= first) & (here < last)
                if torch.any(mask):
                    idx = (here[mask] - first).to(torch.long)
                    grad_logits[mask, idx] += grad[mask]
                grad_logits = grad_logits * scale
                grad_hidden[start:end].add_(grad_logits.to(hidden.dtype) @ part)
                grad_weight[first:last].add_(grad_logits.to(weight.dtype).t() @ rows)
        return grad_hidden, grad_weight, None, None, None, None


def record(n, channels, vocab, tokens, words):
    hidden = torch.zeros(n, channels, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(vocab, channels, dtype=torch.bfloat16, requires_grad=True)
    labels, inv_t = torch.zeros(n, dtype=torch.int64), torch.ones(n)
    memory = Counted()
    for t in (hidden, weight, labels, inv_t):
        memory.ignore(t)
    row = dict(tokens=n, channels=channels, vocab=vocab, chunk=tokens, words=words)
    with memory:
        logprobs, entropy = TokenChunks.apply(hidden, weight, labels, inv_t, tokens, words)
        row |= dict(forward_peak=memory.peak, saved=memory.live, forward_kernels=memory.kernels,
                    forward_reads=memory.reads)
        del entropy
        loss = logprobs.sum()
        del logprobs
        memory.phase, memory.peak, memory.kernels, memory.reads = "backward", memory.live, 0, 0
        loss.backward()
    return row | dict(backward_peak=memory.peak, end=memory.live, backward_kernels=memory.kernels,
                      backward_reads=memory.reads)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    cases = ((512, 16, 2048, 128, 512), (512, 16, 2048, 64, 1024), (1024, 16, 4096, 256, 512))
    rows = [record(*case) for case in cases]
    found = {"recorded_with": f"torch {torch.__version__.split('+')[0]}", "rows": rows}
    if write:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
        return
    same = json.loads(GOLDEN.read_text())["rows"] == rows
    print("nothing changed" if same else rows)
    sys.exit(not same)


if __name__ == "__main__":
    main()
