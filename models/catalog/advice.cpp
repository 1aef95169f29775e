#include "models/catalog/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/catalog.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

struct Kind {
  std::string_view words;  // model_types, with blanks around each
  std::string_view meaning;
};
constexpr std::array kKinds{
    Kind{
        " albert bert camembert deberta deberta-v2 distilbert electra ernie esm longformer modernbert mpnet nomic_bert "
        "roberta xlm-roberta ",
        "an encoder"},
    Kind{" bart blenderbot led longt5 m2m_100 marian mbart mt5 nllb-moe pegasus speech_to_text switch_transformers t5 "
         "t5gemma umt5 whisper ",
         "an encoder and a decoder"},
    Kind{" beit clip convnext deit detr dinov2 dinov3_vit resnet sam segformer siglip siglip_vision_model swin vit "
         "vit_mae ",
         "a vision model"},
    Kind{" hubert wav2vec2 wavlm ", "a speech encoder"},
    Kind{" falcon_mamba mamba mamba2 rwkv rwkv7 xlstm ", "a state-space model"},
    Kind{" bamba falcon_h1 granitemoehybrid jamba kimi_linear lfm2 minimax nemotron_h qwen3_5 qwen3_5_moe qwen3_next "
         "recurrent_gemma zamba zamba2 ",
         "a hybrid of attention and recurrent layers"},
};
constexpr std::string_view kExport =
    "export the model from PyTorch (`python -m fsdp_plan export`), and give the file that this writes";

std::string_view meaning_of(std::string_view model_type) {
  for (const Kind& k : kKinds)
    if (k.words.find(fmt::format(" {} ", model_type)) != std::string_view::npos) return k.meaning;
  return {};
}

// By the words for its sizes, norms and experts.
std::string_view nearest_family(JsonObject& config) {
  if (config.has("n_embd")) return "gpt2";
  if (config.has("d_model")) return "mpt";
  if (!config.has("hidden_size")) return {};
  if (config.has("moe_intermediate_size")) return "qwen3_moe";
  if (config.has("num_local_experts") || config.has("num_experts")) return "mixtral";
  if (config.has("layer_norm_eps") || config.has("layer_norm_epsilon")) return "gpt_neox";
  return config.has("rms_norm_eps") ? "llama" : std::string_view();
}

// Keys that say nothing of a Llama's structure beside those that its importer reads.
constexpr std::array kLlamaKeys{"_name_or_path",
                                "attention_bias",
                                "attention_dropout",
                                "architectures",
                                "auto_map",
                                "bos_token_id",
                                "dtype",
                                "eos_token_id",
                                "head_dim",
                                "hidden_act",
                                "hidden_size",
                                "initializer_range",
                                "intermediate_size",
                                "max_position_embeddings",
                                "mlp_bias",
                                "num_attention_heads",
                                "num_hidden_layers",
                                "num_key_value_heads",
                                "pad_token_id",
                                "pretraining_tp",
                                "quantization_config",
                                "rms_norm_eps",
                                "rope_parameters",
                                "rope_scaling",
                                "rope_theta",
                                "tie_word_embeddings",
                                "torch_dtype",
                                "transformers_version",
                                "use_cache",
                                "vocab_size"};

}  // namespace

bool looks_like_llama(JsonObject& config) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "rms_norm_eps", "vocab_size"})
    if (!config.has(key)) return false;
  if (const auto named = config.find("architectures"))
    for (const std::string& name : named->texts())
      if (name != "LlamaForCausalLM") return false;
  const std::vector<std::string> keys = config.keys();
  return std::all_of(keys.begin(), keys.end(), [](const std::string& key) {
    return std::find(kLlamaKeys.begin(), kLlamaKeys.end(), key) != kLlamaKeys.end();
  });
}

void refuse_family(JsonObject& config, std::string_view model_type) {
  const std::string_view near = nearest_family(config);
  const std::string known =
      near.empty() ? "known are " + join(model_families()) : "`show model` lists the known families";
  if (model_type.empty()) {
    if (config.has("_class_name") || config.has("_diffusers_version"))
      config.refuse("_class_name", "is diffusers', of a diffusion model, which is not modelled", std::string(kExport));
    config.refuse("model_type", "is missing",
                  near.empty() ? "add it; " + known
                               : fmt::format("add it; by its keys the nearest family is {}; {}", near, known));
  }
  const std::string named = "\"" + printable(model_type) + "\"";
  if (const std::string_view meaning = meaning_of(model_type); !meaning.empty())
    config.refuse("model_type", fmt::format("{} is {}, which is not modelled", named, meaning), std::string(kExport));
  config.refuse("model_type", named + " is not a known family",
                (near.empty() ? std::string()
                              : fmt::format("the nearest is {}: if the model is built like it, say so in a copy of the "
                                            "file, or give its sizes to the model `generic`; ",
                                            near)) +
                    known);
}

}  // namespace fsdp
