"""Mixtures of experts by the operators that torchtitan has since November 2025: for recordings, so that memory is
theirs. `models/implementations/grouped_experts.cpp` counts them; those of August 2025 are prime_rl.py's.

From 21 November 2025 on (pull request 1974) results are put back in the order of tokens and multiplied by their weights
in one batched product. From April 2026 on (pull requests 2774, 2775) rows are not padded and results are weighted and
added up, as before; routers multiply in fp32 (2389), and from 20 May on a shared expert runs last (3386). Padding to a
multiple of eight is left out, its second gather is not.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

import prime_rl


class Router(nn.Module):
    """wide: torch.autocast to fp32, which casts the tokens and the weight."""

    def __init__(self, count, width, top_k, sigmoid, wide, groups=(1, 1), renormalised=True):
        super().__init__()
        self.groups, self.chosen_groups = groups
        self.renormalised = renormalised
        self.gate, self.top_k, self.sigmoid, self.wide = nn.Linear(width, count, bias=False), top_k, sigmoid, wide
        self.register_buffer("expert_bias", torch.empty(count))

    def of_best_groups(self, biased):
        """Those of a group count by their best two."""
        grouped = biased.view(-1, self.groups, biased.shape[1] // self.groups)
        best, _ = grouped.topk(2, dim=-1)
        group_scores = best.sum(dim=-1)
        _, chosen = torch.topk(group_scores, k=self.chosen_groups, dim=-1, sorted=False)
        mask = torch.ones_like(group_scores, dtype=torch.bool)
        mask.scatter_(1, chosen, False)
        biased = grouped.masked_fill(mask.unsqueeze(-1), float("-inf")).view(-1, biased.shape[1])
        return biased

    def forward(self, x, bias):
        scores = F.linear(x.float(), self.gate.weight.float()) if self.wide else self.gate(x)
        if self.sigmoid:
            scores = torch.sigmoid(scores.to(torch.float32))
        else:
            scores = F.softmax(scores.to(torch.float32), dim=1)
        biased = scores + bias
        if self.groups > 1:
            biased = self.of_best_groups(biased)
        _, chosen = torch.topk(biased, k=self.top_k, dim=-1, sorted=False)
        weights = scores.gather(dim=1, index=chosen)
        if self.renormalised:
            divisor = weights.sum(dim=-1, keepdim=True) + 1e-20
            weights = weights / divisor
        weights = weights * 1.0
        counts = torch.empty(scores.shape[1], device=x.device)   # a histogram, on a GPU
        return weights, chosen, counts


class Mixture(nn.Module):
    """Of December 2025 to March 2026."""

    def __init__(self, config, shared):
        super().__init__()
        count = config.get("num_experts", config.get("n_routed_experts"))
        width, ffn, self.top_k = config["hidden_size"], config["moe_intermediate_size"], config["num_experts_per_tok"]
        self.experts = self.experts_of(count, width, ffn)
        kind = config.get("model_type", "")
        deepseek = kind.startswith("deepseek")
        self.router = Router(count, width, self.top_k, wide=self.WIDE,
                             sigmoid=kind == "deepseek_v3" if deepseek else shared > 0,
                             groups=(config["n_group"], config["topk_group"]) if deepseek else (1, 1),
                             renormalised=kind != "deepseek_v2")
        self.shared_experts = prime_rl.SharedExpert(width, ffn * shared) if shared else None

    WIDE, experts_of = False, prime_rl.Experts

    def in_order(self, weights, chosen):
        counts = torch.empty(self.router.gate.weight.shape[0], device=chosen.device)
        order = torch.argsort(chosen.view(-1), stable=True)
        weights = weights.view(-1)[order]
        return weights, order, counts

    def forward(self, x):
        sequences, seq_len, width = x.shape
        x = x.view(-1, width)
        weights, chosen, counts = self.router(x, self.router.expert_bias)
        sorted_weights, order, counts = self.in_order(weights, chosen)
        rows = x[order // self.top_k]
        out_rows = self.experts(rows, counts)
        out = None if self.shared_experts is None else self.shared_experts(x)
        put = torch.zeros((order.shape[0], width), dtype=x.dtype, device=x.device)
        put[order] = out_rows
        put = put.reshape(-1, self.top_k, width)
        mixed = torch.bmm(weights.reshape(-1, 1, self.top_k), put.float()).to(x.dtype).squeeze(1)
        if out is None:
            return mixed.reshape(sequences, seq_len, width)
        return (out + mixed).reshape(sequences, seq_len, width)


class Experts(prime_rl.Experts):
    """That find their rows and add their results up."""

    def dispatch(self, x, weights, chosen):
        counts = torch.empty(self.w1.shape[0], device=x.device)
        order = torch.argsort(chosen.view(-1), stable=True)
        weights = weights.view(-1)[order]
        order = order // chosen.shape[-1]
        return x[order], counts, (order, weights)

    def combine(self, rows, found, x):
        out = torch.zeros_like(x)
        rows = (rows.to(torch.float32) * found[1].reshape(-1, 1)).to(rows.dtype)
        return out.scatter_add(dim=0, index=found[0].reshape(-1, 1).expand(-1, x.shape[-1]), src=rows)

    def multiply(self, rows, counts):
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        return prime_rl.products(rows, self.w1, self.w2, self.w3, ends)

    def forward(self, x, weights, chosen):
        rows, counts, found = self.dispatch(x, weights, chosen)
        results = self.multiply(rows, counts)
        return self.combine(results, found, x)


class LaterMixture(Mixture):
    """Since April 2026."""

    WIDE, experts_of = True, Experts

    def forward(self, x):
        sequences, seq_len, width = x.shape
        x = x.view(-1, width)
        weights, chosen, counts = self.router(x, self.router.expert_bias)
        out = self.experts(x, weights, chosen)
        if self.shared_experts is not None:
            shared = self.shared_experts(x)
            out = out + shared
        return out.reshape(sequences, seq_len, width)


FORMS = {"torchtitan-2025-12": Mixture, "torchtitan": LaterMixture}


def put_into(net, config, form):
    """Replaces the mixtures of a Qwen3-MoE, GLM-4.5 or DeepSeek of transformers."""
    for layer in net.model.layers[config.get("first_k_dense_replace", 0):]:
        layer.mlp = FORMS[form](config, config.get("n_shared_experts", 0))
