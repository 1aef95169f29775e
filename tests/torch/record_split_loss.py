#!/usr/bin/env python3
"""Records what torchtitan's compiled loss keeps and holds, of whole logits and of logits that are split over ranks.

One process plays a rank of a fake process group. The loss is compiled by Inductor, for the CPU; its code says which
buffers it makes and when it drops them. Usage:

    python tests/torch/record_split_loss.py            compares with tests/torch/golden/split_loss.json
    python tests/torch/record_split_loss.py --write    records it again

Of each case: `saved`, the bytes that wait for backward, the logits among them where they do; `forward` and `backward`,
the most bytes of buffers at once in either's code. Numbers of single rows count, those of one element do not.
"""
import contextlib
import math
import pathlib
import re
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._inductor.utils import run_fw_bw_and_get_code
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import golden_file

GOLDEN = pathlib.Path(__file__).parent / "golden" / "split_loss.json"
CASES = [dict(name=f"{ranks} rank{'s' * (ranks > 1)}, {dtype}", ranks=ranks, dtype=dtype, sequences=2, seq_len=48,
              vocab=1024)
         for ranks in (1, 2, 8) for dtype in ("bf16", "fp32")]
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def most_held(code):
    """The most bytes of the buffers that the code has at once."""
    sizes = {"bfloat16": 2, "float32": 4, "int64": 8, "bool": 1}
    held, now, most = {}, 0, 0
    for line in code.splitlines():
        if made := re.search(r"(buf\d+) = empty_strided_\w+\(\(([\d, ]*)\), .*torch\.(\w+)\)", line):
            elements = math.prod(int(n) for n in made[2].split(",") if n.strip())
            if elements > 1:
                held[made[1]] = elements * sizes[made[3]]
        elif renamed := re.search(r"(buf\d+) = (buf\d+); del", line):
            held[renamed[1]] = held.pop(renamed[2], 0)
        elif dropped := re.search(r"^\s*del (buf\d+)", line):
            held.pop(dropped[1], None)
        now = sum(held.values())
        most = max(most, now)
    return most


def record(case):
    torch._dynamo.reset()
    mesh = init_device_mesh("cpu", (case["ranks"],))
    rows = (case["sequences"], case["seq_len"])
    local = torch.randn(*rows, case["vocab"] // case["ranks"], dtype=TYPES[case["dtype"]], requires_grad=True)
    labels = torch.randint(0, case["vocab"], rows)
    saved = {}

    def pack(t):
        t = t.to_local() if isinstance(t, DTensor) else t
        if t.numel() > 1 and t.dtype != torch.int64:      # not the labels
            saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    compiled = torch.compile(loss, backend="inductor")

    def run():
        split = case["ranks"] > 1
        with loss_parallel() if split else contextlib.nullcontext():
            logits = DTensor.from_local(local, mesh, [Shard(-1)]) if split else local
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                return compiled(logits, labels)

    _, codes = run_fw_bw_and_get_code(run)
    forward, backward = (most_held(code) for code in codes)
    return dict(config=case, saved=sum(saved.values()), forward=forward, backward=backward)


def main():
    cases = []
    for case in CASES:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
        cases.append(record(case))
        dist.destroy_process_group()
    about = "What compiled losses keep and hold, in bytes. Recorded by tests/torch/record_split_loss.py."
    document = dict(_about=about, torch=torch.__version__.split("+")[0], cases=cases)
    return golden_file.finish(GOLDEN, golden_file.text_of(document))


if __name__ == "__main__":
    sys.exit(main())
