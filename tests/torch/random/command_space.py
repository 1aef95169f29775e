"""Draws small models and command lines of `fsdp-plan plan`: what is not said there, the search decides.

A drawn case is {"model": a config.json, "command": flags}; random_plans.py adds "plan", what the program made of them.
"""
import plan_space


def draw(rng, families, memory=False):
    family, tied = rng.choice(families), rng.random() < 0.25
    model = plan_space.model_of(family, rng.choice([1, 2, 3, 4]), tied)
    if memory:
        model.update({k: 4 * v for k, v in model.items() if k in plan_space.WIDTHS}, vocab_size=509)
    gpus, seq_len = rng.choice([1, 2, 2, 4, 6, 8, 16, 24]), 64 if memory else 8
    flags = {"--gpus": gpus, "--seq-len": seq_len, "--micro-batch": rng.choice([1, 2, 3])}

    def maybe(chance, flag, *values):
        if rng.random() < chance:
            flags[flag] = rng.choice(values)
    wraps = ["block", "block:2", "root", "titan", "params:1e3", "params:5e3", "params:2e4"]
    if family in plan_space.CLASSES:
        name = plan_space.CLASSES[family]
        wraps += [f"class:{name}Attention", f"class:{name}RMSNorm", f"class:{name}DecoderLayer|params:2e3",
                  f"class:{name}DecoderLayer=false"]
    maybe(0.6, "--wrap", *wraps)
    maybe(0.5, "--reshard-after-forward", "auto", "true", "false", *[n for n in (2, 4) if gpus % n == 0 and n < gpus])
    maybe(0.5, "--activation-checkpointing", "none", "full", "selective-op", "every-2", "first-1")
    maybe(0.3, "--forward-prefetch", 1, 2, 3)
    maybe(0.3, "--backward-prefetch", "none", "pre", 2, 3)
    maybe(0.4, "--grad-accum", 2, 3)
    maybe(0.4, "--replicate", *[n for n in (1, 2, 3) if gpus % n == 0])
    maybe(0.3, "--grad-sync", "every", "last", *(["reduce-scatter-only"] if flags.get("--replicate", 1) > 1 else []))
    maybe(0.4, "--param-dtype", "fp32", "bf16")
    maybe(0.3, "--reduce-dtype", "bf16", "fp32")
    maybe(0.1, "--clip-norm", 1.0)
    if not memory:                           # both memories are the host's here
        maybe(0.1, "--offload", "true")
    if plan_space.PEFT and family not in plan_space.MIXTURES:
        maybe(0.15, "--lora", 3)
    return dict(model=model, command=flags, policy=flags.get("--wrap"), memory=memory, lora=flags.pop("--lora", None))


def simpler(case):
    """Cases with one flag less."""
    for flag in case["command"]:
        if flag not in ("--gpus", "--seq-len", "--micro-batch"):
            yield dict(case, command={k: v for k, v in case["command"].items() if k != flag})
    if case["command"]["--gpus"] > 2:
        yield dict(case, command=dict(case["command"], **{"--gpus": 2}))
    if case["lora"]:
        yield dict(case, lora=None)
