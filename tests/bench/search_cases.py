#!/usr/bin/env python3
"""The joint search against the search of plans that treat all blocks alike, on 60 (model, cluster, GPUs, limit) cases.

  tests/bench/search_cases.py build/release/fsdp-plan            # a Markdown table; some 10 to 30 minutes of one core
  tests/bench/search_cases.py build/release/fsdp-plan --only 70b # cases whose words hold this

Exit code 1: in some case the joint search is slower than the other, or finds nothing where that finds a plan.
"""

import argparse
import json
import resource
import subprocess
import sys

# (model, cluster, GPUs, tokens per sequence, more flags); each with three limits: the default, and parts of it.
SETUPS = [
    ("llama3-8b", "dgx-h100", 8, 8192, ""),
    ("llama3-8b", "dgx-h100", 64, 8192, ""),
    ("llama3-8b", "dgx-h100", 16, 2048, "--global-batch-tokens 1M"),
    ("llama3-8b", "p4d", 32, 4096, ""),
    ("llama3-8b", "dgx-a100-80", 8, 8192, "--global-batch 64"),
    ("llama2-7b", "dgx-a100-40", 8, 4096, ""),
    ("llama2-13b", "dgx-a100-40", 8, 4096, ""),
    ("llama2-13b", "dgx-a100-40", 16, 4096, ""),
    ("llama2-13b", "dgx-h100", 32, 4096, "--global-batch-tokens 4M"),
    ("gpt2-xl", "dgx-a100-40", 8, 1024, ""),
    ("gpt2-xl", "dgx-h100", 4, 1024, "--global-batch 256"),
    ("qwen3-32b", "dgx-h100", 32, 4096, ""),
    ("qwen3-32b", "dgx-h100", 64, 8192, "--global-batch-tokens 4M"),
    ("qwen2.5-7b", "dgx-h100", 8, 4096, ""),
    ("mistral-7b", "dgx-a100-80", 16, 8192, ""),
    ("llama3-70b", "dgx-h100", 64, 8192, ""),
    ("llama3-70b", "dgx-h100", 256, 8192, ""),
    ("llama3-70b", "dgx-h100", 1024, 8192, "--global-batch-tokens 8M"),
    ("llama3.1-405b", "dgx-h100", 1024, 8192, ""),
    ("qwen3-0.6b", "dgx-h100", 8, 4096, ""),
]
PARTS = [1, 0.8, 0.65]  # of the default limit


def ask(program, words, search):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    call = [program, "plan", *words, "--search", search, "--tensor", "1", "--json=brief"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(call)}: {done.stderr}")
    return json.loads(done.stdout), seconds


def speed(answer):
    """Tokens per second of the plan that fits."""
    return answer["prediction"]["tokens_per_s"] if answer["verdict"] == "fits" else None


def said(value, form):
    return "-" if value is None else form.format(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--only", default="", help="cases whose words hold this")
    args = parser.parse_args()
    print("| case | limit, GiB | uniform, tokens/s | joint | gain | gap | user s, uniform | joint |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    gains, gaps, worse = [], [], []
    for model, cluster, gpus, tokens, more in SETUPS:
        words = ["--model", model, "--cluster", cluster, "--gpus", str(gpus), "--seq-len", str(tokens), *more.split()]
        case = f"{model}, {gpus} {cluster}, {tokens} {more}".strip()
        if args.only not in case:
            continue
        limit = None
        for part in PARTS:
            limited = words if limit is None else [*words, "--memory-limit", f"{int(limit * part)}B"]
            uniform, short = ask(args.program, limited, "uniform")
            joint, long = ask(args.program, limited, "joint")
            if limit is None:
                known = next(a["prediction"] for a in (joint, uniform) if a["prediction"])
                limit = known["memory_limit_bytes"]
            before, after = speed(uniform), speed(joint)
            gain = after / before - 1 if before and after else None
            gap = joint.get("certificate", {}).get("gap")
            if (before and not after) or (gain is not None and gain < 0):
                worse.append(case)
            gains += [] if gain is None else [gain]
            gaps += [] if gap is None or not after else [gap]
            cells = [case, f"{limit * part / 2**30:.1f}", said(before, "{:,.0f}"), said(after, "{:,.0f}"),
                     said(gain, "{:+.1%}"), said(gap, "{:.1%}"), f"{short:.1f}", f"{long:.1f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
    for what, values in (("gain", sorted(gains)), ("gap", sorted(gaps))):
        if values:
            print(f"{what}: {len(values)} cases, {values[0]:.1%} to {values[-1]:.1%}, "
                  f"median {values[len(values) // 2]:.1%}, mean {sum(values) / len(values):.1%}")
    for case in worse:
        print("slower:", case)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
