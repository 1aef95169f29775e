"""Records tests/golden/hf_models.json and tests/golden/hf/: tiny models of transformers' own classes (eager attention),
trained on text by PyTorch's AdamW with clipping and a learning-rate schedule, in one process.

    python tests/torch/record_hf_models.py         (rewrites the files)

Weights: the hash of executor/data/synthetic.cpp. Order of the data: executor/data/order.h, written again here.
transformers computes norms, rotary angles and softmax in fp32 whatever the model's type; for the fp64 records its
modules are given torch.float64 instead, so that 1e-9 means something. fp32 and bf16 are recorded as they are: bf16
casts an fp32 model for forward and backward and trains the fp32 one.
"""

import contextlib
import json
import pathlib
import shutil

import torch
import torch.nn.functional as F
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig, LlamaForCausalLM
from transformers import MptConfig, MptForCausalLM
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama
from transformers.models.mpt import modeling_mpt

from synthetic import initial, mix

torch.set_num_threads(1)
GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
SEED, GLOBAL_BATCH, SEQ_LEN, STEPS, CLIP = 77, 6, 12, 8, 0.6
ADAMW = {"lr": 4e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
WARMUP, LR_MIN = 3, 2e-4


def window(seed, sequence, windows):
    """Which window of the file is sequence `sequence`."""
    epoch, place = divmod(sequence, windows)
    half = 1
    while 4**half < windows:
        half += 1
    key = mix(mix(seed ^ 0x73687566666C65) ^ epoch)
    while True:
        left, right = place >> half, place & (2**half - 1)
        for turn in range(4):
            left, right = right, left ^ (mix(mix(key ^ turn) ^ right) & (2**half - 1))
        place = left << half | right
        if place < windows:
            return place


def batch(tokens, step):
    windows = (len(tokens) - 1) // SEQ_LEN
    starts = [SEQ_LEN * window(SEED, step * GLOBAL_BATCH + g, windows) for g in range(GLOBAL_BATCH)]
    rows = torch.tensor([tokens[s : s + SEQ_LEN + 1] for s in starts])
    return rows[:, :-1], rows[:, 1:]


class Widened:
    """torch with float64 where a module asks for float32."""
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def computing_in(dtype):
    if dtype != torch.float64:
        yield
        return
    modules, narrow = (modeling_llama, modeling_gpt2, modeling_mpt), torch.Tensor.float
    for m in modules:
        m.torch = Widened()
    torch.Tensor.float = torch.Tensor.double
    yield
    torch.Tensor.float = narrow
    for m in modules:
        m.torch = torch


def build(make, dtype, seed=SEED):
    torch.manual_seed(0)
    model = make().to(dtype)
    # not narrowed with the weights: neither from_pretrained nor FSDP narrows buffers
    if hasattr(model.base_model, "rotary_emb"):
        model.base_model.rotary_emb = modeling_llama.LlamaRotaryEmbedding(model.config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(initial(seed, name, p.shape))
    return model


def optimizer_of(parameters):
    optimizer = torch.optim.AdamW(parameters, lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"],
                                  weight_decay=ADAMW["weight_decay"], foreach=False)
    return optimizer, schedule(optimizer, "cosine", WARMUP, STEPS, LR_MIN)


def schedule(optimizer, kind, warmup, total, least):
    """PyTorch's schedulers one after the other: what executor/training/learning_rate.h says it equals."""
    from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR
    peak = optimizer.param_groups[0]["lr"]
    after = {"constant": lambda: ConstantLR(optimizer, factor=1.0, total_iters=1),
             "cosine": lambda: CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=least),
             "linear": lambda: LinearLR(optimizer, start_factor=1.0, end_factor=least / peak,
                                        total_iters=total - warmup)}[kind]
    if warmup == 0:
        return after()
    rise = LinearLR(optimizer, start_factor=1 / (warmup + 1), end_factor=1.0, total_iters=warmup)
    return SequentialLR(optimizer, [rise, after()], milestones=[warmup])


def train(make, tokens, dtype, full):
    """bf16: the fp32 model is cast, and its gradients are cast back."""
    low = dtype == torch.bfloat16
    with computing_in(dtype):
        model = build(make, torch.float32 if low else dtype)
        compute = build(make, dtype) if low else model
        named = dict(model.named_parameters())
        optimizer, lr = optimizer_of(named.values())
        result = {"losses": [], "clip_norms": [], "lrs": []}
        for step in range(STEPS):
            ids, targets = batch(tokens, step)
            if low:
                with torch.no_grad():
                    for c, p in zip(compute.parameters(), model.parameters()):
                        c.copy_(p)
            compute.zero_grad()
            loss = F.cross_entropy(compute(ids).logits.flatten(0, 1).float(), targets.flatten())
            loss.backward()
            if low:
                for c, p in zip(compute.parameters(), model.parameters()):
                    p.grad = c.grad.float()
            result["losses"].append(loss.item())
            if step == 0:
                result["first_gradient_norms"] = {k: p.grad.norm().item() for k, p in named.items()}
                result["first_gradients"] = {k: named[k].grad.flatten().tolist() for k in full}
            result["clip_norms"].append(torch.nn.utils.clip_grad_norm_(named.values(), CLIP).item())
            result["lrs"].append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            lr.step()
        result["final_norms"] = {k: p.norm().item() for k, p in named.items()}
        result["final_values"] = {k: named[k].flatten().tolist() for k in full}
    return result


def schedules():
    """Learning rates of every step, and two beyond the last."""
    cases = []
    for kind in ("constant", "cosine", "linear"):
        for warmup, total, peak, least in ((0, 7, 1e-3, 0.0), (3, 10, 3e-4, 3e-5), (1, 2, 0.5, 0.1),
                                           (5, 6, 1e-2, 1e-3)):
            optimizer = torch.optim.SGD([torch.zeros(1, dtype=torch.float64, requires_grad=True)], lr=peak)
            scheduler, lrs = schedule(optimizer, kind, warmup, total, least), []
            for _ in range(total):
                lrs.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                scheduler.step()
            cases.append({"kind": kind, "warmup": warmup, "total": total, "lr": peak, "min": least, "lrs": lrs})
    return cases


def saved(name, model, config, tokens, dtype, **options):
    """What save_pretrained writes, and the loss of what from_pretrained reads back, on the first batch."""
    folder = GOLDEN / "hf" / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, **options)
    for extra in folder.glob("generation_config.json"):
        extra.unlink()
    for written in folder.glob("*.safetensors"):
        written.chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    whole = {LlamaForCausalLM: LlamaForCausalLM, GPT2Model: GPT2LMHeadModel,
             MptForCausalLM: MptForCausalLM}[type(model)]
    ids, targets = batch(tokens, 0)
    with computing_in(torch.float64), torch.no_grad():
        again = whole.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).double()
        if hasattr(again.base_model, "rotary_emb"):
            again.base_model.rotary_emb = modeling_llama.LlamaRotaryEmbedding(again.config)
        loss = F.cross_entropy(again(ids).logits.flatten(0, 1), targets.flatten())
    return {"folder": name, "loss": loss.item()}


def main():
    tokens = list((GOLDEN / "text.txt").read_bytes())
    llama = {"model_type": "llama", "vocab_size": 259, "hidden_size": 24, "intermediate_size": 37,
             "num_hidden_layers": 2,
             "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
             "rms_norm_eps": 1e-5,
             "rope_theta": 500.0, "hidden_act": "silu", "tie_word_embeddings": False}
    tied = {**llama, "vocab_size": 257, "hidden_size": 15, "intermediate_size": 29, "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "head_dim": 4, "tie_word_embeddings": True}
    gpt2 = {"model_type": "gpt2", "vocab_size": 261, "n_positions": 19, "n_embd": 21, "n_layer": 2, "n_head": 3,
            "n_inner": 47,
            "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    mpt = {"model_type": "mpt", "vocab_size": 263, "d_model": 21, "n_layers": 2, "n_heads": 3, "expansion_ratio": 4,
           "max_seq_len": 32,
           "layer_norm_epsilon": 1e-5, "no_bias": True, "attn_config": {"alibi": True}}
    quiet = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    without = lambda c: {k: v for k, v in c.items() if k != "model_type"}

    def make_llama(config):
        rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
        return LlamaForCausalLM(LlamaConfig(**{k: v for k, v in without(config).items() if k != "rope_theta"},
                                            rope_parameters=rope,
                                            attn_implementation="eager"))

    def make_gpt2(kind=GPT2LMHeadModel):
        return kind(GPT2Config(**without(gpt2), **quiet, attn_implementation="eager"))

    def make_mpt():
        return MptForCausalLM(MptConfig(**without(mpt), attn_implementation="eager"))

    models = []
    for title, config, make, full in (
            ("LlamaForCausalLM, grouped queries", llama, lambda: make_llama(llama),
             ["model.layers.0.self_attn.k_proj.weight", "model.layers.1.input_layernorm.weight"]),
            ("LlamaForCausalLM, tied", tied, lambda: make_llama(tied),
             ["model.layers.1.mlp.down_proj.weight", "model.norm.weight"]),
            ("GPT2LMHeadModel", gpt2, make_gpt2,
             ["transformer.h.0.attn.c_attn.bias", "transformer.h.1.attn.c_proj.weight"]),
            ("MptForCausalLM", mpt, make_mpt,
             ["transformer.blocks.0.attn.out_proj.weight", "transformer.norm_f.weight"])):
        models.append({"name": title, "config": json.dumps(config, indent=1),
                       **{k: train(make, tokens, t, full if k != "bf16" else [])
                          for k, t in (("fp64", torch.float64), ("fp32", torch.float32), ("bf16", torch.bfloat16))}})
    document = {
        "_about": f"Tiny models of transformers {transformers.__version__} trained on text.txt by PyTorch "
                  f"{torch.__version__.split('+')[0]}, one process; made "
                  "by tests/torch/record_hf_models.py, which says how. `saved`: models that save_pretrained wrote to "
                  "golden/hf, and the fp64 loss "
                  "of the first batch.",
        "seed": SEED, "global_batch": GLOBAL_BATCH, "seq_len": SEQ_LEN, "steps": STEPS, "clip_norm": CLIP,
        "adamw": ADAMW,
        "lr_warmup": WARMUP, "lr_min": LR_MIN,
        "first_starts": [SEQ_LEN * window(SEED, s, (len(tokens) - 1) // SEQ_LEN) for s in range(GLOBAL_BATCH * STEPS)],
        "schedules": schedules(),
        "saved": [
            saved("llama", build(lambda: make_llama(tied), torch.float32, SEED + 1), tied, tokens, torch.bfloat16,
                  max_shard_size="10KB"),
            saved("gpt2", build(lambda: make_gpt2(GPT2Model), torch.float32, SEED + 1), gpt2, tokens, torch.float32),
            saved("mpt", build(make_mpt, torch.float32, SEED + 1), mpt, tokens, torch.float16),
        ],
        "models": models,
    }
    with open(GOLDEN / "hf_models.json", "w") as f:
        json.dump(document, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
