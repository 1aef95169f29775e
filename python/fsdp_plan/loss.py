"""What apply() cannot do from outside of a model: the loss in parts."""
from fsdp_plan.needs_torch import torch


def chunked_loss(logits, targets, chunks):
    """Mean cross-entropy of [batch, tokens, vocabulary] against [batch, tokens], in `chunks` parts of the tokens, so
    that a part's probabilities at a time are in memory (the plan's loss_chunks)."""
    cross_entropy = torch.nn.functional.cross_entropy
    parts = zip(logits.chunk(chunks, dim=1), targets.chunk(chunks, dim=1))
    sums = (cross_entropy(x.flatten(0, 1).float(), y.flatten(), reduction="sum") for x, y in parts)
    return sum(sums) / targets.numel()
