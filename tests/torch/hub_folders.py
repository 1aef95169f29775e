#!/usr/bin/env python3
"""Weights go from transformers into a run and back, for every family that `run` executes.

save_pretrained -> `run --init-from` -> the first loss is that of transformers -> `checkpoint export` ->
from_pretrained, without a missing or unexpected key -> its loss is that of the run's next step, and, where the rate is
too small to change a weight, its weights are the ones of the beginning. Adapters of peft go the same way.

    hub_folders.py PROGRAM [FAMILY or "catalog" ...]
"""
import contextlib
import io
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy
import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

SEQ_LEN, WINDOWS, VOCAB = 16, 4, 64
ROTARY = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, tie_word_embeddings=False)
# All experts' choices have a slot: transformers drops none.
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, capacity_factor=2.0)
FAMILIES = {
    "llama": dict(ROTARY, attention_bias=True),
    "llama tied": dict(ROTARY, tie_word_embeddings=True),
    "qwen2": dict(ROTARY),
    "qwen3": dict(ROTARY, head_dim=8),
    "mistral": dict(ROTARY, sliding_window=8),
    "olmo2": dict(ROTARY),
    "mixtral": dict(ROTARY, num_local_experts=4, num_experts_per_tok=2, capacity_factor=2.0),
    "olmoe": dict(ROTARY, **EXPERTS),
    "qwen3_moe": dict(ROTARY, **EXPERTS, moe_intermediate_size=24, head_dim=8),
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=32),
    "mpt": dict(d_model=32, n_layers=2, n_heads=4, max_seq_len=32),
}
# Every way in which weights come: in one file or several, stacked by save_pretrained or expert by expert.
SHARDED = {"mixtral", "llama tied", "qwen3_moe"}
ADAPTED = {
    "llama": dict(targets="q_proj+v_proj+down_proj", modules=["q_proj", "v_proj", "down_proj"]),
    "gpt2": dict(targets="all-linear", modules=["c_attn", "c_proj", "c_fc"]),
    "mixtral": dict(targets="q_proj+o_proj", modules=["q_proj", "o_proj"]),
}


def quietly(work, *args, **kwargs):
    with contextlib.redirect_stderr(io.StringIO()):
        return work(*args, **kwargs)


def shaken(model):
    """Every weight takes part: neither biases nor norms nor the B of adapters are what they begin as."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model.float().eval()


def loss_of(model, tokens):
    """The mean over all tokens of all windows, each trained on once a step."""
    losses = []
    for w in range(WINDOWS):
        part = torch.from_numpy(tokens[w * SEQ_LEN : w * SEQ_LEN + SEQ_LEN + 1].astype(numpy.int64))
        with torch.no_grad():
            logits = model(input_ids=part[None, :-1], use_cache=False).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits.double(), part[1:]))
    return torch.stack(losses).mean().item()


def tensors_in(folder, name="model"):
    tensors = {}
    for file in sorted(pathlib.Path(folder).glob(name + "*.safetensors")):
        with safe_open(file, "pt") as f:
            for key in f.keys():
                assert key not in tensors, key
                tensors[key] = f.get_tensor(key)
    return tensors


class Runs:
    """The program's runs in one folder, on the same tokens."""

    def __init__(self, program, folder, tokens):
        self.program, self.folder = program, pathlib.Path(folder)
        self.data = self.folder / "tokens.bin"
        tokens.tofile(self.data)
        self.count = 0

    def call(self, *words):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stderr}")
        return done

    def train(self, model, weights, rate, *more):
        """Losses of two steps, and a checkpoint after the first."""
        self.count += 1
        run = self.folder / f"run{self.count}"
        run.mkdir()
        plan, log, saved = (run / name for name in ("plan.json", "log.csv", "ckpt"))
        lora = [w for w in more if w == "--lora" or "rank=" in str(w)]
        self.call("plan", "--model", model, "--cluster", "dgx-h100", "--gpus", 2,
                  "--implementation", "native", "--seq-len", SEQ_LEN, "--micro-batch",
                  WINDOWS // 2, "--param-dtype", "fp32", "--reduce-dtype", "fp32", "--master-dtype", "fp32",
                  "--wrap", "block", *lora, "-o", plan)
        begins = ["--init-from", weights] if weights else []
        self.call("run", "--plan", plan, "--model", model, "--backend", "host", *begins, "--data", self.data,
                  "--data-type", "uint16", "--lr", rate, "--warmup", 1, "--steps", 1, "--log", log, "--save", saved,
                  "--save-every", 1, *more)
        rows = log.read_text().split("\n")
        column = rows[0].split(",").index("loss")
        return [float(row.split(",")[column]) for row in rows[1:] if row], saved

    def export(self, saved, step):
        self.count += 1
        out = self.folder / f"out{self.count}"
        self.call("checkpoint", "export", saved / f"step-{step:08}", "-o", out)
        return out


def near(found, expected, what, most=1e-6):
    assert abs(found - expected) <= most * abs(expected), f"{what}: {found!r}, not {expected!r}"


def loaded(folder):
    model, info = quietly(AutoModelForCausalLM.from_pretrained, folder, output_loading_info=True,
                          attn_implementation="eager")
    for kind, keys in info.items():
        assert not keys, f"{folder}: {kind}: {keys}"
    return model.eval()


def check_family(name, program):
    config = AutoConfig.for_model(name.split()[0], vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, **FAMILIES[name])
    config._attn_implementation = "eager"
    model = shaken(AutoModelForCausalLM.from_config(config))
    tokens = numpy.random.default_rng(1).integers(0, VOCAB, WINDOWS * SEQ_LEN + 1).astype(numpy.uint16)
    with tempfile.TemporaryDirectory() as folder:
        runs, hub = Runs(program, folder, tokens), pathlib.Path(folder) / "hub"
        quietly(model.save_pretrained, hub, **(dict(max_shard_size="20KB") if name in SHARDED else {}))
        files = len(list(hub.glob("*.safetensors")))
        assert (files > 1) == (name in SHARDED), files
        losses, saved = runs.train(hub, hub, 1e-2)
        near(losses[0], loss_of(model, tokens), "loss of the first step")
        assert abs(losses[1] - losses[0]) > 1e-3, losses
        out = runs.export(saved, 1)
        near(losses[1], loss_of(loaded(out), tokens), "loss of the second step")
        # The very weights, in the very tensors, beside the very fields.
        _, saved = runs.train(hub, hub, 1e-30)
        out = runs.export(saved, 2)
        before, after = tensors_in(hub), tensors_in(out)
        assert before.keys() == after.keys(), before.keys() ^ after.keys()
        for key, tensor in before.items():
            assert torch.equal(tensor, after[key]), key
        there = json.loads((out / "config.json").read_text())
        for key, value in json.loads((hub / "config.json").read_text()).items():
            assert there[key] == value, key
        if "experts" in " ".join(FAMILIES[name]):
            stacked = pathlib.Path(folder) / "stacked"
            quietly(model.save_pretrained, stacked, save_original_format=False)
            assert any(key.endswith(".gate_up_proj") for key in tensors_in(stacked))
            near(runs.train(hub, stacked, 1e-30)[0][0], losses[0], "loss from stacked experts")
        again = dict(loaded(out).named_parameters())
        for key, p in model.named_parameters():
            assert torch.equal(p, again[key]), key
        print(f"{name}: loss {losses[0]:.6f}, {len(after)} tensors of {files} file(s) come back")


# The catalog's configurations, made small: what they leave out is to transformers what it is to a run.
SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, moe_intermediate_size=24, num_experts=4, num_local_experts=4,
             num_experts_per_tok=2, n_embd=32, n_layer=2, n_head=4, d_model=32, n_heads=4, n_layers=2, sliding_window=8,
             max_window_layers=1)


def check_catalog(program):
    configs = pathlib.Path(__file__).parent.parent.parent / "models" / "configs"
    tokens = numpy.random.default_rng(3).integers(0, VOCAB, WINDOWS * SEQ_LEN + 1).astype(numpy.uint16)
    names = {}
    for file in sorted(configs.glob("*.json")):
        config = json.loads(file.read_text())
        if file.stem.endswith("-bench") or (config.get("rope_scaling") or {}).get("rope_type", "default") != "default":
            continue  # transformers builds no such model, or turns positions otherwise (docs/limits.md)
        if config["model_type"] in ("glm4_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"):
            continue  # the program's own kernels do not know their operations
        config = {key: value if value is None else SMALL.get(key, value) for key, value in config.items()}
        if "num_experts_per_tok" in config:
            config["capacity_factor"] = 2.0
        names.setdefault(json.dumps(config, sort_keys=True), []).append(file.stem)
    assert len(names) >= 10, names
    for text, same in names.items():
        with tempfile.TemporaryDirectory() as folder:
            runs, config = Runs(program, folder, tokens), pathlib.Path(folder) / "config.json"
            config.write_text(text)
            losses, saved = runs.train(config, None, 1e-2)
            near(losses[1], loss_of(loaded(runs.export(saved, 1)).float(), tokens), f"loss of {same}")
            print(f"{', '.join(same)}: loss {losses[1]:.6f}")


def check_adapters(name, program):
    from peft import LoraConfig, PeftModel, get_peft_model

    config = AutoConfig.for_model(name, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, **FAMILIES[name])
    config._attn_implementation = "eager"
    base = shaken(AutoModelForCausalLM.from_config(config))
    tokens = numpy.random.default_rng(2).integers(0, VOCAB, WINDOWS * SEQ_LEN + 1).astype(numpy.uint16)
    lora = ["--lora", f"rank=4,alpha=6,targets={ADAPTED[name]['targets']}"]
    with tempfile.TemporaryDirectory() as folder:
        runs, hub = Runs(program, folder, tokens), pathlib.Path(folder) / "hub"
        adapters = pathlib.Path(folder) / "adapters"
        quietly(base.save_pretrained, hub)
        plain = loss_of(base, tokens)
        # Anew: as peft begins, the base model's loss.
        losses, saved = runs.train(hub, hub, 1e-2, *lora)
        near(losses[0], plain, "loss of new adapters")
        assert abs(losses[1] - losses[0]) > 1e-4, losses
        out = runs.export(saved, 1)
        assert sorted(p.name for p in out.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # how peft says that keys are missing
            trained = PeftModel.from_pretrained(quietly(AutoModelForCausalLM.from_pretrained, hub,
                                                        attn_implementation="eager"), out).eval()
        near(loss_of(trained, tokens), losses[1], "loss of the second step")
        _, saved = runs.train(hub, hub, 1e-30, *lora)
        begun = tensors_in(runs.export(saved, 1), "adapter_model")
        for key, tensor in begun.items():
            if ".lora_B." in key:
                assert tensor.abs().max() < 1e-20, key  # one step later
                continue
            bound = tensor.shape[1] ** -0.5
            assert tensor.abs().max() <= bound, key
            assert abs(tensor.std().item() / (bound / 3**0.5) - 1) < 0.3, (key, tensor.std())
        # From peft's own folder, and back.
        made = get_peft_model(base, LoraConfig(r=4, lora_alpha=6, target_modules=ADAPTED[name]["modules"],
                                               fan_in_fan_out=name == "gpt2", task_type="CAUSAL_LM"))
        with torch.no_grad():
            for key, p in made.named_parameters():
                if ".lora_" in key:
                    p.add_(torch.randn_like(p) * 0.1)
        made.eval()
        quietly(made.save_pretrained, adapters)
        losses, saved = runs.train(hub, hub, 1e-30, *lora, "--init-adapters", adapters)
        near(losses[0], loss_of(made, tokens), "loss of peft's adapters")
        assert abs(losses[0] - plain) > 1e-3, (losses, plain)
        before, after = tensors_in(adapters, "adapter_model"), tensors_in(runs.export(saved, 2), "adapter_model")
        assert before.keys() == after.keys(), before.keys() ^ after.keys()
        for key, tensor in before.items():
            assert torch.equal(tensor, after[key]), key
        print(f"{name}: {len(after)} tensors of adapters come back")


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)
    torch.manual_seed(0)
    program, wanted = sys.argv[1], sys.argv[2:]
    for name in FAMILIES:
        if not wanted or name in wanted:
            check_family(name, program)
    if not wanted or "catalog" in wanted:
        check_catalog(program)
    try:
        import peft  # noqa: F401
    except ImportError:
        print("skipped: adapters, for there is no peft")
        return
    for name in ADAPTED:
        if not wanted or name in wanted:
            check_adapters(name, program)


if __name__ == "__main__":
    main()
