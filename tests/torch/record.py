#!/usr/bin/env python3
"""Runs every recorder of PyTorch's behaviour, tests/torch/record_*.py, and compares with the files that are committed.

    python -m venv venv && venv/bin/pip install -r tests/torch/requirements.txt     (an environment; CPU only, any
      machine)
    venv/bin/python tests/torch/record.py                                           prints what changed; exit 1 if
      anything did
    venv/bin/python tests/torch/record.py --write                                   and keeps it
    venv/bin/python tests/torch/record.py fsdp2 memory                              these only

The recorders run in a copy of tests/golden and tests/torch, so that nothing here is touched without --write. Versions
are pinned in requirements.txt: another PyTorch is another truth, recorded only with --any-version. `fsdp2` knows older
releases: there it records what they do differently, in files of their own. A recorder that is
run by itself may differ in the last digits of floating-point results.
"""
import argparse
import difflib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["golden", "torch"]


def goldens(tests):
    found = [*tests.glob("golden/*"), *tests.glob("torch/golden/**/*")]
    return {str(f.relative_to(tests)): f.read_bytes() for f in found if f.is_file() and not of_other_release(f)}


def of_other_release(path):
    """Whether another PyTorch than the one that runs wrote the golden: fsdp2_order_2.9.json."""
    named = re.search(r"_(\d+\.\d+)\.json$", path.name)
    return named is not None and not importlib.metadata.version("torch").startswith(named.group(1) + ".")


def wrong_versions():
    for line in (TESTS / "torch" / "requirements.txt").read_text().split():
        name, wanted = line.split("==")
        try:
            found = importlib.metadata.version(name).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found = "absent"
        if found != wanted:
            yield f"{name} is {found}, the files were recorded with {wanted}"


def differences(before, after, where=""):
    """Paths into two JSON documents where they differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for k in before.keys() | after.keys():
            yield from differences(before.get(k), after.get(k), f"{where}.{k}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (b, a) in enumerate(zip(before, after)):
            yield from differences(b, a, f"{where}[{name_of(b) or i}]")
    elif before != after:
        yield f"{where or 'document'}: {short(before)} -> {short(after)}"


def name_of(value):
    if isinstance(value, dict):
        value = value.get("config", value)
        return value.get("name") if isinstance(value, dict) else None


def short(value):
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def report(name, before, after):
    if before is None:
        print(f"  {name}: new")
        return
    try:
        lines = sorted(differences(json.loads(before), json.loads(after))) or ["same values, other text"]
    except ValueError:
        old, new = (text.decode(errors="replace").splitlines() for text in (before, after))
        diff = difflib.unified_diff(old, new, lineterm="", n=0)
        lines = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
    print(f"  {name}: {len(lines)} differences")
    for line in lines[:12]:
        print(f"    {line}")


def run(recorder, copy):
    """One recorder with --write in the copy; False if it failed."""
    # The last digits of sums depend on threads and vector widths: one thread, the plainest instructions.
    environment = dict(os.environ, OMP_NUM_THREADS="1", ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE",
                       PYTHONHASHSEED="0",
                       PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([sys.executable, str(recorder), "--write"], cwd=copy, env=environment, capture_output=True,
                          text=True)
    if done.returncode != 0:
        print(f"  failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep what was recorded")
    parser.add_argument("--any-version", action="store_true", help="record with other versions than those pinned")
    parser.add_argument("names", nargs="*", help="recorders, without record_ and .py; default: all")
    args = parser.parse_args()
    problems = list(wrong_versions())
    if problems:
        print("\n".join(problems), file=sys.stderr)
        if not args.any_version:
            print("make an environment with `pip install -r tests/torch/requirements.txt`, or say --any-version",
                  file=sys.stderr)
            return 2
    recorders = sorted(TESTS.glob("torch/record_*.py"))
    unknown = set(args.names) - {r.stem.removeprefix("record_") for r in recorders}
    if unknown:
        print("no recorder is called " + ", ".join(sorted(unknown)), file=sys.stderr)
        return 2
    if args.names:
        recorders = [r for r in recorders if r.stem.removeprefix("record_") in args.names]

    changed, failed = {}, []
    before = goldens(TESTS)
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "tests"
        for name in FOLDERS:
            shutil.copytree(TESTS / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for f in goldens(copy):
            os.utime(copy / f, (0, 0))       # to see which files nobody writes
        for recorder in recorders:
            print(recorder.name, flush=True)
            start = time.monotonic()
            earlier = goldens(copy)
            if not run(copy / "torch" / recorder.name, copy.parent):
                failed.append(recorder.name)
            now = goldens(copy)
            for name in sorted(now):
                if now[name] != earlier.get(name):
                    report(name, earlier.get(name), now[name])
                    changed[name] = now[name]
            print(f"  {time.monotonic() - start:.0f} s", flush=True)
        unwritten = sorted(f for f in goldens(copy) if (copy / f).stat().st_mtime == 0)
    if unwritten and not args.names:
        print("no recorder writes: " + ", ".join(unwritten))
    if args.write:
        for name, content in changed.items():
            (TESTS / name).write_bytes(content)
    print(f"{len(before)} files, {len(changed)} changed" + (" and written" if args.write and changed else "") +
          (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed or (changed and not args.write) or (unwritten and not args.names) else 0


if __name__ == "__main__":
    sys.exit(main())
