#!/usr/bin/env python3
"""Records what PyTorch's own CUDA caching allocator does with sequences of requests, on a machine without a GPU.

libc10_cuda.so of the installed PyTorch (any CUDA build) is run against a device that is only addresses
(allocator/fake_cuda.cpp): the allocator takes it for a real one, so every decision (which block, when a segment, what
is given back) is the library's own. Needs g++ and the CUDA headers that come with PyTorch's wheels. Usage:

    python3 tests/torch/record_allocator.py                    compares with tests/torch/golden/allocator.json, prints
      what changed
    python3 tests/torch/record_allocator.py --write            records it again
    python3 tests/torch/record_allocator.py --random N FILE    N other random sequences; compare with the model by
                                                               FSDP_PLAN_ALLOCATOR_GOLDEN=FILE simulator_allocator_test
    python3 tests/torch/record_allocator.py --trace IN FILE    the case in IN (JSON: name, device, settings, requests),
      likewise
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE / "golden" / "allocator.json"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def build(folder):
    """The fake device and the driver, in `folder`; returns the driver."""
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    source, torch = HERE / "allocator", site / "torch"
    if not (torch / "lib" / "libc10_cuda.so").exists():
        sys.exit("this PyTorch was built without CUDA; PyPI's wheels for Linux have it")
    cuda = sorted(site.glob("nvidia/cu*/include/cuda.h"))[-1].parent
    flags = ["g++", "-std=c++20", "-O1", f"-I{torch}/include", f"-I{cuda}"]
    runtime = f"{folder}/libcudart.so.13"
    subprocess.run([*flags, "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13",
                    f"-Wl,--version-script={source}/fake_cuda.map",
                    f"{source}/fake_cuda.cpp", "-o", runtime], check=True)
    subprocess.run([*flags, "-Wl,--no-as-needed", f"{source}/drive_allocator.cpp", runtime,
                    f"{torch}/lib/libc10_cuda.so", f"{torch}/lib/libc10.so",
                    f"-Wl,-rpath,{folder}:{torch}/lib", f"-Wl,-rpath-link,{folder}", "-Wl,--allow-shlib-undefined",
                    "-o", f"{folder}/drive"], check=True)
    return f"{folder}/drive"


def drive(program, case):
    """One row per request (see drive_allocator.cpp), and the peaks."""
    conf = ",".join(f"{k}:{v}" for k, v in case["settings"].items() if k != "fraction")
    text = f"device {case['device']}\n"
    if "fraction" in case["settings"]:
        text += f"fraction {case['settings']['fraction']}\n"
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")} | {"PYTORCH_ALLOC_CONF": conf}
    done = subprocess.run([program], input=text + "\n".join(case["requests"]) + "\n", env=env, capture_output=True,
                          text=True)
    if done.returncode != 0:
        sys.exit(f"{case['name']}: {done.stderr[-2000:]}")
    rows = done.stdout.split("\n")
    assert len(rows) == len(case["requests"]) + 2, (case["name"], len(rows), done.stderr[-2000:])
    return [[int(n) for n in r.split()] for r in rows[:-2]], [int(n) for n in rows[-2].split()[1:]]


def record(program, case, every):
    """The case with its answers: where each malloc went, and the counters after every so many requests."""
    rows, peaks = drive(program, case)
    return {**case, "requests": ";".join(case["requests"]),
            "addresses": [r[0] for r, q in zip(rows, case["requests"]) if q.startswith("m")],
            "counters": [[i, *r[1:]] for i, r in enumerate(rows) if i % every == every - 1 or i == len(rows) - 1],
            "peaks": peaks[:4]}  # that of inactive split bytes depends on the order of a hash table


class Sequence:
    """Writes requests; blocks have names."""

    def __init__(self):
        self.requests, self.ids = [], {}

    def malloc(self, name, size, stream=0):
        self.ids[name] = len(self.ids)
        self.requests.append(f"m {self.ids[name]} {size} {stream}")
        return self

    def free(self, *names):
        self.requests += [f"f {self.ids[n]}" for n in names]
        return self

    def used_by(self, name, stream):
        self.requests.append(f"u {self.ids[name]} {stream}")
        return self

    def done(self, stream):
        self.requests.append(f"d {stream}")
        return self

    def empty_cache(self):
        self.requests.append("e")
        return self


def case(name, sequence, device=8 * GIB, **settings):
    return {"name": name, "device": device, "settings": settings, "requests": sequence.requests}


def crafted():
    """One sequence per rule."""
    s = Sequence()
    for i, size in enumerate([1, 511, 512, 513, 1000, MIB - 1, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB,
                              10 * MIB + 1, 12_000_000,
                              19 * MIB, 19 * MIB - 512, 20 * MIB, 33_554_433]):
        s.malloc(i, size)
    yield case("sizes", s)
    yield case("sizes, 4 divisions", s, roundup_power2_divisions=4)
    yield case("sizes, expandable", s, expandable_segments=True)

    s = (Sequence().malloc("a", 600 * KIB).malloc("b", 600 * KIB).malloc("c", 600 * KIB).free("a").malloc("d", 100)
         .free("c", "b", "d"))
    yield case("small pool: split, best fit, merge", s)

    s = (Sequence().malloc("a", 4 * MIB).malloc("b", 6 * MIB).malloc("c", 3 * MIB).free("a", "c").malloc("d", 3 * MIB)
         .malloc("e", 4 * MIB).free("b", "d", "e"))
    yield case("large pool: best fit, merge", s)

    s = (Sequence().malloc("a", 64 * MIB).free("a").malloc("b", 63 * MIB).free("b").malloc("c", 63 * MIB - 512)
         .free("c").malloc("d", 2 * MIB))
    yield case("large pool: more than 1 MiB is split off", s)

    s = (Sequence().malloc("a", 30 * MIB, 0).free("a").malloc("b", 30 * MIB, 1).malloc("c", 30 * MIB, 0).free("b", "c")
         .malloc("d", 20 * KIB, 2).empty_cache())
    yield case("streams do not share", s)

    s = (Sequence().malloc("a", 30 * MIB, 1).used_by("a", 0).used_by("a", 1).used_by("a", 2).free("a")
         .malloc("b", 30 * MIB, 1).done(0))
    s.malloc("c", 30 * MIB, 1).done(2).malloc("d", 30 * MIB, 1).free("b", "c", "d").malloc("e", 100, 1)
    yield case("record_stream: all recorded streams must pass", s)
    yield case("record_stream, expandable", s, expandable_segments=True)

    s = (Sequence().malloc("a", 30 * MIB, 1).malloc("b", 30 * MIB, 1).used_by("a", 2).free("a").used_by("b", 2).done(2)
         .free("b"))
    s.malloc("c", 30 * MIB, 1).malloc("d", 30 * MIB, 1).done(2).malloc("e", 30 * MIB, 1)
    yield case("record_stream: events complete in order", s)

    s = (Sequence().malloc("a", 40 * MIB).malloc("b", 40 * MIB).malloc("c", 10 * MIB).free("a").malloc("d", 60 * MIB)
         .free("b", "c").malloc("e", 100 * MIB))
    s.malloc("f", 200 * MIB)
    yield case("retry, then out of memory", s, device=128 * MIB)
    yield case("retry, then out of memory, expandable", s, device=128 * MIB, expandable_segments=True)
    yield case("retry, then out of memory, fraction", s, fraction=1 / 64)
    yield case("retry, then out of memory, fraction, expandable", s, fraction=1 / 64, expandable_segments=True)

    s = (Sequence().malloc("a", 30 * MIB, 1).used_by("a", 0).free("a").malloc("b", 110 * MIB, 0).free("b")
         .malloc("c", 2 * MIB, 0).malloc("d", 110 * MIB, 1))
    yield case("a retry waits for all streams", s, device=128 * MIB)

    s = (Sequence().malloc("a", 100 * MIB).malloc("b", 110 * MIB).free("a", "b").malloc("c", 30 * MIB)
         .malloc("d", 80 * MIB).malloc("e", 95 * MIB))
    s.malloc("f", 60 * MIB).free("c", "f", "e").malloc("g", 200 * MIB).malloc("h", 81 * MIB)
    yield case("oversize blocks", s, device=300 * MIB, max_split_size_mb=64)
    yield case("oversize blocks, other rounding", s, device=300 * MIB, max_split_size_mb=64,
               max_non_split_rounding_mb=40)
    yield case("oversize blocks, expandable", s, device=300 * MIB, max_split_size_mb=64, expandable_segments=True)

    s = Sequence()
    for i in range(6):
        s.malloc(i, (30 + 2 * i) * MIB).free(i)
        s.malloc(f"small {i}", 100)
    s.malloc("a", 60 * MIB).malloc("b", 31 * MIB).malloc("c", 70 * MIB).free("a").malloc("d", 90 * MIB)
    yield case("garbage collection", s, fraction=1 / 32, garbage_collection_threshold=0.5)

    s = Sequence()
    for i in range(5):
        s.malloc(i, (30 + 2 * i) * MIB)
    s.free(1, 3).malloc("a", 31 * MIB).malloc("b", 35 * MIB).free(4).malloc("c", 60 * MIB).free(0)
    s.malloc("d", 90 * MIB).malloc("e", 20 * MIB)
    s.malloc("f", 600 * KIB).malloc("g", 600 * KIB, 1).malloc("h", 40 * MIB, 1).free("a", "c").empty_cache()
    s.malloc("i", 50 * MIB).malloc("j", 70 * MIB)
    yield case("expandable: holes, growth, unmapping", s, device=512 * MIB, expandable_segments=True)
    yield case("the same, not expandable", s, device=512 * MIB)
    yield case("the same, segments of 40 MiB", s, device=512 * MIB, large_segment_size_mb=40)
    yield case("the same, pages of 40 MiB", s, device=512 * MIB, large_segment_size_mb=40, expandable_segments=True)


def random_case(seed, length):
    r = random.Random(seed)
    s, live, name = Sequence(), [], 0
    settings = {}
    if r.random() < 0.4:
        settings["expandable_segments"] = True
    if r.random() < 0.25:
        settings["max_split_size_mb"] = r.choice([21, 32, 64, 200])
    if r.random() < 0.2:
        settings["roundup_power2_divisions"] = r.choice([1, 2, 4, 8, 16])
    device = r.choice([64 * GIB, 2 * GIB, 768 * MIB, 300 * MIB])
    if r.random() < 0.3:
        settings["fraction"] = r.choice([0.25, 0.5, 0.75])
        if r.random() < 0.6:
            settings["garbage_collection_threshold"] = r.choice([0.3, 0.6, 0.9])
    usual = [r.randint(1, 64 * MIB) for _ in range(6)]
    streams = r.choice([1, 2, 4])
    most = r.randint(5, 60)
    for _ in range(length):
        x = r.random()
        if x < 0.5 and len(live) < most or not live:
            kind = r.random()
            size = (r.choice(usual) if kind < 0.4 else int(2 ** r.uniform(0, 21)) if kind < 0.6
                    else int(2 ** r.uniform(20, 24)) if kind < 0.85 else int(2 ** r.uniform(23, 27)))
            s.malloc(name, size, r.randrange(streams))
            live.append(name)
            name += 1
        elif x < 0.9:
            s.free(live.pop(r.randrange(len(live))))
        elif x < 0.95:
            s.used_by(r.choice(live), r.randrange(streams + 1))
        elif x < 0.99:
            s.done(r.randrange(streams + 1))
        else:
            s.empty_cache()
    return case(f"random {seed}", s, device, **settings)


def changes(old, new):
    by_name = {c["name"]: c for c in old}
    for c in new:
        before = by_name.pop(c["name"], None)
        if before is None:
            yield f"new: {c['name']}"
        elif before != c:
            yield f"changed: {c['name']}: " + ", ".join(k for k in c if before.get(k) != c[k])
    for name in by_name:
        yield f"gone: {name}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        if sys.argv[1:2] == ["--random"]:
            cases = [record(program, random_case(seed, 400), 1) for seed in range(1000, 1000 + int(sys.argv[2]))]
            pathlib.Path(sys.argv[3]).write_text(text_of(cases))
            return
        if sys.argv[1:2] == ["--trace"]:
            asked = json.loads(pathlib.Path(sys.argv[2]).read_text())
            pathlib.Path(sys.argv[3]).write_text(text_of([record(program, asked, 1)]))
            return
        cases = [record(program, c, 1) for c in crafted()]
        cases += [record(program, random_case(seed, 150), 15) for seed in range(12)]
    if "--write" in sys.argv:
        GOLDEN.write_text(text_of(cases))
        return
    found = list(changes(json.loads(GOLDEN.read_text())["cases"], cases))
    print("\n".join(found) or "nothing changed")
    sys.exit(1 if found else 0)


def text_of(cases):
    import torch
    document = {"torch": torch.__version__.split("+")[0], "recorder": "tests/torch/record_allocator.py"}
    rows = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    return json.dumps(document)[:-1] + ', "cases": [\n' + rows + "\n]}\n"


if __name__ == "__main__":
    main()
