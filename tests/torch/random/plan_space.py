"""Draws small models and plans from the whole space that a plan can say: what random_plans.py compares.

A drawn case is a dictionary of JSON values: {"model": a config.json, "plan": changes of a plan.json, "policy": a wrap
policy or None}. Smaller cases are made by putting back one choice after the other (`simpler`).
"""
import copy
import importlib.util
import itertools
import random

LLAMA = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             head_dim=8, vocab_size=61, max_position_embeddings=64, rms_norm_eps=1e-6, rope_theta=10000.0,
             tie_word_embeddings=False)
GPT2 = dict(n_embd=32, n_head=4, n_layer=3, n_positions=64, vocab_size=61, n_inner=80)
FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gpt2"]
LATENT = ["deepseek_v2", "deepseek_v3"]
SHARED = ["glm4_moe", *LATENT]   # mixtures of DeepSeek's form
MIXTURES = ["mixtral", "olmoe", "qwen3_moe", "gpt_oss", *SHARED]


def model_of(family, layers=3, tied=False):
    """A config.json of one of the families."""
    if family == "gpt2":
        return dict(GPT2, model_type="gpt2", n_layer=layers, activation_function="gelu_new", resid_pdrop=0.0,
                    embd_pdrop=0.0, attn_pdrop=0.0)
    config = dict(LLAMA, model_type=family, num_hidden_layers=layers, tie_word_embeddings=tied)
    if family == "mistral":
        config["sliding_window"] = None
    if family in MIXTURES:
        config.update(num_experts_per_tok=2)
        config["num_local_experts" if family in ("mixtral", "gpt_oss") else "num_experts"] = 4
        if family == "gpt_oss":
            config.update(sliding_window=4, layer_types=["sliding_attention", "full_attention"] * (layers // 2)
                          + ["sliding_attention"] * (layers % 2))
        if family == "qwen3_moe":
            config.update(moe_intermediate_size=24, norm_topk_prob=True)
        if family in SHARED:
            config.update(moe_intermediate_size=24, n_routed_experts=config.pop("num_experts"), first_k_dense_replace=1,
                          n_shared_experts=1, routed_scaling_factor=2.0, n_group=2, topk_group=1)
        if family == "deepseek_v2":
            config["topk_method"] = ["greedy", "group_limited_greedy"][layers % 2]
        if family in LATENT:
            del config["head_dim"]
            config.update(num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=4,
                          qk_nope_head_dim=12, v_head_dim=8)
    return config


def tree_of(family, layers, tied):
    """(embedding, blocks, attention, mlp, inner linears and norms, final norm, head) as module names."""
    if family == "gpt2":
        blocks = [f"transformer.h.{i}" for i in range(layers)]
        inner = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "ln_1", "ln_2"]
        return dict(embed="transformer.wte", blocks=blocks, halves=["attn", "mlp"], inner=inner,
                    norm="transformer.ln_f", head="lm_head", tied=True, trunk="transformer")
    blocks = [f"model.layers.{i}" for i in range(layers)]
    inner = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "input_layernorm",
             "post_attention_layernorm"]
    if family in LATENT:
        inner[:3] = [f"self_attn.{m}" for m in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa",
                                                "kv_a_layernorm", "kv_b_proj")]
    if family not in MIXTURES:
        inner += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    return dict(embed="model.embed_tokens", blocks=blocks, halves=["self_attn", "mlp"], inner=inner, norm="model.norm",
                head="lm_head", tied=tied, trunk="model")


PEFT = importlib.util.find_spec("peft") is not None  # it makes the models with adapters
BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None  # and keeps frozen weights in 4 bits
WIDTHS = ["hidden_size", "intermediate_size", "head_dim", "n_embd", "n_inner", "moe_intermediate_size",
          "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"]
CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "mixtral": "Mixtral",
           "olmoe": "Olmoe", "qwen3_moe": "Qwen3Moe", "glm4_moe": "Glm4Moe",
           "deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3", "gpt_oss": "GptOss"}


def draw_units(rng, tree):
    """Modules of each unit, inner before outer, the root last."""
    how = rng.choice(["blocks", "halves", "halves+blocks", "nested", "nested", "some", "titan", "groups"])
    units = []
    if how == "titan" and not tree["tied"]:
        units.append([tree["embed"]])
    blocks = list(tree["blocks"])
    if how == "groups":
        size = rng.choice([2, len(blocks)])
        units += [blocks[i:i + size] for i in range(0, len(blocks), size)]
    for block in blocks if how != "groups" else []:
        inside = []
        if how == "nested":
            inside = [m for m in tree["inner"] if rng.random() < 0.3]
        if how in ("halves", "halves+blocks") or how in ("nested", "some") and rng.random() < 0.5:
            inside += tree["halves"]
        inside.sort(key=lambda m: any(n.startswith(m + ".") for n in inside))       # inner before outer
        units += [[f"{block}.{m}"] for m in inside]
        if any(all(n in inside for n in tree["inner"] if n.startswith(m + ".")) for m in tree["halves"]):
            units = [u for u in units if u[0].removeprefix(block + ".") not in tree["halves"]]
        if how in ("blocks", "titan", "halves+blocks") or how in ("nested", "some") and rng.random() < 0.6:
            units.append([block])
    if how == "titan":
        units.append([tree["norm"], tree["head"]] if not tree["tied"] else [tree["norm"]])
        if tree["tied"] and rng.random() < 0.5:
            units.append([tree["embed"], tree["head"]])
    elif rng.random() < 0.15 and not tree["tied"]:
        units.append([tree["head"]])
    if rng.random() < 0.05:
        units.append([tree["trunk"]])
        if tree["tied"]:
            units.pop()
    return units + [[""]]


def draw(rng, families, memory=False):
    family = rng.choice(families)
    layers = rng.choice([1, 2, 2, 3, 3, 4])
    tied = family == "gpt2" or rng.random() < 0.25
    tree = tree_of(family, layers, tied)
    model = model_of(family, layers, tied)
    shard = rng.choice([1, 2, 2, 4, 4, 8, 6, 16])
    replicate = rng.choice([1, 1, 1, 2, 3])
    plan = dict(mesh=[dict(name="replicate", size=replicate), dict(name="shard", size=shard)], seq_len=8)
    if memory:                               # what no plan changes (tables of angles, masks) is small beside these
        model.update({k: 4 * v for k, v in model.items() if k in WIDTHS}, vocab_size=509)
        plan["seq_len"] = 64
    policy = None
    if rng.random() < 0.3:
        block = [f"params:{rng.choice(['1e3', '2e3', '5e3', '2e4'])}", "block", "block:2", "root", "titan"]
        if family in CLASSES:
            block += [f"class:{CLASSES[family]}Attention", f"class:{CLASSES[family]}RMSNorm",
                      f"class:{CLASSES[family]}DecoderLayer|params:2e3"]
        policy = rng.choice(block)
        units = None
    else:
        units = [dict(modules=m) for m in draw_units(rng, tree)]
    divisors = [str(d) for d in range(2, shard) if shard % d == 0]

    def reshard():
        return rng.choice(["auto", True, True, False] + [int(d) for d in divisors])
    common, mixed = reshard(), rng.random() < 0.3
    plan["reshard"] = common
    for u in units or []:
        u["reshard_after_forward"] = reshard() if mixed else common
    counts = rng.random() < 0.5
    plan["forward_prefetch"] = rng.choice([0, 0, 1, 2, 3]) if counts else 0
    plan["backward_prefetch"] = rng.choice([0, 1, 1, 2, 3]) if counts else 1
    firsts = [u["modules"][0] for u in units or []]
    if units and rng.random() < 0.25:
        for u in units:
            if rng.random() < 0.5:
                u["forward_prefetch"] = rng.sample(firsts, min(len(firsts), rng.choice([1, 1, 2, 3])))
            if rng.random() < 0.5:
                u["backward_prefetch"] = rng.sample(firsts, min(len(firsts), rng.choice([1, 1, 2, 3])))
    checkpoint = rng.choice(["none", "none", "full", "full", "every", "some", "halves"])
    blocks = tree["blocks"]
    plan["checkpointed"] = {"none": [], "full": blocks, "every": blocks[::2],
                            "some": [b for b in blocks if rng.random() < 0.5],
                            "halves": [f"{b}.{rng.choice(tree['halves'])}" for b in blocks]}[checkpoint]
    count = rng.choice([1, 1, 1, 2, 3])
    plan["micro_batches"] = [2] * count if rng.random() < 0.8 else [rng.choice([1, 2, 3]) for _ in range(count)]
    plan["grad_sync"] = rng.choice(["every", "last", "reduce-scatter-only"] if replicate > 1 else ["every", "last"])
    plan["param_dtype"] = rng.choice(["fp32", "bf16", "bf16"])
    plan["reduce_dtype"] = rng.choice(["fp32", "fp32", "bf16"])
    if rng.random() < 0.1 and not memory:    # both memories are the host's here
        plan["offload"] = True
    if rng.random() < 0.1:
        plan["clip_norm"] = 1.0
    if rng.random() < 0.1:
        plan["reduce_scatter_buffers"] = rng.choice([2, 3])
    if rng.random() < 0.1:
        plan["separate_reduce_scatter"] = True
    if rng.random() < 0.1:
        plan["force_sum_reduction"] = True
    if rng.random() < 0.15 and plan["param_dtype"] == "fp32":
        plan["ignored"] = [rng.choice([f"{blocks[0]}.{m}" for m in tree["inner"]])]
    for u in units or []:
        if rng.random() < 0.05:
            u["gradient_divide_factor"] = rng.choice([2.0, 7.0])
        if count > 1 and rng.random() < 0.1:
            u["grad_sync"] = rng.choice(["every", "last"])
        if count > 1 and rng.random() < 0.1:
            u["reshard_after_backward"] = False
        if u["modules"] == [tree["embed"]] and rng.random() < 0.3:
            u["unshard_in_backward"] = False
    if units:
        plan["units"] = units
    case = dict(model=model, plan=plan, policy=policy, memory=memory)
    if rng.random() < 0.15 and family not in MIXTURES and PEFT:
        layers = [m.split(".")[-1] for m in tree["inner"] if "norm" not in m and "ln_" not in m]
        case["lora"] = rng.choice(["3", "rank=2,alpha=5,targets=" + "+".join(rng.sample(layers, 2))])
    draw_further(rng, case, tree)
    return case


def draw_further(rng, case, tree):
    """Choices that were drawn later than the others: a seed's plan stays what it was but for these."""
    plan = case["plan"]
    if rng.random() < 0.15:
        plan["loss_chunks"] = rng.choice([2, 3, 4])
    if plan["checkpointed"] and rng.random() < 0.25:
        plan["checkpoint_policy"] = "selective-op"
    if rng.random() < 0.1 and plan["param_dtype"] == "bf16" and not case.get("lora"):
        plan["master_dtype"] = "bf16"
    if rng.random() < 0.1 and not case.get("lora"):
        matrices = [m for m in tree["inner"] if "norm" not in m and "ln_" not in m]
        names = rng.sample([f"{b}.{m}.weight" for b in tree["blocks"] for m in matrices], rng.choice([1, 2]))
        plan["shard_dims"] = [dict(parameter=name, dim=1) for name in names]
    if plan.get("clip_norm") and rng.random() < 0.3:
        plan["clip_norm_type"] = rng.choice([1.0, "inf"])
    if rng.random() < 0.1 and "units" in plan:
        plan["units"] = with_empty_unit(rng, plan["units"], tree)
    if rng.random() < 0.15 and "units" in plan:
        draw_dtypes(rng, plan)
    if rng.random() < 0.1 and "units" in plan and not tree["tied"]:
        draw_roots(plan, tree)
    if case.get("lora") and rng.random() < 0.3:
        case["lora"] = (case["lora"] if "=" in case["lora"] else "rank=" + case["lora"]) + ",dropout=0.25"
    if case.get("lora") and BITSANDBYTES and plan["param_dtype"] == "bf16" and rng.random() < 0.5:
        rank = case["lora"] if "=" in case["lora"] else "rank=" + case["lora"]
        case["lora"] = rank + rng.choice([",base=nf4", ",base=nf4-double"])
        plan["master_dtype"] = "bf16"
        for u in plan.get("units", []):
            u.pop("param_dtype", None)
        if case["memory"]:               # there its products are taken apart, and would be kept one by one
            plan.pop("checkpoint_policy", None)
    one = plan["mesh"][1]["size"] == 1       # there it casts parameter by parameter, some of them
    if case.get("lora") and plan["param_dtype"] == "bf16" and not one and rng.random() < 0.5:
        plan.update(master_dtype="bf16", trained_dtype="fp32")
    # Kept whole after forward adapters are not in the type of their shards when their layers run again.
    kept = plan["checkpointed"] and plan.get("reshard", "auto") not in ("auto", True)
    if case.get("lora") and case["policy"] and not kept and rng.random() < 0.5:
        case["policy"] = case["policy"].split("|")[0] + "|adapters"
    if rng.random() < 0.3 and "loss_chunks" not in plan and not plan.get("share_comm_context"):
        plan["loop"] = dict(loss_in_model=True)


def draw_roots(plan, tree):
    """The trunk and the output layer in place of the whole model, without what is not known beside several roots."""
    *units, whole = plan["units"]
    roots = [[tree["trunk"]], [tree["head"]]]
    for u in units:
        u["modules"] = [m for m in u["modules"] if m != tree["head"]]
    units = [u for u in units if u["modules"] and u["modules"] != roots[0]]
    plan["units"] = units + [dict(whole, modules=root) for root in roots]
    firsts = {u["modules"][0] for u in plan["units"]}
    for u in plan["units"]:
        for key in ("forward_prefetch", "backward_prefetch"):
            names = [tree["trunk"] if name == "" else name for name in u.get(key, [])]
            names = list(dict.fromkeys(name for name in names if name in firsts))
            u.pop(key, None)
            if names:
                u[key] = names
    plan["share_comm_context"] = True
    for key in ("offload", "separate_reduce_scatter"):
        plan.pop(key, None)


def draw_dtypes(rng, plan):
    """Dtypes of some units; what they return is often what the others compute in."""
    own = rng.choice(["fp32", "bf16", "bf16", "fp16"])
    for u in rng.sample(plan["units"], min(len(plan["units"]), rng.choice([1, 1, 2]))):
        if rng.random() < 0.8:
            u["param_dtype"] = own
        if rng.random() < 0.3:
            u["reduce_dtype"] = rng.choice(["fp32", "bf16"])
        if rng.random() < 0.6 and u["modules"] != [""]:
            u["output_dtype"] = plan["param_dtype"]


def own_dtypes(plan):
    return any(key in u for u in plan["units"] for key in ("param_dtype", "output_dtype"))


def with_empty_unit(rng, units, tree):
    """The units with one half of a block whose parameters all lie in units inside it."""
    half = rng.choice([h for h in tree["halves"] if any(n.startswith(h + ".") for n in tree["inner"])])
    block = rng.choice(tree["blocks"])
    names = [f"{block}.{n}" for n in tree["inner"] if n.startswith(half + ".")] + [f"{block}.{half}"]
    old = {u["modules"][0]: u for u in units}
    front = [old.get(name, dict(modules=[name], reshard_after_forward=units[-1]["reshard_after_forward"]))
             for name in names]
    return front + [u for u in units if u["modules"][0] not in names]


def with_units_of(modules, units):
    """The units, with one of each of these modules as well: behind those inside of it."""
    found = list(units)
    for module in modules:
        names = [u["modules"][0] for u in found]
        if module not in names:
            inside = [i for i, name in enumerate(names) if name.startswith(module + ".")]
            around = [i for i, name in enumerate(names) if not name or module.startswith(name + ".")]
            later = [i for i, name in enumerate(names) if name > module or i in around]
            found.insert(inside[-1] + 1 if inside else later[0], dict(units[-1], modules=[module]))
    return found


def draw_fsdp1(rng, families):
    """A plan of dialect fsdp1: one module a unit, a strategy each."""
    case = draw(rng, families)
    family, layers = case["model"]["model_type"], case["model"].get("num_hidden_layers", case["model"].get("n_layer"))
    tree = tree_of(family, layers, bool(case["model"].get("tie_word_embeddings")) or family == "gpt2")
    old, plan = case["plan"], {}
    for key in ("mesh", "seq_len", "checkpointed", "micro_batches", "param_dtype", "reduce_dtype", "ignored"):
        if key in old:
            plan[key] = old[key]
    plan["dialect"] = "fsdp1"
    common, mixed = rng.choice(["auto", True, False]), rng.random() < 0.2
    units = [dict(modules=m, reshard_after_forward=rng.choice(["auto", True, False]) if mixed else common)
             for m in draw_units(rng, tree) if len(m) == 1]
    plan["units"], plan["reshard"] = units, common
    if rng.random() < 0.5:                   # fsdp1 gathers units inside once more
        names = [u["modules"][0] for u in units]
        plan["checkpointed"] = [c for c in plan["checkpointed"] if not any(n.startswith(c + ".") for n in names)]
    if plan["checkpointed"] and rng.random() < 0.4:
        plan["reentrant"] = True
        plan.pop("ignored", None)
        if rng.random() < 0.9:               # else PyTorch fails where the root holds parameters of a block
            units[:] = with_units_of(plan["checkpointed"], units)
    plan["grad_sync"] = rng.choice(["every", "last"])
    prefetch = rng.choice(["pre", "pre", "post", "none"])
    plan["backward_prefetch"] = 0 if prefetch == "none" else 1
    if prefetch == "post":
        plan["backward_post"] = True
    plan["forward_prefetch"] = rng.choice([0, 0, 1])
    for key in ("limit_all_gathers", "use_orig_params"):
        if rng.random() < 0.3:
            plan[key] = False
    if rng.random() < 0.15:
        plan["offload"] = True
    if rng.random() < 0.1:
        plan["param_dtype"] = plan["reduce_dtype"] = "fp16"
    if rng.random() < 0.3:
        plan["loop"] = dict(loss_in_model=True)
    return dict(model=case["model"], plan=plan, policy=None, memory=False)


DEFAULTS = dict(forward_prefetch=0, backward_prefetch=1, checkpointed=[], micro_batches=[2], grad_sync="every",
                param_dtype="fp32", reduce_dtype="fp32", offload=False, clip_norm=None, reduce_scatter_buffers=1,
                separate_reduce_scatter=False, force_sum_reduction=False, share_comm_context=False, ignored=[],
                reshard="auto", loss_chunks=1, loop={},
                checkpoint_policy="full", reentrant=False, backward_post=False, limit_all_gathers=True,
                use_orig_params=True, master_dtype="fp32", shard_dims=[], clip_norm_type=2.0)
OF_UNITS = ["forward_prefetch", "backward_prefetch", "gradient_divide_factor", "grad_sync", "reshard_after_backward",
            "unshard_in_backward", "param_dtype", "reduce_dtype", "output_dtype"]


def features(case):
    """What a case has beside the defaults; pairs of them are counted."""
    plan, found = case["plan"], {"family " + case["model"]["model_type"]}
    replicate, shard = (d["size"] for d in plan["mesh"])
    found |= {"replicas"} if replicate > 1 else set()
    found |= {"one shard"} if shard == 1 else set()
    found |= {"adapters"} if case.get("lora") else set()
    found |= {"dropout"} if "dropout=" in (case.get("lora") or "") else set()
    found |= {"trained in fp32"} if plan.get("trained_dtype") else set()
    found |= {"4 bits"} if "base=" in (case.get("lora") or "") else set()
    found |= {"tied"} if case["model"].get("tie_word_embeddings") else set()
    found |= {f"policy {case['policy'].split(':')[0]}"} if case["policy"] else set()
    found |= {"units of adapters"} if (case["policy"] or "").endswith("|adapters") else set()
    for key, default in DEFAULTS.items():
        if plan.get(key, default) != default:
            found.add(key if isinstance(plan[key], (list, bool, int, float)) else f"{key} {plan[key]}")
    units = plan.get("units", [])
    for u in units:
        found |= {"unit " + k for k in OF_UNITS if k in u}
    names = [m for u in units for m in u["modules"]]
    found |= {"nested"} if any(b and a.startswith(b + ".") for a in names for b in names) else set()
    found |= {"grouped"} if any(len(u["modules"]) > 1 for u in units) else set()
    found |= {"empty unit"} if any(is_empty(b, names, case["model"]["model_type"]) for b in names) else set()
    reshards = {u["reshard_after_forward"] for u in units}
    found |= {f"reshard {r}" if isinstance(r, (bool, str)) else "reshard integer" for r in reshards}
    return found


def is_empty(half, units, family):
    """Whether all modules with parameters in a half of a block are units."""
    parts = dict(attn=2, mlp=2) if family == "gpt2" else dict(mlp=3)
    if family in ("llama", "qwen2", "mistral", "mixtral"):   # the others have norms in there, too
        parts["self_attn"] = 4
    return sum(name.rpartition(".")[0] == half for name in units) == parts.get(half.split(".")[-1])


def simpler(case):
    """Cases with one choice less, the largest steps first."""
    plan = case["plan"]
    for key, default in DEFAULTS.items():
        if key in plan and plan[key] != default:
            yield changed(case, lambda p, key=key, default=default: p.update({key: copy.deepcopy(default)}))
    replicate, shard = (d["size"] for d in plan["mesh"])
    if replicate > 1:
        yield changed(case, lambda p: p["mesh"][0].update(size=1))
    if shard not in (1, 2):
        yield changed(case, lambda p: p["mesh"][1].update(size=2))
    for i, u in enumerate(plan.get("units", [])):
        for key in OF_UNITS:
            if key in u:
                yield changed(case, lambda p, i=i, key=key: p["units"][i].pop(key))
        for key in ("forward_prefetch", "backward_prefetch"):
            if len(u.get(key, [])) > 1:
                yield changed(case, lambda p, i=i, key=key: p["units"][i][key].pop())
        if u.get("reshard_after_forward") != "auto":
            yield changed(case, lambda p, i=i: p["units"][i].update(reshard_after_forward="auto"))
        if u["modules"] != [""]:
            yield changed(case, lambda p, i=i: drop_unit(p, i))
    if len(plan["micro_batches"]) > 1:
        yield changed(case, lambda p: p.update(micro_batches=p["micro_batches"][:-1]))
    if len(plan["checkpointed"]) > 1:
        for i in range(len(plan["checkpointed"])):
            yield changed(case, lambda p, i=i: p["checkpointed"].pop(i))
    if plan.get("trained_dtype"):
        yield changed(case, lambda p: p.pop("trained_dtype"))
    if case.get("lora"):
        yield dict(case, lora=None)
    if "base=" in (case.get("lora") or ""):
        yield dict(case, lora=case["lora"].split(",base=")[0])
    if case["model"].get("tie_word_embeddings"):
        yield dict(case, model=dict(case["model"], tie_word_embeddings=False))


def changed(case, change):
    case = copy.deepcopy(case)
    change(case["plan"])
    return case


def drop_unit(plan, i):
    name = plan["units"].pop(i)["modules"][0]
    for u in plan["units"]:
        for key in ("forward_prefetch", "backward_prefetch"):
            if name in u.get(key, []):
                u[key] = [n for n in u[key] if n != name]
                if not u[key]:
                    del u[key]


def generator(seed):
    return random.Random(seed)


CANDIDATES = 16
ENOUGH = 20  # plans with a pair of features


def covering(seed, draw, seen):
    """Of CANDIDATES cases, drawn with `seed` and the seeds after it, the one whose pairs of features were seen least
    often: (its seed, the case). seen: a Counter of pairs."""
    def missing(case):
        return sum(max(0, ENOUGH - seen[pair]) for pair in pairs(case))
    cases = [(s, draw(generator(s))) for s in range(seed, seed + CANDIDATES)]
    return max(cases, key=lambda c: missing(c[1]))


def pairs(case):
    return itertools.combinations(sorted(features(case)), 2)
