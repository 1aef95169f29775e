"""Records what PyTorch's autograd saves for each op as torchtitan's Llama calls it: which inputs and outputs stay, and bytes that
exist for backward only. tests/models_implementation_test.cpp compares the `torchtitan` implementation (eager) with it.

    python tests/torch/record_saved.py         (needs torch only; rewrites tests/torch/golden/models_saved.json)

Runs on fake CUDA tensors, so that PyTorch dispatches as on a GPU (rms_norm is one fused operator there, layer_norm's statistics are
fp32) and needs none. Attention picks its kernel by asking the GPU, so it runs on the CPU, with the flash kernel that PyTorch has there.
"""

import json
import pathlib

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

SEQUENCES, SEQ_LEN = 2, 8
WIDTH, OUT, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 16, 24, 40, 4, 2, 4


def saved_by(call, inputs, parameters):
    """(bits of inputs, bits of outputs, extra bytes). Scalars and constants that outlive the step do not count."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        out = call(*inputs)
    def storage(tensor):
        return tensor.untyped_storage()._cdata
    def bits(tensors):
        return sum(1 << i for i, t in enumerate(tensors) if any(storage(s) == storage(t) for s in saved))
    known = {storage(t) for t in [*inputs, *parameters, out]}
    extra = {storage(s): s.numel() * s.element_size() for s in saved if storage(s) not in known and s.dim() > 0}
    return {"saved_inputs": bits(inputs), "saved_outputs": bits([out]), "saved_extra_bytes": sum(extra.values())}


def cases(dtype, device):
    def rows(width):
        return torch.empty(SEQUENCES, SEQ_LEN, width, dtype=dtype, device=device, requires_grad=True)
    def weight(*shape):
        return torch.empty(*shape, dtype=dtype, device=device, requires_grad=True)
    norm, bias, matrix, table = weight(WIDTH), weight(WIDTH), weight(OUT, WIDTH), weight(VOCAB, WIDTH)
    freqs = torch.empty(SEQ_LEN, WIDTH // 2, dtype=torch.complex64, device=device)

    def rotary(x):
        pairs = torch.view_as_complex(x.float().reshape(SEQUENCES, SEQ_LEN, -1, 2))
        return torch.view_as_real(pairs * freqs).flatten(2).type_as(x)

    def heads(x):
        return x.view(SEQUENCES, SEQ_LEN, -1, HEAD_DIM)

    def repeat(x):   # torchtitan's repeat_kv
        x = heads(x)
        n = HEADS // x.shape[2]
        return x if n == 1 else x[:, :, :, None, :].expand(-1, -1, -1, n, -1).reshape(SEQUENCES, SEQ_LEN, HEADS, HEAD_DIM)

    def attention(q, k, v):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = F.scaled_dot_product_attention(heads(q).transpose(1, 2), repeat(k).transpose(1, 2), repeat(v).transpose(1, 2), is_causal=True)
        return out.transpose(1, 2).reshape(SEQUENCES, SEQ_LEN, -1)

    if device == "cpu":
        kv = KV_HEADS * HEAD_DIM
        yield "attention", attention, [rows(HEADS * HEAD_DIM) for _ in range(3)], []
        yield "attention_grouped", attention, [rows(HEADS * HEAD_DIM), rows(kv), rows(kv)], []
        return
    ids = torch.zeros(SEQUENCES, SEQ_LEN, dtype=torch.int64, device=device)
    yield "embedding", lambda i: F.embedding(i, table), [ids], [table]
    yield "rms_norm", lambda x: F.rms_norm(x, (WIDTH,), norm, 1e-5), [rows(WIDTH)], [norm]
    yield "layer_norm", lambda x: F.layer_norm(x, (WIDTH,), norm, bias), [rows(WIDTH)], [norm, bias]
    yield "linear", lambda x: F.linear(x, matrix), [rows(WIDTH)], [matrix]
    yield "swiglu", lambda gate, up: F.silu(gate) * up, [rows(WIDTH), rows(WIDTH)], []
    yield "gelu", F.gelu, [rows(WIDTH)], []
    yield "add", lambda a, b: a + b, [rows(WIDTH), rows(WIDTH)], []
    if dtype == torch.bfloat16:   # in fp32 the casts are no copies
        yield "rotary", rotary, [rows(WIDTH)], [freqs]
        yield "cross_entropy", lambda x, t: F.cross_entropy(x.flatten(0, 1).float(), t), [rows(VOCAB), ids.flatten()], []


def main():
    shapes = dict(sequences=SEQUENCES, seq_len=SEQ_LEN, width=WIDTH, out=OUT, vocab=VOCAB, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    out = []
    for dtype in (torch.bfloat16, torch.float32):
        for op, *case in cases(dtype, "cpu"):
            out.append({"op": op, "element_bytes": dtype.itemsize, **saved_by(*case)})
        with FakeTensorMode():
            for op, *case in cases(dtype, "cuda"):
                out.append({"op": op, "element_bytes": dtype.itemsize, **saved_by(*case)})
    out = [json.dumps(row) for row in out]
    text = f'{{\n  "recorded_with": "torch {torch.__version__.split("+")[0]}",\n  "shapes": {json.dumps(shapes)},\n  "ops": [\n    ' + ",\n    ".join(out) + "\n  ]\n}\n"
    (pathlib.Path(__file__).parent / "golden" / "models_saved.json").write_text(text)


if __name__ == "__main__":
    main()
