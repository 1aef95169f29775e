"""Writes the config.json of published models as transformers' config classes write it, and records what PyTorch shows
of those that transformers builds from them on the meta device: parameters, ties, and the flops of matrix products that
PyTorch's counter sees in a forward. tests/models/published_test.cpp compares our importers with it.

    python tests/torch/record_full_models.py            (needs torch and transformers; rewrites
      tests/torch/golden/models/configs/*.json and full_models.json beside them)
    python tests/torch/record_full_models.py NAME..     prints those alone

Values that differ from a class's own defaults are those of the published files.
"""

import json
import pathlib
import sys

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

GOLDEN = pathlib.Path(__file__).parent / "golden" / "models"
SEQ_LEN = 512


def config(name, **values):
    return getattr(transformers, name + "Config")(**values)


def llama_without_type():
    document = config("Llama", num_key_value_heads=8).to_dict()
    return {k: v for k, v in document.items() if k in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "rms_norm_eps", "hidden_act", "max_position_embeddings", "tie_word_embeddings")}


CONFIGS = {
    "deepseek-v3": lambda: config("DeepseekV3"),
    "gemma-3-1b": lambda: config(
        "Gemma3Text", vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
        num_attention_heads=4, num_key_value_heads=1, head_dim=256, sliding_window=512, max_position_embeddings=32768),
    "gemma-3-4b": lambda: config(
        "Gemma3",
        text_config=dict(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34, num_attention_heads=8,
                         num_key_value_heads=4, head_dim=256, sliding_window=1024,
                         rope_scaling={"factor": 8.0, "rope_type": "linear"}),
        vision_config=dict(hidden_size=1152, image_size=896, intermediate_size=4304, num_attention_heads=16,
                           num_hidden_layers=27, patch_size=14, vision_use_head=False)),
    "phi-3-mini": lambda: config("Phi3", sliding_window=2047),
    "gpt-oss-20b": lambda: config("GptOss", num_hidden_layers=24, num_local_experts=32),
    "gpt-oss-120b": lambda: config("GptOss"),
    "qwen3-next": lambda: config("Qwen3Next"),
    "gpt-neox-20b": lambda: config("GPTNeoX", hidden_act="gelu_fast"),
    "falcon-7b": lambda: config("Falcon"),
    "mamba-2.8b": lambda: config("Mamba", hidden_size=2560, num_hidden_layers=64, vocab_size=50280),
    "olmo2-7b": lambda: config("Olmo2", vocab_size=100352, max_position_embeddings=4096, rms_norm_eps=1e-6,
                               rope_theta=500000.0),
    "qwen2.5-vl": lambda: config(
        "Qwen2_5_VL",
        text_config=dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
                         num_key_value_heads=4, vocab_size=152064, max_position_embeddings=128000,
                         rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}, rope_theta=1000000.0)),
    "bert": lambda: config("Bert"),
    "t5": lambda: config("T5"),
    "vit-l": lambda: config("ViT", hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
                            num_attention_heads=16),
    "dit-xl": lambda: {"_class_name": "DiTTransformer2DModel", "_diffusers_version": "0.30.0", "num_layers": 28,
                       "num_attention_heads": 16, "attention_head_dim": 72, "in_channels": 4, "patch_size": 2,
                       "sample_size": 32},
    "llama-without-type": llama_without_type,
    "llama-3.2-1b": lambda: config(
        "Llama", vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072,
        rope_theta=500000.0, tie_word_embeddings=True,
        rope_scaling={"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                      "original_max_position_embeddings": 8192, "rope_type": "llama3"}),
    "mistral-7b": lambda: config("Mistral", sliding_window=4096),
    "mistral-small-24b": lambda: config(
        "Mistral", vocab_size=131072, hidden_size=5120, intermediate_size=32768, num_hidden_layers=40, head_dim=128,
        num_attention_heads=32, num_key_value_heads=8, sliding_window=None, max_position_embeddings=32768,
        rope_theta=100000000.0),
    "mixtral-8x22b": lambda: config(
        "Mixtral", vocab_size=32768, hidden_size=6144, intermediate_size=16384, num_hidden_layers=56,
        num_attention_heads=48, num_key_value_heads=8, max_position_embeddings=65536, rope_theta=1000000.0,
        sliding_window=None),
    "qwen2.5-7b-instruct": lambda: config(
        "Qwen2", vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
        num_attention_heads=28, num_key_value_heads=4, max_position_embeddings=32768, rope_theta=1000000.0),
    # beside the list: one of each further family and generation
    "gemma-2-9b": lambda: config(
        "Gemma2", hidden_size=3584, intermediate_size=14336, num_hidden_layers=42, num_attention_heads=16,
        num_key_value_heads=8, head_dim=256),
    "granite-3.1-8b": lambda: config(
        "Granite", vocab_size=49155, hidden_size=4096, intermediate_size=12800, num_hidden_layers=40,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_theta=10000000.0, tie_word_embeddings=True, attention_multiplier=0.0078125, embedding_multiplier=12.0,
        logits_scaling=16.0, residual_multiplier=0.22),
    "phi-4-mini": lambda: config(
        "Phi3", vocab_size=200064, num_attention_heads=24, num_key_value_heads=8, partial_rotary_factor=0.75,
        sliding_window=262144, tie_word_embeddings=True, max_position_embeddings=131072),
    "falcon-40b": lambda: config("Falcon", hidden_size=8192, num_hidden_layers=60, num_attention_heads=128,
                                 num_kv_heads=8, new_decoder_architecture=True),
    "glm-4.5-air": lambda: config("Glm4Moe", head_dim=128, attention_bias=True, rope_theta=1000000.0,
                                  partial_rotary_factor=0.5),
    "glm-4.5": lambda: config(
        "Glm4Moe", hidden_size=5120, intermediate_size=12288, num_hidden_layers=92, head_dim=128, attention_bias=True,
        use_qk_norm=True, moe_intermediate_size=1536, n_routed_experts=160, routed_scaling_factor=2.5,
        first_k_dense_replace=3, rope_theta=1000000.0, partial_rotary_factor=0.5),
    "moonlight-16b-a3b": lambda: config(
        "DeepseekV3", vocab_size=163840, hidden_size=2048, intermediate_size=11264, moe_intermediate_size=1408,
        num_hidden_layers=27, num_attention_heads=16, num_key_value_heads=16, n_shared_experts=2, n_routed_experts=64,
        num_experts_per_tok=6, routed_scaling_factor=2.446, q_lora_rank=None, n_group=1, topk_group=1,
        first_k_dense_replace=1, max_position_embeddings=8192, rope_theta=50000.0),
    "deepseek-v2-lite": lambda: config(
        "DeepseekV2", hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408, num_hidden_layers=27,
        num_attention_heads=16, num_experts_per_tok=6, q_lora_rank=None, n_group=1, topk_group=1,
        first_k_dense_replace=1, max_position_embeddings=163840),
    "deepseek-v2": lambda: config(
        "DeepseekV2", hidden_size=5120, intermediate_size=12288, moe_intermediate_size=1536, num_hidden_layers=60,
        num_attention_heads=128, num_experts_per_tok=6, n_routed_experts=160, n_group=8, topk_group=3,
        topk_method="group_limited_greedy", routed_scaling_factor=16.0, first_k_dense_replace=1,
        max_position_embeddings=163840),
    "qwen3-30b-a3b": lambda: config("Qwen3Moe", num_hidden_layers=48, head_dim=128, norm_topk_prob=True,
                                    rope_theta=1000000.0),
}
REFUSED = ("qwen3-next", "mamba-2.8b", "bert", "t5", "vit-l", "dit-xl")


def counted(counter, operators):
    return sum(f for op, f in counter.get_flop_counts()["Global"].items() if str(op).startswith(operators))


def record(name, written):
    if name == "llama-without-type":
        written = transformers.LlamaConfig(**written)
    kind = AutoModelForImageTextToText if hasattr(written, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(written, attn_implementation="eager")
        ids = torch.zeros(1, SEQ_LEN, dtype=torch.int64)
    parameters, seen = [], {}
    for leaf, p in model.named_parameters(remove_duplicate=False):
        if id(p) in seen:
            parameters[seen[id(p)]][2].append(leaf)
        else:
            seen[id(p)] = len(parameters)
            parameters.append([leaf, list(p.shape), []])
    tower = any("language_model" in leaf for leaf, _, _ in parameters)
    if tower:   # without what sees
        parameters = [p for p in parameters if "language_model" in p[0] or p[0].startswith("lm_head")]
    kept = [p for p in parameters if ".layers." not in p[0] and ".h." not in p[0] or ".0." in p[0]]
    count = 0
    for _, shape, _ in parameters:
        count += torch.Size(shape).numel()
    row = {"parameter_count": count, "parameter_tensors": len(parameters), "parameters": kept}
    if not hasattr(written, "num_experts_per_tok"):   # meta tensors cannot be routed
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids)
        row["linear_forward_flops"] = counted(counter, ("aten.mm", "aten.addmm"))
        row["attention_square_forward_flops"] = counted(counter, ("aten.bmm", "aten.baddbmm"))
    return row


def main():
    (GOLDEN / "configs").mkdir(exist_ok=True)
    names = [a for a in sys.argv[1:] if a != "--write"]  # which record.py gives every recorder
    rows = {}
    for name, make in CONFIGS.items():
        if names and name not in names:
            continue
        written = make()
        text = json.dumps(written, indent=2) if isinstance(written, dict) else written.to_json_string()
        if not names:
            (GOLDEN / "configs" / f"{name}.json").write_text(text.strip() + "\n")
        if name not in REFUSED:
            rows[name] = record(name, written)
    lines = ",\n".join(f'    {json.dumps(name)}: {json.dumps(row)}' for name, row in rows.items())
    document = (f'{{\n  "recorded_with": "torch {torch.__version__.split("+")[0]}, transformers '
                f'{transformers.__version__}",\n  "seq_len": {SEQ_LEN},\n  "models": {{\n{lines}\n  }}\n}}\n')
    if names:
        print(document)
    else:
        (GOLDEN / "full_models.json").write_text(document)


if __name__ == "__main__":
    main()
