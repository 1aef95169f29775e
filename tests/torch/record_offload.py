#!/usr/bin/env python3
"""Records what PyTorch does for inputs of recomputed blocks that wait in host memory: offload_wrapper around
checkpoint_wrapper. The copies of save_on_cpu are logged beside the forwards of blocks; on a processor, where both
memories are one.

Events, in order, with the block: offload | run | fetch; "bytes": what each copy holds.

Usage:

    python3 tests/torch/record_offload.py            compares with tests/torch/golden/offload_order.json
    python3 tests/torch/record_offload.py --write    records it again
"""
import pathlib
import sys
from unittest import mock

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

import golden_file

GOLDEN = pathlib.Path(__file__).parent / "golden" / "offload_order.json"
SEQUENCES, TOKENS, HIDDEN = 2, 8, 16


class Block(nn.Module):
    """As many results as a transformer's block has: norm, product, activation, product, sum."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, 24), nn.Linear(24, HIDDEN)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def record(config):
    events, copies = [], []

    class Logged(torch.autograd.graph.saved_tensors_hooks):
        """save_on_cpu without the copies; which block's tensor it is shows in the forward that follows."""

        def __init__(self, pin_memory=False, device_type="cuda"):
            assert pin_memory
            super().__init__(self.pack, self.unpack)

        @staticmethod
        def pack(tensor):
            block = sum(name == "offload" for name, _ in events)
            events.append(["offload", config["offloaded"][block]])
            copies.append(tensor.nbytes)
            return config["offloaded"][block], tensor

        @staticmethod
        def unpack(packed):
            events.append(["fetch", packed[0]])
            return packed[1]

    model = nn.Sequential(nn.Embedding(32, HIDDEN), *[Block() for _ in range(config["blocks"])])
    for b in range(config["blocks"]):
        model[b + 1].norm.register_forward_pre_hook(lambda *_, b=b: events.append(["run", b]))
        again = wrappers.checkpoint_wrapper(model[b + 1])
        model[b + 1] = wrappers.offload_wrapper(again) if b in config["offloaded"] else again
    with mock.patch.object(wrappers, "save_on_cpu", Logged):
        model(torch.zeros(SEQUENCES, TOKENS, dtype=torch.int64)).sum().backward()
    return {"config": config, "events": events, "bytes": copies}


def main():
    cases = [record({"name": name, "blocks": 3, "offloaded": blocks, "sequences": SEQUENCES, "tokens": TOKENS,
                     "hidden": HIDDEN})
             for name, blocks in (("all", [0, 1, 2]), ("first", [0]), ("last two", [1, 2]))]
    return golden_file.finish(GOLDEN, golden_file.text_of({"torch": torch.__version__, "cases": cases}))


if __name__ == "__main__":
    sys.exit(main())
