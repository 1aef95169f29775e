"""Records tests/golden/tiny_models.json: five tiny models trained for five AdamW steps in plain PyTorch, fp64, one
process.

    python tests/torch/record_tiny_models.py         (rewrites the file)

Weights and tokens come from the hash of executor/data/synthetic.cpp, so that C++ starts from the same bits. The models
are written out here as functions of named parameters; nothing is imported from the code under test. Sizes do not divide
by 2, 3 or 8 where the architecture allows it (a rotated head has an even size).
"""

import json
import pathlib

import torch
import torch.nn.functional as F

from synthetic import initial, token

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)

SEED, GLOBAL_BATCH, SEQ_LEN, STEPS = 1234, 24, 7, 5
ADAMW = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
MOMENTUM = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}


def batch(step, vocab):
    rows = [[token(SEED, step * GLOBAL_BATCH + g, p, vocab) for p in range(SEQ_LEN + 1)] for g in range(GLOBAL_BATCH)]
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


def rotate(x, theta):
    """x: [batch, heads, seq, dim]; Hugging Face's rotate_half."""
    dim = x.shape[-1]
    inv_freq = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    freqs = torch.outer(torch.arange(x.shape[2], dtype=torch.float64), inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    return x * emb.cos() + torch.cat((-x[..., dim // 2:], x[..., : dim // 2]), dim=-1) * emb.sin()


def llama_shapes(c):
    hidden, ffn, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, shape in [("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)),
                            ("self_attn.v_proj", (kv, hidden)),
                            ("self_attn.o_proj", (hidden, q)), ("input_layernorm", (hidden,)),
                            ("post_attention_layernorm", (hidden,))]:
            yield p + name + ".weight", shape
        if c["model_type"] == "olmoe":
            yield p + "self_attn.q_norm.weight", (q,)
            yield p + "self_attn.k_norm.weight", (kv,)
        if experts := number_of_experts(c):
            yield p + "mlp.gate.weight", (experts, hidden)
            yield p + "mlp.experts.gate_up_proj", (experts, 2 * ffn, hidden)
            yield p + "mlp.experts.down_proj", (experts, hidden, ffn)
        else:
            for name, shape in [("gate", (ffn, hidden)), ("up", (ffn, hidden)), ("down", (hidden, ffn))]:
                yield p + f"mlp.{name}_proj.weight", shape
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


def number_of_experts(c):
    return c.get("num_local_experts", c.get("num_experts", 0))


def experts_forward(c, w, p, x):
    """x: [tokens, hidden]. Every token's experts one by one; nothing is dropped, whatever the config's
    capacity_factor."""
    probabilities = torch.softmax(x @ w[p + "gate.weight"].T, dim=-1)
    weights, chosen = torch.topk(probabilities, c["num_experts_per_tok"], dim=-1)
    if c["model_type"] == "mixtral" or c.get("norm_topk_prob"):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    y = torch.zeros_like(x)
    for e in range(number_of_experts(c)):
        token, choice = torch.where(chosen == e)
        gate, up = (x[token] @ w[p + "experts.gate_up_proj"][e].T).chunk(2, dim=-1)
        y = y.index_add(0, token,
                        weights[token, choice, None] * ((F.silu(gate) * up) @ w[p + "experts.down_proj"][e].T))
    return y


def llama_logits(c, w, ids):
    norm = lambda x, name: F.rms_norm(x, (c["hidden_size"],), w[name], c["rms_norm_eps"])
    heads = lambda x, n: x.view(*ids.shape, n, c["head_dim"]).transpose(1, 2)
    x = F.embedding(ids, w["model.embed_tokens.weight"])
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k = h @ w[p + "self_attn.q_proj.weight"].T, h @ w[p + "self_attn.k_proj.weight"].T
        if c["model_type"] == "olmoe":  # over all heads together
            q = F.rms_norm(q, q.shape[-1:], w[p + "self_attn.q_norm.weight"], c["rms_norm_eps"])
            k = F.rms_norm(k, k.shape[-1:], w[p + "self_attn.k_norm.weight"], c["rms_norm_eps"])
        q = rotate(heads(q, c["num_attention_heads"]), c["rope_theta"])
        k = rotate(heads(k, c["num_key_value_heads"]), c["rope_theta"])
        v = heads(h @ w[p + "self_attn.v_proj.weight"].T, c["num_key_value_heads"])
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + a.transpose(1, 2).flatten(2) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        if number_of_experts(c):
            x = x + experts_forward(c, w, p + "mlp.", h.flatten(0, 1)).view_as(x)
            continue
        x = x + (F.silu(h @ w[p + "mlp.gate_proj.weight"].T) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p
            + "mlp.down_proj.weight"].T
    head = "model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "model.norm.weight") @ w[head].T


def gpt2_shapes(c):
    n = c["n_embd"]
    yield "transformer.wte.weight", (c["vocab_size"], n)
    yield "transformer.wpe.weight", (c["n_positions"], n)
    for i in range(c["n_layer"]):
        p = f"transformer.h.{i}."
        for name, shape in [("ln_1", (n,)), ("attn.c_attn", (n, 3 * n)), ("attn.c_proj", (n, n)), ("ln_2", (n,)),
                            ("mlp.c_fc", (n, c["n_inner"])), ("mlp.c_proj", (c["n_inner"], n))]:
            yield p + name + ".weight", shape
            yield p + name + ".bias", shape[-1:]
    yield "transformer.ln_f.weight", (n,)
    yield "transformer.ln_f.bias", (n,)


def gpt2_logits(c, w, ids):
    n = c["n_embd"]
    norm = lambda x, name: F.layer_norm(x, (n,), w[name + ".weight"], w[name + ".bias"], c["layer_norm_epsilon"])
    conv = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]
    heads = lambda x: x.view(*ids.shape, c["n_head"], n // c["n_head"]).transpose(1, 2)
    x = F.embedding(ids, w["transformer.wte.weight"]) + w["transformer.wpe.weight"][: ids.shape[1]]
    for i in range(c["n_layer"]):
        p = f"transformer.h.{i}."
        q, k, v = conv(norm(x, p + "ln_1"), p + "attn.c_attn").split(n, dim=-1)
        a = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        x = x + conv(a.transpose(1, 2).flatten(2), p + "attn.c_proj")
        x = x + conv(F.gelu(conv(norm(x, p + "ln_2"), p + "mlp.c_fc"), approximate="tanh"), p + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


def check_against_transformers(config, w):
    """The functions above are our reading of the architecture; transformers routes in fp32, so 1e-5 of the logits."""
    import transformers
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config),
                                                          attn_implementation="eager",
                                                            experts_implementation="eager").double()
    model.load_state_dict({k: v.detach() for k, v in w.items()})
    ids, _ = batch(0, config["vocab_size"])
    ours, theirs = llama_logits(config, w, ids), model(ids).logits
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max(), (ours - theirs).abs().max()


def loss_and_gradients(config, w, optimizer, logits, step):
    ids, targets = batch(step, config["vocab_size"])
    loss = F.cross_entropy(logits(config, w, ids).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    return loss.item()


def train_with_momentum(config, shapes, logits):
    """The same steps with SGD and momentum."""
    w = {k: initial(SEED, k, s).requires_grad_() for k, s in shapes(config)}
    optimizer = torch.optim.SGD(w.values(), **MOMENTUM)
    losses = []
    for step in range(STEPS):
        losses.append(loss_and_gradients(config, w, optimizer, logits, step))
        optimizer.step()
    return {"losses": losses, "final_norms": {k: p.norm().item() for k, p in w.items()},
            "buffer_norms": {k: optimizer.state[p]["momentum_buffer"].norm().item() for k, p in w.items()}}


def train(name, config, shapes, logits, full):
    """full: names of parameters whose first gradient and final values are kept whole."""
    w = {k: initial(SEED, k, s).requires_grad_() for k, s in shapes(config)}
    if number_of_experts(config):
        check_against_transformers(config, w)
    optimizer = torch.optim.AdamW(w.values(), lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"],
                                  weight_decay=ADAMW["weight_decay"], foreach=False)
    losses, norms, gradients = [], {}, {}
    for step in range(STEPS):
        losses.append(loss_and_gradients(config, w, optimizer, logits, step))
        if step == 0:
            norms = {k: p.grad.norm().item() for k, p in w.items()}
            gradients = {k: w[k].grad.flatten().tolist() for k in full}
        optimizer.step()
    return {
        "name": name, "config": json.dumps(config, indent=1), "losses": losses, "first_gradient_norms": norms,
        "first_gradients": gradients,
        "final_norms": {k: p.norm().item() for k, p in w.items()},
        "final_values": {k: w[k].flatten().tolist() for k in full},
        "sgd_momentum": train_with_momentum(config, shapes, logits),
    }


def main():
    llama = {"model_type": "llama", "vocab_size": 67, "hidden_size": 35, "intermediate_size": 53,
             "num_hidden_layers": 2,
             "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64,
             "rms_norm_eps": 1e-5,
             "rope_theta": 500.0, "hidden_act": "silu", "tie_word_embeddings": False}
    tied = {**llama, "vocab_size": 43, "hidden_size": 25, "intermediate_size": 29, "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "head_dim": 6, "tie_word_embeddings": True}
    # With capacity_factor = experts / experts per token nothing is dropped.
    attention = {"vocab_size": 41, "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 64,
                 "rms_norm_eps": 1e-5,
                 "rope_theta": 500.0, "hidden_act": "silu", "tie_word_embeddings": False}
    mixtral = {"model_type": "mixtral", "hidden_size": 23, "intermediate_size": 11, "num_key_value_heads": 1,
               "head_dim": 6,
               "num_local_experts": 5, "num_experts_per_tok": 2, "capacity_factor": 2.5, "sliding_window": None,
               **attention}
    olmoe = {"model_type": "olmoe", "hidden_size": 30, "intermediate_size": 9, "num_key_value_heads": 3, "head_dim": 10,
             "num_experts": 7,
             "num_experts_per_tok": 3, "capacity_factor": 7 / 3, "norm_topk_prob": False, "eos_token_id": 0,
             **attention}
    gpt2 = {"model_type": "gpt2", "vocab_size": 37, "n_positions": 11, "n_embd": 35, "n_layer": 2, "n_head": 5,
            "n_inner": 47,
            "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    document = {
        "_about": "Tiny models trained in plain PyTorch " + torch.__version__.split("+")[0]
        + ", fp64, one process; made by "
                  "tests/torch/record_tiny_models.py. Initial weights and tokens: the hash of "
                  "executor/data/synthetic.cpp with `seed`. Step s uses "
                  "sequences [s * global_batch, (s + 1) * global_batch); of a sequence, ids are tokens 0 .. seq_len - "
                  "1 and targets are tokens "
                  "1 .. seq_len. The loss is the mean over all tokens of the step; AdamW without clipping. Gradients "
                  "are those of the first "
                  "step; norms are 2-norms; tensors are row-major lists; `config` is the text of the model's "
                  "config.json.",
        "seed": SEED, "global_batch": GLOBAL_BATCH, "seq_len": SEQ_LEN, "steps": STEPS, "adamw": ADAMW,
        "models": [
            train("llama, grouped queries, untied", llama, llama_shapes, llama_logits,
                  ["model.layers.0.self_attn.k_proj.weight", "model.layers.1.input_layernorm.weight"]),
            train("llama, one key head, tied", tied, llama_shapes, llama_logits,
                  ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"]),
            train("gpt2", gpt2, gpt2_shapes, gpt2_logits,
                  ["transformer.wpe.weight", "transformer.h.0.attn.c_attn.bias", "transformer.h.1.attn.c_proj.weight",
                   "transformer.ln_f.bias"]),
            train("mixtral, 2 of 5 experts", mixtral, llama_shapes, llama_logits,
                  ["model.layers.0.mlp.gate.weight", "model.layers.1.mlp.experts.gate_up_proj",
                   "model.layers.0.self_attn.v_proj.weight"]),
            train("olmoe, 3 of 7 experts, not renormalised", olmoe, llama_shapes, llama_logits,
                  ["model.layers.1.mlp.gate.weight", "model.layers.0.mlp.experts.down_proj",
                   "model.layers.0.self_attn.q_norm.weight"]),
        ],
        "first_tokens": [[token(SEED, s, p, 37) for p in range(5)] for s in range(3)],
        "first_weights": initial(SEED, "model.norm.weight.not_a_vector", (2, 3)).flatten().tolist(),
    }
    with open(pathlib.Path(__file__).parent.parent / "golden" / "tiny_models.json", "w") as f:
        json.dump(document, f, separators=(",", ":"))
        f.write("\n")


main()
