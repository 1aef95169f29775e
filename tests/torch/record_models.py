"""Records what PyTorch shows of tiny models that transformers builds, a few per family: names and classes of modules,
names, shapes and ties of parameters, the order in which modules with parameters run, and the flops of matrix products
that PyTorch's own counter sees in a forward and backward. tests/models/importers_test.cpp compares our importers with
it.

    python tests/torch/record_models.py [NAME..]   (needs torch and transformers; rewrites
      tests/torch/golden/families/*.json, or those named)
"""

import json
import pathlib
import sys

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

SEQUENCES, SEQ_LEN = 2, 24

SHARED = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64)

LATENT = dict(SHARED, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=10, qk_rope_head_dim=4, qk_nope_head_dim=6,
              v_head_dim=8)
NEOX = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=64)
FALCON = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
              bos_token_id=0, eos_token_id=0)

CONFIGS = {
    "llama": dict(model_type="llama", **SHARED),
    "llama_bias_tied": dict(model_type="llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                            head_dim=10, **SHARED),
    "mistral": dict(model_type="mistral", sliding_window=16, head_dim=6, **SHARED),
    "qwen2": dict(model_type="qwen2", **SHARED),
    "qwen2_tied": dict(model_type="qwen2", tie_word_embeddings=True, **SHARED),
    "qwen3": dict(model_type="qwen3", head_dim=16, **SHARED),
    "qwen3_bias": dict(model_type="qwen3", head_dim=16, attention_bias=True, tie_word_embeddings=True, **SHARED),
    "mixtral": dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, **SHARED),
    "qwen3_moe": dict(model_type="qwen3_moe", head_dim=16, num_experts=8, num_experts_per_tok=3,
                      moe_intermediate_size=20,
                      norm_topk_prob=True, **SHARED),
    "olmoe": dict(model_type="olmoe", num_experts=6, num_experts_per_tok=3, eos_token_id=0, **SHARED),
    "glm4_moe": dict(model_type="glm4_moe", head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
                     moe_intermediate_size=20, attention_bias=True, use_qk_norm=True, **SHARED),
    "glm4_moe_dense_last": dict(model_type="glm4_moe", head_dim=12, n_routed_experts=4, num_experts_per_tok=2,
                                n_shared_experts=3, moe_intermediate_size=20, first_k_dense_replace=2, n_group=2,
                                tie_word_embeddings=True, **SHARED),
    "deepseek_v3": dict(model_type="deepseek_v3", n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=20,
                        n_group=4, topk_group=2, first_k_dense_replace=1, **LATENT),
    "deepseek_v3_one_projection_bias": dict(
        model_type="deepseek_v3", n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=20, n_group=2,
        topk_group=1, first_k_dense_replace=0, n_shared_experts=2, attention_bias=True,
        **{**LATENT, "q_lora_rank": None}),
    "deepseek_v2": dict(model_type="deepseek_v2", n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=20,
                        n_group=4, topk_group=2, topk_method="group_limited_greedy", first_k_dense_replace=1,
                        routed_scaling_factor=16.0, **LATENT),
    "deepseek_v2_greedy_bias": dict(
        model_type="deepseek_v2", n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
        attention_bias=True, **{**LATENT, "q_lora_rank": None, "tie_word_embeddings": True}),
    "gpt_oss": dict(model_type="gpt_oss", head_dim=12, num_local_experts=6, num_experts_per_tok=3, sliding_window=16,
                    **{**SHARED, "num_hidden_layers": 3}),
    "gpt_oss_tied_no_bias": dict(model_type="gpt_oss", head_dim=8, num_local_experts=4, num_experts_per_tok=1,
                                 attention_bias=False, tie_word_embeddings=True, sliding_window=8,
                                 layer_types=["full_attention", "sliding_attention"], **SHARED),
    "gpt2": dict(model_type="gpt2", vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=4,
                 bos_token_id=0, eos_token_id=0),
    "gpt2_inner_untied": dict(model_type="gpt2", vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=4,
                              n_inner=80,
                              activation_function="gelu_pytorch_tanh", tie_word_embeddings=False, bos_token_id=0,
                              eos_token_id=0),
    "gpt2_gelu": dict(model_type="gpt2", vocab_size=96, n_positions=64, n_embd=32, n_layer=1, n_head=2,
                      activation_function="gelu", bos_token_id=0, eos_token_id=0),
    "mpt": dict(model_type="mpt", vocab_size=96, d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    "phi3": dict(model_type="phi3", sliding_window=16, pad_token_id=0, **SHARED),
    "phi3_partial_tied": dict(model_type="phi3", partial_rotary_factor=0.5, tie_word_embeddings=True, pad_token_id=0,
                              **SHARED),
    "olmo2": dict(model_type="olmo2", **SHARED),
    "olmo2_bias": dict(model_type="olmo2", attention_bias=True, tie_word_embeddings=True, **SHARED),
    "granite": dict(model_type="granite", embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                    attention_multiplier=0.125, tie_word_embeddings=True, **SHARED),
    "granite_bias": dict(model_type="granite", attention_bias=True, mlp_bias=True, **SHARED),
    "gemma2": dict(model_type="gemma2", head_dim=12, sliding_window=16, **SHARED),
    "gemma2_untied_bias": dict(model_type="gemma2", head_dim=12, attention_bias=True, tie_word_embeddings=False,
                               final_logit_softcapping=None, attn_logit_softcapping=None, **SHARED),
    "gemma3_text": dict(model_type="gemma3_text", head_dim=10, sliding_window=8,
                        **{**SHARED, "num_hidden_layers": 7, "num_key_value_heads": 1}),
    "gpt_neox": dict(model_type="gpt_neox", **NEOX),
    "gpt_neox_in_series": dict(model_type="gpt_neox", use_parallel_residual=False, attention_bias=False,
                               rotary_pct=0.5, tie_word_embeddings=True, hidden_act="gelu_fast", **NEOX),
    "falcon": dict(model_type="falcon", **FALCON),
    "falcon_grouped": dict(model_type="falcon", new_decoder_architecture=True, num_kv_heads=2, **FALCON),
    "falcon_grouped_one_norm": dict(model_type="falcon", new_decoder_architecture=True, num_kv_heads=2,
                                    num_ln_in_parallel_attn=1, ffn_hidden_size=72, **FALCON),
    "falcon_every_head": dict(model_type="falcon", multi_query=False, bias=True, tie_word_embeddings=False, **FALCON),
}


def counted(counter, operators, module_suffix=None):
    """Flops of some operators: of the whole model, or summed over the modules whose name ends so."""
    total = 0
    for module, counts in counter.get_flop_counts().items():
        if module == "Global" if module_suffix is None else module.endswith(module_suffix):
            total += sum(flops for operator, flops in counts.items() if str(operator) in operators)
    return total


def run(model, attention):
    """One forward and backward: the order of modules that own parameters, and flops of linear layers and of
    attention."""
    order = []
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(lambda _m, _a, name=name: order.append(name))
    ids = torch.randint(0, model.config.vocab_size, (SEQUENCES, SEQ_LEN))
    linear = ("aten.mm", "aten.addmm")
    with FlopCounterMode(display=False) as forward:
        logits = model(ids).logits
    with FlopCounterMode(display=False) as backward:
        logits.float().square().mean().backward()
    return {
        "sequences": SEQUENCES, "seq_len": SEQ_LEN, "forward_order": order,
        "linear_forward_flops": counted(forward, linear), "linear_backward_flops": counted(backward, linear),
        "attention_square_forward_flops": counted(forward, ("aten.bmm", "aten.baddbmm"), "." + attention),
    }


def build(config):
    config = AutoConfig.for_model(**config)
    # Eager experts: a product per expert, over the tokens routed to it, which the counter sees as it sees linear
    # layers.
    experts = {"experts_implementation": "eager"} if hasattr(config, "num_experts_per_tok") else {}
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", **experts)


def record(model):
    first_name = {}
    parameters = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first_name:
            parameters[first_name[id(parameter)]]["aliases"].append(name)
            continue
        first_name[id(parameter)] = len(parameters)
        parameters.append({"name": name, "shape": list(parameter.shape), "aliases": []})
    attention = {"gpt2": "attn", "mpt": "attn", "gpt_neox": "attention",
                 "falcon": "self_attention"}.get(model.config.model_type, "self_attn")
    return {
        "recorded_with": f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}",
        "run": run(model, attention),
        "parameter_count": sum(p.numel() for p in model.parameters()),
        "modules": [[name, type(module).__name__] for name, module in model.named_modules()],
        "parameters": parameters,
    }


def write(path, document):
    long = ("modules", "parameters")
    lines = [f'  "{key}": {json.dumps(value)}' for key, value in document.items() if key not in long]
    for key in long:
        rows = ",\n".join("    " + json.dumps(row) for row in document[key])
        lines.append(f'  "{key}": [\n{rows}\n  ]')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    golden = pathlib.Path(__file__).parent / "golden" / "families"
    golden.mkdir(exist_ok=True)
    names = [a for a in sys.argv[1:] if a != "--write"]  # which record.py gives every recorder
    for name, config in CONFIGS.items():
        if names and name not in names:
            continue
        recorded = record(build(config))
        ordered = {"recorded_with": recorded["recorded_with"], "config": config,
                   "parameter_count": recorded["parameter_count"], "run": recorded["run"]}
        write(golden / f"{name}.json", {**ordered, **recorded})


if __name__ == "__main__":
    main()
