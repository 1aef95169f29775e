"""Adapters, and mixtures of experts, by the operators that prime-rl has (January 2026; its own models' experts are
torchtitan's of August 2025): for recordings, so that memory is theirs. `models/implementations/prime_rl*.cpp` counts
them.

Left out is the padding of each expert's rows to a multiple of eight: the second gather is there, of as many rows.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


HELD = 4  # adapters, of which the first is used


class AdaptedLinear(nn.Module):
    """in_turn: products are not grouped (not on Hopper): each adapter's by itself, of its own tokens."""

    def __init__(self, base, rank, in_turn=False):
        super().__init__()
        self.base, self.in_turn = base, in_turn
        base.weight.requires_grad = False
        self.lora_A = nn.ParameterList(nn.Parameter(torch.empty(rank, base.in_features)) for _ in range(HELD))
        self.lora_B = nn.ParameterList(nn.Parameter(torch.empty(base.out_features, rank)) for _ in range(HELD))

    def forward(self, x):
        shape = (*x.shape[:-1], self.base.out_features)
        x = x.view(-1, x.shape[-1])
        ends = torch.empty(HELD, dtype=torch.int32)
        base_out = self.base(x)
        downs = torch.stack([p for p in self.lora_A], dim=0)
        ups = torch.stack([p for p in self.lora_B], dim=0)
        lora_out = self.products_in_turn(x, downs, ups) if self.in_turn else self.grouped_products(x, downs, ups, ends)
        factors = torch.empty(x.shape[0], 1, dtype=torch.bfloat16)
        return (base_out + factors * lora_out).view(shape)

    @staticmethod
    def grouped_products(x, downs, ups, ends):
        low = torch._grouped_mm(x, downs.transpose(-2, -1), offs=ends)
        return torch._grouped_mm(low, ups.transpose(-2, -1), offs=ends)

    @staticmethod
    def products_in_turn(x, downs, ups):
        """_run_lora_for_loop of lora/multi_linear.py; the first adapter has all tokens."""
        splits, begin = [], 0
        for i in range(HELD):
            low = torch.matmul(x[begin:x.shape[0]], downs[i].transpose(-2, -1))
            out = torch.matmul(low, ups[i].transpose(-2, -1))
            splits.append(out)
            begin = x.shape[0]
        return torch.cat(splits, dim=0)


def products(x, w1, w2, w3, ends):
    """Every expert's feed-forward, over rows that end at `ends`."""
    h = F.silu(torch._grouped_mm(x, w1.transpose(-2, -1), offs=ends))
    h = h * torch._grouped_mm(x, w3.transpose(-2, -1), offs=ends)
    return torch._grouped_mm(h, w2.transpose(-2, -1), offs=ends)


def second_gather(compute, rows, *weights):
    """Rows with zeros below them, gathered again, and their results put back."""
    order = torch.empty(rows.shape[0], dtype=torch.int32, device=rows.device)
    rows = torch.vstack((rows, rows.new_zeros(rows.shape[-1])))
    shape = rows.shape
    rows = rows[order, :]
    out = compute(rows, *weights)
    back = out.new_empty(shape)
    back[order, :] = out
    return back[:-1]


class Experts(nn.Module):
    def __init__(self, count, width, ffn):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(count, ffn, width))
        self.w2 = nn.Parameter(torch.empty(count, width, ffn))
        self.w3 = nn.Parameter(torch.empty(count, ffn, width))

    def forward(self, rows, counts):
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        return second_gather(products, rows, self.w1, self.w2, self.w3, ends)


class AdaptedExperts(nn.Module):
    """The same with an adapter of each matrix, without the second gather."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        for name in ("w1", "w2", "w3"):
            experts, out, width = getattr(base, name).shape
            setattr(self, f"{name}_lora_A", nn.Parameter(torch.empty(experts, rank, width)))
            setattr(self, f"{name}_lora_B", nn.Parameter(torch.empty(experts, out, rank)))
        for p in base.parameters():
            p.requires_grad = False

    @staticmethod
    def adapter(rows, down, up, ends):
        low = torch._grouped_mm(rows, down.transpose(-2, -1), offs=ends)
        return torch._grouped_mm(low, up.transpose(-2, -1), offs=ends)

    def forward(self, rows, counts):
        ends, factor = torch.cumsum(counts, dim=0, dtype=torch.int32), 2.0
        gate_base = torch._grouped_mm(rows, self.base.w1.transpose(-2, -1), offs=ends)
        gate_more = self.adapter(rows, self.w1_lora_A, self.w1_lora_B, ends)
        gate = gate_base + factor * gate_more
        up_base = torch._grouped_mm(rows, self.base.w3.transpose(-2, -1), offs=ends)
        up_more = self.adapter(rows, self.w3_lora_A, self.w3_lora_B, ends)
        up = up_base + factor * up_more
        h = F.silu(gate) * up
        down_base = torch._grouped_mm(h, self.base.w2.transpose(-2, -1), offs=ends)
        down_more = self.adapter(h, self.w2_lora_A, self.w2_lora_B, ends)
        return down_base + factor * down_more


class AdaptedExpertsInTurn(AdaptedExperts):
    """The same where products are not grouped: MultiLoRAGroupedExperts._forward_for_loop, with variables of its
    names."""

    def forward(self, rows, counts):
        each, factor = rows.shape[0] // len(counts), 2.0   # as many rows for each expert
        out_splits = []
        start = 0
        for e in range(len(counts)):
            end = start + each
            x = rows[start:end]
            h1_base = torch.matmul(x, self.base.w1[e].transpose(-2, -1))
            w1_low = torch.matmul(x, self.w1_lora_A[e].transpose(-2, -1))
            w1_out = torch.matmul(w1_low, self.w1_lora_B[e].transpose(-2, -1))
            h1 = h1_base + factor * w1_out
            h3_base = torch.matmul(x, self.base.w3[e].transpose(-2, -1))
            w3_low = torch.matmul(x, self.w3_lora_A[e].transpose(-2, -1))
            w3_out = torch.matmul(w3_low, self.w3_lora_B[e].transpose(-2, -1))
            h3 = h3_base + factor * w3_out
            h = F.silu(h1) * h3
            h2_base = torch.matmul(h, self.base.w2[e].transpose(-2, -1))
            w2_low = torch.matmul(h, self.w2_lora_A[e].transpose(-2, -1))
            w2_out = torch.matmul(w2_low, self.w2_lora_B[e].transpose(-2, -1))
            out = h2_base + factor * w2_out
            out_splits.append(out)
            start = end
        return torch.cat(out_splits, dim=0)


class Router(nn.Module):
    """bias: GLM's, whose scores are sigmoids and whose choice is of scores with a bias of each expert."""

    def __init__(self, count, width, top_k, bias=False):
        super().__init__()
        self.gate, self.top_k = nn.Linear(width, count, bias=False), top_k
        self.register_buffer("expert_bias", torch.empty(count) if bias else None)

    def forward(self, x):
        scores = self.gate(x)
        if self.expert_bias is None:
            scores = F.softmax(scores.to(torch.float32), dim=1)
            weights, chosen = torch.topk(scores, k=self.top_k, dim=1)
        else:
            scores = torch.sigmoid(scores.to(torch.float32))
            _, chosen = torch.topk(scores + self.expert_bias, k=self.top_k, dim=1)
            weights = scores.gather(dim=1, index=chosen)
        divisor = weights.sum(dim=-1, keepdim=True) + 1e-20
        weights = weights / divisor
        weights = weights * 1.0
        counts = torch.empty(scores.shape[1], dtype=torch.int64, device=x.device)   # a histogram, on a GPU
        return weights, chosen, counts


class SharedExpert(nn.Module):
    def __init__(self, width, ffn):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(ffn, width))
        self.w2 = nn.Parameter(torch.empty(width, ffn))
        self.w3 = nn.Parameter(torch.empty(ffn, width))

    def forward(self, x):
        h = F.silu(torch.matmul(x, self.w1.transpose(-2, -1)))
        return torch.matmul(h * torch.matmul(x, self.w3.transpose(-2, -1)), self.w2.transpose(-2, -1))


class Mixture(nn.Module):
    def __init__(self, count, top_k, width, ffn, shared=0):
        super().__init__()
        self.experts, self.router = Experts(count, width, ffn), Router(count, width, top_k, bias=shared > 0)
        self.shared_expert = SharedExpert(width, ffn * shared) if shared else None

    def in_order(self, weights, chosen, counts):
        order = torch.argsort(chosen.view(-1), stable=True)
        sorted_weights = weights.view(-1)[order]
        order = order // self.router.top_k
        return sorted_weights, order, counts

    def forward(self, x):
        sequences, seq_len, width = x.shape
        x = x.view(-1, width)
        weights, chosen, counts = self.router(x)
        sorted_weights, order, counts = self.in_order(weights, chosen, counts)
        order = order.reshape(-1, 1).expand(-1, width)
        rows = torch.gather(x, dim=0, index=order)
        out_rows = self.experts(rows, counts)
        out_rows = (out_rows.to(torch.float32) * sorted_weights.reshape(-1, 1)).to(x.dtype)
        out = torch.zeros_like(x) if self.shared_expert is None else self.shared_expert(x)
        out = out.scatter_add(dim=0, index=order, src=out_rows)
        return out.reshape(sequences, seq_len, width)


def put_into(net, config, rank=0, in_turn=False):
    """Replaces the mixtures of a Qwen3-MoE or GLM-4.5 of transformers; rank: of adapters of experts, 0 none. A dense
    model's linear layers get adapters. in_turn: whose products are not grouped."""
    count = config.get("num_experts", config.get("n_routed_experts"))
    for i, layer in enumerate(net.model.layers):
        if i < config.get("first_k_dense_replace", 0):
            continue
        if count is None:
            for owner in (layer.self_attn, layer.mlp):
                for name, base in list(owner.named_children()):
                    if isinstance(base, nn.Linear):
                        setattr(owner, name, AdaptedLinear(base, rank, in_turn))
            continue
        layer.mlp = Mixture(count, config["num_experts_per_tok"], config["hidden_size"],
                            config["moe_intermediate_size"], config.get("n_shared_experts", 0))
        if rank:
            layer.mlp.experts = (AdaptedExpertsInTurn if in_turn else AdaptedExperts)(layer.mlp.experts, rank)
            layer.mlp.router.gate.weight.requires_grad = False
    if rank:
        for name, p in net.named_parameters():
            p.requires_grad = "lora_" in name
