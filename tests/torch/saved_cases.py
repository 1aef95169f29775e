"""The models that record_saved.py records whole: (config, attention), and adapters as the program's flag says them."""
import titan_experts

SIZES = dict(vocab_size=1024, hidden_size=256, intermediate_size=640, num_hidden_layers=3, num_attention_heads=8,
             num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None,
             pad_token_id=None)
LOCAL = dict(sliding_window=128, layer_types=["sliding_attention", "sliding_attention", "full_attention"])
GLM4 = dict(SIZES, model_type="glm4_moe", head_dim=32, moe_intermediate_size=320, n_routed_experts=4,
            num_experts_per_tok=2, routed_scaling_factor=2.5)
DEEPSEEK = dict(SIZES, model_type="deepseek_v3", num_key_value_heads=8, q_lora_rank=96, kv_lora_rank=64,
                qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, moe_intermediate_size=320, n_routed_experts=8,
                n_group=4, topk_group=2, num_experts_per_tok=2, first_k_dense_replace=1)
DEEPSEEK_V2 = dict(DEEPSEEK, model_type="deepseek_v2", topk_method="group_limited_greedy", routed_scaling_factor=16.0)
GPT_OSS = dict(SIZES, model_type="gpt_oss", head_dim=32, num_local_experts=4, num_experts_per_tok=2,
               sliding_window=128, intermediate_size=320)
MIXTURE = dict(model_type="qwen3_moe", head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=320,
               norm_topk_prob=True, **SIZES)
# Further families: one tiny model each, as (config, attention), and with adapters as the program's flag says them.
FAMILIES = {
    "phi3": (dict(model_type="phi3", **SIZES), "sdpa"),
    "phi3 with a window": (dict(model_type="phi3", sliding_window=128, partial_rotary_factor=0.5, **SIZES), "sdpa"),
    "phi3, half turned": (dict(model_type="phi3", partial_rotary_factor=0.5, **SIZES), "sdpa"),
    "phi3, eager": (dict(model_type="phi3", **SIZES), "eager"),
    "olmo2": (dict(model_type="olmo2", **SIZES), "sdpa"),
    "granite": (dict(model_type="granite", embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                     attention_multiplier=0.1, **SIZES), "sdpa"),
    "gemma2, eager": (dict(model_type="gemma2", head_dim=32, **SIZES), "eager"),
    "gemma3_text": (dict(model_type="gemma3_text", head_dim=32, **LOCAL, **SIZES), "sdpa"),
    "gpt_neox": (dict(model_type="gpt_neox", **SIZES), "sdpa"),
    "gpt_neox, gelu_fast": (dict(model_type="gpt_neox", hidden_act="gelu_fast", use_parallel_residual=False, **SIZES),
                            "sdpa"),
    "glm4_moe": (GLM4, "sdpa"),
    "glm4_moe, groups, norms, biases": (dict(GLM4, n_routed_experts=8, n_group=4, topk_group=2, use_qk_norm=True,
                                             attention_bias=True, n_shared_experts=2, first_k_dense_replace=2), "sdpa"),
    "deepseek_v3": (DEEPSEEK, "sdpa"),
    "deepseek_v3, one projection of queries": (dict(DEEPSEEK, q_lora_rank=None, first_k_dense_replace=0,
                                                    n_shared_experts=2), "sdpa"),
    "deepseek_v2": (DEEPSEEK_V2, "sdpa"),
    "deepseek_v2, greedy, one projection of queries": (dict(DEEPSEEK_V2, topk_method="greedy", q_lora_rank=None),
                                                       "sdpa"),
    "gpt_oss": (GPT_OSS, "eager"),
    "gpt_oss, every head, one choice": (dict(GPT_OSS, num_key_value_heads=8, num_experts_per_tok=1,
                                             attention_bias=False), "eager"),
    "mistral with a window": (dict(model_type="mistral", sliding_window=128, **SIZES), "sdpa"),
    "gpt_oss with adapters": (GPT_OSS, "eager", "rank=8,targets=q_proj+v_proj"),
    "glm4_moe with adapters": (GLM4, "sdpa", "rank=8,targets=q_proj+v_proj"),
    "deepseek_v3 with adapters": (DEEPSEEK, "sdpa", "rank=8,targets=q_a_proj+kv_a_proj_with_mqa+kv_b_proj+o_proj"),
    "llama with adapters": (dict(model_type="llama", **SIZES), "sdpa", "rank=16,alpha=32,targets=all-linear"),
    "qwen3 with adapters of two layers": (dict(model_type="qwen3", **SIZES), "sdpa", "rank=8,targets=q_proj+v_proj"),
}
# Adapters on weights in 4 bits: few words and wide matrices, so that those decide the peaks.
FEW_WORDS = dict(SIZES, vocab_size=64)
PACKED = dict(FEW_WORDS, hidden_size=1024, intermediate_size=3072)
FAMILIES |= {
    **{f"llama with adapters on {base}": (dict(model_type="llama", **PACKED), "sdpa", f"rank=16,alpha=32,base={base}")
       for base in ("nf4", "nf4-double")},
    **{f"qwen2 with adapters of two layers on {base}": (dict(model_type="qwen2", **PACKED), "sdpa",
                                                        f"rank=8,targets=q_proj+v_proj,base={base}")
       for base in ("nf4", "nf4-double")},
    **{f"{model} with adapters and dropout": (dict(model_type=model, **FEW_WORDS), "sdpa", lora)
       for model, lora in (("llama", "rank=8,dropout=0.1"), ("qwen3", "rank=8,targets=q_proj+v_proj,dropout=0.5"))},
}
# Adapters in fp32 beside weights in bf16, as peft makes them and transformers' Trainer runs them without autocast.
WIDE = {f"{name}, adapters in fp32": (config, "sdpa", lora) for name, config, lora in (
    ("llama", dict(model_type="llama", **FEW_WORDS), "rank=16,alpha=32,targets=all-linear"),
    ("qwen3, two layers", dict(model_type="qwen3", **FEW_WORDS), "rank=8,targets=q_proj+v_proj"),
    ("llama with dropout", dict(model_type="llama", **FEW_WORDS), "rank=8,alpha=8,dropout=0.1"),
    ("qwen2 in 4 bits", dict(model_type="qwen2", **PACKED), "rank=8,targets=q_proj+v_proj+down_proj,base=nf4-double"),
    ("llama in 4 bits with dropout", dict(model_type="llama", **PACKED), "rank=16,dropout=0.1,base=nf4"))}
# Linear layers in torchao's 8 bits, by recipe, beside the same model in 16 bits; few words, so that blocks decide the
# peaks and not the loss.
FLOAT8 = {f"{name} in {recipe}": (config, attention, recipe) for name, config, attention, recipes in (
    ("llama", dict(model_type="llama", **FEW_WORDS), "sdpa", "none tensorwise rowwise rowwise_with_gw_hp mxfp8"),
    ("llama, wide,", dict(FEW_WORDS, model_type="llama", intermediate_size=4096), "sdpa",
     "none tensorwise rowwise rowwise_with_gw_hp mxfp8"),
    ("qwen2", dict(model_type="qwen2", **FEW_WORDS), "sdpa", "none tensorwise rowwise"),
    ("qwen3", dict(model_type="qwen3", **FEW_WORDS), "sdpa", "none rowwise_with_gw_hp"),
    ("phi3", dict(model_type="phi3", **FEW_WORDS), "sdpa", "none rowwise"),
    ("gpt_neox", dict(model_type="gpt_neox", **FEW_WORDS), "sdpa", "none tensorwise")) for recipe in recipes.split()}
# Experts as prime-rl has them (prime_rl.py), in a model of transformers.
SHARED = dict(GLM4, first_k_dense_replace=1, n_shared_experts=1)
PRIME_RL = {
    "experts": (MIXTURE, "sdpa"),
    "experts with adapters": (MIXTURE, "sdpa", "rank=8,targets=q_proj+v_proj"),
    "adapters": (dict(model_type="qwen3", **SIZES), "sdpa", "rank=8"),
    "experts with adapters, in turn": (dict(MIXTURE, num_experts=16, vocab_size=64), "sdpa",
                                       "rank=8,targets=q_proj+v_proj"),
    "adapters, in turn": (dict(model_type="qwen3", head_dim=32, **FEW_WORDS), "sdpa", "rank=8"),
    "shared experts": (SHARED, "sdpa"),
    "shared experts with adapters": (SHARED, "sdpa", "rank=8,targets=q_proj+v_proj"),
}

# Experts and latent attention as torchtitan has them (titan_experts.py, titan_latent.py), in a model of transformers.
TITAN_V3 = dict(DEEPSEEK, vocab_size=64, n_shared_experts=1)
TITAN_V2 = dict(DEEPSEEK_V2, vocab_size=64, q_lora_rank=None, n_group=1, topk_group=1, topk_method="greedy",
                n_shared_experts=2)
TITAN = {f"{name} of {form}": (config, "sdpa", form) for form in titan_experts.FORMS
         for name, config in (("experts", MIXTURE), ("shared experts", SHARED), ("deepseek_v3", TITAN_V3),
                              ("deepseek_v2", TITAN_V2))}
