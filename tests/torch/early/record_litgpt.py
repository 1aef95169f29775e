#!/usr/bin/env python3
"""Records what LitGPT's model holds for backward, and around its loss, in the loops that trained it.

`fabric`: as its own scripts run it, through Fabric, which casts the logits of a model in 16 bits to the default type,
fp32, as they leave it (lightning/fabric/wrappers.py, plugins/precision/half.py). `benchmark`: as lightning-thunder's
benchmark_litgpt.py does, whose loop keeps the logits while backward runs. Parameters and activations in bf16; grouped
heads, and others. Attention is the flash kernel, whose result lies in the order in which q does, as on a GPU.

Bytes beside parameters, their gradients and the tables of angles: after forward, and at most in forward and in
backward. `compiled`: what the forward graph of one block hands to its backward graph, of tensors that are no inputs of
the block, as AOTAutograd's partitioner decides.

Under PyTorch 2.1 instead: the same with the norms of October 2023, in 16 bits (Lightning-AI/litgpt commit 8641822,
lit_gpt/rmsnorm.py), of which aten::mean kept what it averaged.

Usage, in an environment with torch==2.4.1 or 2.1.0, and litgpt==0.4.0 without what it depends on (its model needs none
of it):

    python tests/torch/early/record_litgpt.py            compares with tests/torch/golden/litgpt_2.4.json, or _2.1
    python tests/torch/early/record_litgpt.py --write    records it again
"""
import importlib.util
import pathlib
import sys
import types

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

import golden_file
from record_hf_2023 import Flash, Log

RELEASE = ".".join(torch.__version__.split(".")[:2])
GOLDEN = TESTS / "golden" / f"litgpt_{RELEASE}.json"
aten = torch.ops.aten
VIEWS = (aten.view.default, aten.permute.default, aten.expand.default, aten.slice.Tensor, aten._unsafe_view.default,
         aten.alias.default)


def litgpt():
    """The model, without litgpt/__init__.py and litgpt/utils.py, which ask for Lightning and more."""
    package, utils = types.ModuleType("litgpt"), types.ModuleType("litgpt.utils")
    package.__path__ = [str(pathlib.Path(importlib.util.find_spec("litgpt").origin).parent)]
    utils.find_multiple = lambda n, k: -(-n // k) * k    # all that the config takes from there
    sys.modules.update({"litgpt": package, "litgpt.utils": utils})
    from litgpt import model                             # its config imports it, and it its config
    return model


def norm_of_2023(self, x):
    norm_x = torch.mean(x * x, dim=self.dim, keepdim=True)
    x_normed = x * torch.rsqrt(norm_x + self.eps)
    return self.weight * x_normed


def config_of(c, model):
    return model.Config(
        block_size=c["seq_len"], n_embd=c["hidden"], n_head=c["heads"], n_query_groups=c["kv_heads"],
        n_layer=c["layers"], padded_vocab_size=c["vocab"], intermediate_size=c["inner"], bias=False,
        rotary_percentage=1.0, parallel_residual=False, norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP")


def forward_and_loss(net, ids):
    """Fabric's."""
    logits = net(ids).to(torch.float32)
    logits = logits.reshape(-1, logits.size(-1))
    return F.cross_entropy(logits, ids.reshape(-1), ignore_index=-100)


def record(c, model):
    net = model.GPT(config_of(c, model)).to(torch.bfloat16).train()
    for p in net.parameters():
        p.grad = torch.empty_like(p)                     # gradients are added to these
    ids = torch.zeros(c["sequences"], c["seq_len"], dtype=torch.int64)
    log = Log([*net.parameters(), *(p.grad for p in net.parameters()), *net.buffers(), ids])
    with log:
        if c["fabric"]:
            loss = forward_and_loss(net, ids)
        else:
            logits = net(ids)
            logits = logits.reshape(-1, logits.size(-1))
            loss = F.cross_entropy(logits, ids.reshape(-1))
        torch.empty(1)
        found = dict(forward_peak=log.peak, after_forward=log.total)
        log.peak = 0
        loss.backward()
    return {"config": c, **found, "backward_peak": log.peak}


class Recorded(Exception):
    """The graphs are there, and need not run."""


def stop(*args):
    raise Recorded


def source(node):
    """What a view is of; a split's results are views."""
    while node.target in VIEWS or "split" in str(node.target) or (
            "getitem" in str(node.target) and "split" in str(node.args[0].target)):
        node = node.args[0]
    return node


def bytes_between_graphs(module, *inputs, **keywords):
    torch._dynamo.reset()
    saved = {}

    def forward(graph, _):
        for node in next(n for n in graph.graph.nodes if n.op == "output").args[0][1:]:     # the first is the module's
            if isinstance(node, torch.fx.Node) and source(node).op != "placeholder":
                value = source(node).meta["val"]
                if isinstance(value, torch.Tensor) and value.dim() > 0:
                    saved[source(node).name] = value.numel() * value.element_size()
        return make_boxed_func(stop)

    backend = aot_autograd(fw_compiler=forward, bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
                           partition_fn=min_cut_rematerialization_partition, decompositions=select_decomp_table())
    try:
        torch.compile(module, backend=backend, fullgraph=True)(*inputs, **keywords)
    except Recorded:
        pass
    return sum(saved.values())


def record_compiled(c, model):
    import memory_log                                    # PyTorch's own operator, which the tracer knows
    F.scaled_dot_product_attention = lambda q, k, v, **_: memory_log.attention(q, k, v, is_causal=True)
    config = config_of(c, model)
    block = model.Block(config).to(torch.bfloat16)
    angles = [t.to(torch.bfloat16) for t in model.build_rope_cache(c["seq_len"], config.rope_n_elem)]
    x = torch.randn(c["sequences"], c["seq_len"], c["hidden"], dtype=torch.bfloat16, requires_grad=True)
    return {"config": c, "saved": bytes_between_graphs(block, x, *angles)}


def main():
    model = litgpt()
    F.scaled_dot_product_attention = lambda q, k, v, **_: Flash.apply(q, k, v)
    then = RELEASE == "2.1"
    if then:
        model.RMSNorm.forward = norm_of_2023
    base = dict(hidden=256, inner=688, heads=8, layers=3, seq_len=256)
    kinds = (("grouped heads", 2), ("a key for each head", 8))
    cases = [record(dict(base, name=f"{loop}, {heads}, vocabulary of {vocab}", fabric=loop == "fabric",
                         kv_heads=kv_heads, vocab=vocab, sequences=sequences), model)
             for loop in (("fabric",) if then else ("fabric", "benchmark"))
             for heads, kv_heads in kinds for vocab, sequences in ((320, 2), (8000, 1))]
    if not then:
        cases += [record_compiled(dict(base, name=f"compiled, {heads}", kv_heads=kv_heads, vocab=320, sequences=2),
                                  model) for heads, kv_heads in kinds]
    return golden_file.finish(GOLDEN, golden_file.text_of({"torch": torch.__version__.split("+")[0],
                                                           "litgpt": "0.4.0", "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
