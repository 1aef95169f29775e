"""`simulate --snapshot` in PyTorch's own tools, and against what the prediction says.

    python memory_snapshot.py PROGRAM
"""
import bisect
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile

from torch.cuda import _memory_viz

LLAMA = "--model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 8192".split()
CASES = {
    "fsdp2": LLAMA,
    "accumulation and checkpointing": LLAMA + "--grad-accum 3 --activation-checkpointing full".split(),
    "fsdp1, whose blocks wait for streams": LLAMA + ["--dialect", "fsdp1"],
    "segments of fixed size": LLAMA + ["--implementation", "foundry"],
    "one block": LLAMA + ["--implementation", "native"],
    "one rank": "--model tiny-llama --cluster dgx-h100 --gpus 1 --seq-len 64".split(),
}


def made(program, flags, folder):
    path = os.path.join(folder, "memory.pickle")
    done = subprocess.run([program, "simulate", *flags, "--snapshot", path, "--json"], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    with open(path, "rb") as f:
        return pickle.load(f), json.loads(done.stdout)


def in_torchs_tools(snapshot):
    """What PyTorch's tools say; each of them checks the snapshot in its own way, and raises."""
    said = _memory_viz.segsum(snapshot)
    assert "segments: %d\n" % len(snapshot["segments"]) in said, said
    lines = _memory_viz.trace(snapshot).splitlines()
    allocations = sum(e["action"] == "alloc" for e in snapshot["device_traces"][0])
    assert sum(" = " in line for line in lines) >= allocations
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        assert "MemoryViz.js" in page and len(page) > 1000
    flames = _memory_viz.memory(snapshot, format_flamegraph=lambda text: text)
    total = sum(int(line.rsplit(" ", 1)[1]) for line in flames.splitlines() if ";active_allocated;" in line)
    assert total <= sum(s["allocated_size"] for s in snapshot["segments"])
    assert "parameter shards" in flames, flames[:400]
    _memory_viz.segments(snapshot, format_flamegraph=lambda text: text)


class Device:
    """Replays a trace: every block lies in what the device gave, and no two live blocks share a byte."""

    def __init__(self):
        self.given, self.live, self.waiting, self.starts = {}, {}, {}, []
        self.reserved = self.allocated = self.peak = 0

    def see(self, e):
        action, address, size = e["action"], e["addr"], e["size"]
        if action in ("segment_alloc", "segment_map"):
            assert address not in self.given
            self.given[address] = size
            self.reserved += size
        elif action in ("segment_free", "segment_unmap"):
            assert self.given.pop(address) == size
            self.reserved -= size
        elif action == "alloc":
            self.place(address, size)
            self.live[address] = size
            if not e["frames"] or e["frames"][0]["filename"] != "library":
                self.allocated += size
                self.peak = max(self.peak, self.allocated)
        elif action == "free_requested":
            self.waiting[address] = self.live.pop(address)
            self.allocated -= size
            assert self.waiting[address] == size
        else:
            assert action == "free_completed", e
            assert self.waiting.pop(address) == size
            del self.starts[bisect.bisect_left(self.starts, address)]

    def place(self, address, size):
        k = bisect.bisect_right(self.starts, address)
        before = self.starts[k - 1] if k else None
        if before is not None:
            assert before + (self.live.get(before) or self.waiting.get(before)) <= address, "blocks overlap"
        if k < len(self.starts):
            assert address + size <= self.starts[k], "blocks overlap"
        self.starts.insert(k, address)
        end = address  # pages that were given beside one another make one range
        for start in sorted(self.given):
            if start <= end < start + self.given[start]:
                end = start + self.given[start]
        assert end >= address + size, "a block outside of what the device gave"


def matches(snapshot, prediction):
    device = Device()
    for e in snapshot["device_traces"][0]:
        device.see(e)
    assert device.peak == prediction["peak_allocated_bytes"], (device.peak, prediction["peak_allocated_bytes"])
    segments = snapshot["segments"]
    assert device.reserved == sum(s["total_size"] for s in segments)
    assert device.reserved == prediction["peak_reserved_bytes"], (device.reserved, prediction["peak_reserved_bytes"])
    live = {b["address"]: b["requested_size"] for s in segments for b in s["blocks"] if b["state"] != "inactive"}
    assert live == {**device.live, **device.waiting}
    for s in segments:
        address = s["address"]
        for b in s["blocks"]:
            assert b["address"] == address
            address += b["size"]
        assert address == s["address"] + s["total_size"]


def categories(snapshot):
    """PyTorch's viewer knows the category "unknown" only where it is said."""
    found = {e["category"] for e in snapshot["device_traces"][0] if e["action"] == "alloc"}
    assert {"unknown", "parameter shards", "optimizer states"} <= found, found
    for e in snapshot["device_traces"][0]:
        for frame in e["frames"]:
            assert set(frame) == {"filename", "name", "line"}, frame
    named = [f["name"] for e in snapshot["device_traces"][0] for f in e["frames"] if f["filename"] == "steady step"]
    assert any(re.match(r"forward linear \S+ op \d+ mb 0", name) for name in named), named[:5]


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        for name, flags in CASES.items():
            snapshot, prediction = made(os.path.abspath(program), flags, folder)
            in_torchs_tools(snapshot)
            matches(snapshot, prediction)
            categories(snapshot)
            print("as predicted: %s, %d events" % (name, len(snapshot["device_traces"][0])))


if __name__ == "__main__":
    main(*sys.argv[1:])
