"""Records what prime-rl's experts with adapters keep, hold at most and launch where they are multiplied one after the
other (prime_rl.py's AdaptedExpertsInTurn), by themselves: in a whole model other moments are the worst.
tests/simulator/published/prime_rl_model_test.cpp compares.

    python tests/torch/record_experts_in_turn.py            compares with tests/torch/golden/experts_in_turn.json, or
      exits with 1
    python tests/torch/record_experts_in_turn.py --write    writes it            (needs what record_saved.py needs)

kernels: operators that compute. Of the backward of a slice and of a selection, two kernels each, none is counted; sums
of gradients are.
"""

import argparse
import json
import pathlib
import sys

import prime_rl
import torch
from record_saved import Kernels
from torch._subclasses.fake_tensor import FakeTensorMode

GOLDEN = pathlib.Path(__file__).parent / "golden" / "experts_in_turn.json"


class Counted(Kernels):
    inherited = True


def record(experts, channels, hidden, rank, rows):
    with FakeTensorMode():
        module = prime_rl.AdaptedExpertsInTurn(prime_rl.Experts(experts, channels, hidden), rank)
        x = torch.empty(rows, channels, requires_grad=True)
        gradient = torch.empty(rows, channels)
        memory = Counted()
        for t in [*module.parameters(), x, gradient]:
            memory.ignore(t)
        with memory:
            out = module(x, [0] * experts)
            row = dict(experts=experts, channels=channels, hidden=hidden, rank=rank, rows=rows,
                       forward_peak=memory.peak, saved=memory.live, forward_kernels=memory.count)
            memory.phase, memory.peak, memory.count = "backward", memory.live, 0
            out.backward(gradient)
        return row | dict(backward_peak=memory.peak, end=memory.live, backward_kernels=memory.count)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    torch.set_default_dtype(torch.bfloat16)
    rows = [record(*case) for case in ((16, 256, 320, 8, 2048), (32, 128, 64, 16, 4096), (8, 128, 192, 8, 512))]
    found = {"recorded_with": f"torch {torch.__version__.split('+')[0]}", "rows": rows}
    if write:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
        return
    same = json.loads(GOLDEN.read_text())["rows"] == rows
    print("nothing changed" if same else rows)
    sys.exit(not same)


if __name__ == "__main__":
    main()
