#!/usr/bin/env python3
"""Records what torchtitan's experts keep for backward where their block is compiled (since April 2026).

A norm, a mixture and the sum with what came in are compiled as one graph by Inductor, for the CPU; what autograd's node
saves is counted, parameters left out. Usage:

    python tests/torch/record_compiled_experts.py            compares with tests/torch/golden/compiled_experts.json
    python tests/torch/record_compiled_experts.py --write    records it again
"""
import pathlib
import sys

import torch
import torch.nn as nn

import golden_file
import titan_experts

GOLDEN = pathlib.Path(__file__).parent / "golden" / "compiled_experts.json"
CONFIG = dict(num_experts=8, num_experts_per_tok=2, hidden_size=256, moe_intermediate_size=320)
CASES = [dict(CONFIG, name="softmax", sequences=2, seq_len=512),
         dict(CONFIG, name="sigmoids and a shared expert", sequences=2, seq_len=512, shared=1)]


@torch.library.custom_op("experts::add_rows", mutates_args=())
def add_rows(out: torch.Tensor, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """scatter_add as an operator of its own, as torchtitan's deterministic one is."""
    return out.scatter_add(dim=0, index=index, src=src)


add_rows.register_fake(lambda out, index, src: torch.empty_like(out))
add_rows.register_autograd(lambda ctx, g: (g, None, torch.gather(g, 0, ctx.saved_tensors[0])),
                           setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]))


class Experts(titan_experts.Experts):
    def dispatch(self, x, weights, chosen):
        rows, _, found = super().dispatch(x, weights, chosen)
        count = self.w1.shape[0]
        return rows, torch.histc(chosen.view(-1).float(), bins=count, min=0, max=count), found

    def combine(self, rows, found, x):
        rows = (rows.to(torch.float32) * found[1].reshape(-1, 1)).to(rows.dtype)
        return add_rows(torch.zeros_like(x), found[0].reshape(-1, 1).expand(-1, x.shape[-1]), rows)


class Mixture(titan_experts.LaterMixture):
    experts_of = Experts


def record(case):
    torch._dynamo.reset()
    width = case["hidden_size"]
    mixture, norm = Mixture(case, case.get("shared", 0)).to(torch.bfloat16), nn.RMSNorm(width).to(torch.bfloat16)
    parameters = {p.untyped_storage().data_ptr() for m in (mixture, norm) for p in m.parameters()}
    for p in mixture.parameters():
        nn.init.normal_(p, std=0.02)
    mixture.router.expert_bias = torch.zeros(case["num_experts"])
    x = torch.randn(case["sequences"], case["seq_len"], width, dtype=torch.bfloat16, requires_grad=True)
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = torch.compile(lambda x: x + mixture(norm(x)), fullgraph=True)(x)
    out.sum().backward()
    return {"config": case, "saved": sum(saved.values())}


def main():
    about = "What compiled mixtures of experts keep, in bytes. Recorded by tests/torch/record_compiled_experts.py."
    document = dict(_about=about, torch=torch.__version__.split("+")[0], cases=[record(case) for case in CASES])
    return golden_file.finish(GOLDEN, golden_file.text_of(document))


if __name__ == "__main__":
    sys.exit(main())
