#!/usr/bin/env python3
"""Records what a compiled flex_attention keeps for backward, and the gradients that its backward returns, as PyTorch
parts it into forward and backward.

The partition is made on the CPU: PyTorch refuses training with FlexAttention there, as its CPU kernel has no backward,
but what is kept does not depend on the kernel. Usage:

    python tests/torch/record_flex.py            compares with tests/torch/golden/flex.json
    python tests/torch/record_flex.py --write    records it again

Masks of blocks, which all layers share, are left out.
"""
import pathlib
import sys

import torch
import torch.nn.attention.flex_attention as flex
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode

import golden_file

GOLDEN = pathlib.Path(__file__).parent / "golden" / "flex.json"
BLOCK = 128
CASES = [dict(name=f"{name}, {dtype}", sequences=sequences, seq_len=256, heads=4, kv_heads=kv_heads, head_dim=head_dim,
              v_head_dim=v_head_dim, dtype=dtype)
         for name, sequences, kv_heads, head_dim, v_head_dim in (
             ("whole", 1, 4, 64, 64), ("grouped", 2, 2, 64, 64), ("latent", 2, 4, 48, 32))
         for dtype in ("bf16", "fp32")]
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def causal(batch, head, q, k):
    return q >= k


def described(tensors):
    return [{"shape": list(t.shape), "bytes": t.element_size()} for t in tensors]


def record(case):
    graphs = {}

    def keep(name):
        def compiler(graph, _):
            graphs[name] = graph
            return graph.forward
        return compiler

    def backend(graph, inputs):
        return aot_module_simplified(graph, inputs, fw_compiler=keep("forward"), bw_compiler=keep("backward"),
                                     partition_fn=min_cut_rematerialization_partition)

    torch._dynamo.reset()
    flex._validate_device = lambda *_: None
    with FakeTensorMode(allow_non_fake_inputs=True):
        def heads(count, width):
            return torch.empty(case["sequences"], case["seq_len"], count, width, dtype=TYPES[case["dtype"]],
                               requires_grad=True).transpose(1, 2)

        q, k = heads(case["heads"], case["head_dim"]), heads(case["kv_heads"], case["head_dim"])
        v = heads(case["kv_heads"], case["v_head_dim"])
        blocks = case["seq_len"] // BLOCK
        counts, indices = torch.empty(1, 1, blocks, dtype=torch.int32), torch.empty(1, 1, blocks, blocks,
                                                                                   dtype=torch.int32)
        mask = flex.BlockMask.from_kv_blocks(counts, indices, counts, indices, BLOCK_SIZE=BLOCK, mask_mod=causal,
                                             seq_lengths=(case["seq_len"], case["seq_len"]))
        out = torch.compile(flex.flex_attention, backend=backend)(q, k, v, block_mask=mask, enable_gqa=True)
        saved = [t for t in out.grad_fn.saved_tensors if t.is_floating_point()]
        out.sum().backward()
    by_token = out.stride(2) > out.stride(1)
    made = [n.meta["val"] for n in graphs["backward"].graph.find_nodes(op="output")[0].args[0] if n is not None]
    return {"config": case, "saved": described(saved), "gradients": described(made), "result_by_token": by_token}


def main():
    about = "What compiled FlexAttention keeps for backward. Recorded by tests/torch/record_flex.py."
    document = dict(_about=about, torch=torch.__version__.split("+")[0], cases=[record(c) for c in CASES])
    return golden_file.finish(GOLDEN, golden_file.text_of(document))


if __name__ == "__main__":
    sys.exit(main())
