"""The toy model of tests/support/toy_model.h, for any PyTorch."""
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Toy(nn.Module):
    def __init__(self, blocks, vocab, width, hidden, tied, order=None, with_head=True):
        super().__init__()
        self.with_head = with_head           # else forward ends with what the head reads
        self.order = order or range(blocks)
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width, hidden) for _ in range(blocks))
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for i in self.order:
            x = self.layers[i](x)
        return self.head(x) if self.with_head else x
