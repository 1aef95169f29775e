// A model that the catalog does not have by the name that was typed: names of the hub, files without model_type, kinds
// of models that are not modelled, models of sizes alone, and what a file says beside its model.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <regex>
#include <string>
#include <string_view>

#include "models/catalog.h"
#include "models/catalog/names.h"
#include "models/implementation.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

std::string published_refusal(const std::string& name) {
  return refusal([&] { return load_model(FSDP_TESTS_DIR "/torch/golden/models/configs/" + name + ".json"); });
}

ModelGraph published(const std::string& name) {
  return load_model(FSDP_TESTS_DIR "/torch/golden/models/configs/" + name + ".json");
}

std::string config_refusal(const std::string& text) {
  return refusal([&] { return model_from_config(text, "config.json"); });
}

const std::string kLlama =
    R"("vocab_size":64,"hidden_size":32,"intermediate_size":48,"num_hidden_layers":2,"num_attention_heads":4,"rms_norm_eps":1e-5)";

}  // namespace

TEST_CASE("names of the hub are the catalog's models, whatever their case and separators") {
  CHECK(load_model("Qwen/Qwen2.5-7B").name == "qwen2.5-7b");
  CHECK(load_model("qwen/qwen2.5-7b").digest() == load_model("qwen2.5-7b").digest());
  CHECK(load_model("meta-llama/Meta-Llama-3-8B").name == "llama3-8b");
  CHECK(catalog_name("LLAMA3_8B") == "llama3-8b");
  CHECK(catalog_name("Llama 3 8B") == "llama3-8b");
  CHECK(catalog_name("Llama-2-7b-hf") == "llama2-7b");
  CHECK(catalog_name("mistralai/Mixtral-8x7B-v0.1") == "mixtral-8x7b");
  // Near, and other models: a vocabulary of 32768 and no window; other positions; another organisation's.
  CHECK(catalog_name("mistralai/Mistral-7B-v0.3") == "");
  CHECK(catalog_name("Qwen/Qwen2.5-7B-Instruct") == "");
  CHECK(catalog_name("somebody/Qwen2.5-7B") == "");
  CHECK(catalog_name("/") == "");
}

TEST_CASE("every name of the hub stands for a model of the catalog") {
  for (const std::string& name : model_names()) CHECK(catalog_name(name) == name);
  // Each row of the table, from its source: a name of the hub and the catalog's.
  std::ifstream source(FSDP_TESTS_DIR "/../models/catalog/names.cpp");
  int rows = 0;
  for (std::string line; std::getline(source, line);) {
    std::smatch row;
    if (!std::regex_search(line, row, std::regex(R"re(HubName\{"([^"]+)", "([^"]+)"\})re"))) continue;
    CAPTURE(line);
    ++rows;
    CHECK(catalog_name(row[1].str()) == row[2].str());
    CHECK(load_model(row[1].str()).name == row[2].str());
  }
  CHECK(rows > 20);
}

TEST_CASE("a name that is not known: the nearest ones, and which file to fetch") {
  const auto said = [](const char* spec) { return refusal([&] { return load_model(spec); }); };
  CHECK(said("Qwen/Qwen2.5-14B") ==
        "model: \"Qwen/Qwen2.5-14B\": there is no such file or folder; fetch "
        "https://huggingface.co/Qwen/Qwen2.5-14B/resolve/main/config.json and give that file; the catalog has "
        "qwen2.5-7b, qwen2.5-0.5b");
  CHECK(said("lama3-8b") ==
        "model: \"lama3-8b\" is not in the catalog, nor a file; did you mean \"llama3-8b\", \"llama2-7b\" or "
        "\"llama3-70b\"? Or give the path of its config.json");
  CHECK(said("runs/of/mine/config.json") ==
        "model: \"runs/of/mine/config.json\": there is no such file or folder; check the path");
  CHECK(holds(said("../model"), "check the path"));
}

TEST_CASE("a file without model_type whose keys are Llama's is a Llama, and says so") {
  const ModelGraph typed = model_from_config("{\"model_type\":\"llama\"," + kLlama + "}", "c"),
                   untyped = model_from_config("{" + kLlama + "}", "c");
  CHECK(untyped.digest() == typed.digest());
  CHECK(untyped.family == "llama");
  REQUIRE(untyped.notes.size() == 1);
  CHECK(untyped.notes[0] == "it states no model_type; its keys are Llama's");
  CHECK(typed.notes.empty());
  // Keys of other families, or another class by name: no guess.
  CHECK(holds(config_refusal("{" + kLlama + ",\"sliding_window\":8}"),
              "config.json: model_type: is missing; add it; by its keys the nearest family is llama; `show model`"));
  CHECK(holds(config_refusal("{" + kLlama + ",\"architectures\":[\"PhiForCausalLM\"]}"), "model_type: is missing"));
  CHECK(holds(config_refusal("{\"hidden_size\":32,\"layer_norm_eps\":1e-5}"), "the nearest family is gpt_neox"));
}

TEST_CASE("kinds of models that are not modelled are called what they are, with the way round") {
  // Of 21 published models these six, and those of another file.
  const auto says = [](const char* name, const std::string& what) {
    CAPTURE(name);
    const std::string said = published_refusal(name);
    CHECK(holds(said, what));
    CHECK(holds(said, "not modelled; export the model from PyTorch (`python -m fsdp_plan export`)"));
  };
  says("bert", "model_type: \"bert\" is an encoder");
  says("t5", "model_type: \"t5\" is an encoder and a decoder");
  says("vit-l", "model_type: \"vit\" is a vision model");
  says("mamba-2.8b", "model_type: \"mamba\" is a state-space model");
  says("qwen3-next", "model_type: \"qwen3_next\" is a hybrid of attention and recurrent layers");
  says("dit-xl", "_class_name: is diffusers', of a diffusion model");
  CHECK(holds(config_refusal("{\"model_type\":\"whisper\"}"), "an encoder and a decoder"));
  // Of families without an importer.
  CHECK(
      holds(config_refusal("{\"model_type\":\"apertus\"," + kLlama + "}"),
            "\"apertus\" is not a known family; the nearest is llama: if the model is built like it, say so in a copy "
            "of the file, or give its sizes to the model `generic`; `show model` lists the known families"));
}

TEST_CASE("a quantised checkpoint is not what is trained, and the graph says so") {
  const std::string start = "{\"model_type\":\"llama\"," + kLlama;
  const ModelGraph m =
      model_from_config(start + ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}", "c");
  CHECK(m.digest() == model_from_config(start + "}", "c").digest());
  REQUIRE(m.notes.size() == 1);
  CHECK(m.notes[0] ==
        "quantization_config (gptq) is left out: the checkpoint is quantised, the parameters that are trained here are "
        "not");
}

TEST_CASE("keys that transformers does not read for DeepSeek are said to be left out") {
  std::string version = "3";
  const auto notes = [&](const std::string& more) {
    return model_from_config(R"({"model_type": "deepseek_v)" + version +
                                 R"(", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
      "moe_intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
      "n_routed_experts": 16, "num_experts_per_tok": 2)" +
                                 more + "}",
                             "config.json")
        .notes;
  };
  CHECK(notes(R"(, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1)").empty());
  const std::vector<std::string> all =
      notes(R"(, "scoring_func": "softmax", "topk_method": "greedy", "moe_layer_freq": 2, "num_mtp_layers": 1)");
  REQUIRE(all.size() == 4);
  CHECK(all[0] == "num_mtp_layers is left out: transformers trains without these layers");
  CHECK(holds(all[1], "scoring_func is left out: transformers does not read it"));
  CHECK(holds(all[2], "topk_method is left out"));
  CHECK(holds(all[3], "moe_layer_freq is left out"));
  version = "2";
  CHECK(notes(R"(, "scoring_func": "softmax", "topk_method": "greedy", "norm_topk_prob": false)").empty());
  const std::vector<std::string> of_v2 = notes(R"(, "scoring_func": "sigmoid", "norm_topk_prob": true)");
  REQUIRE(of_v2.size() == 2);
  CHECK(of_v2[0] == "scoring_func is left out: transformers does not read it, and takes softmax");
  CHECK(holds(of_v2[1], "norm_topk_prob is left out"));
}

TEST_CASE("number of experts under the name that transformers 5 writes and the family's own") {
  const ModelGraph written = published("qwen3-30b-a3b"), catalog = load_model("qwen3-30b-a3b");
  CHECK(written.parameter_count() == catalog.parameter_count());
  const std::string start =
      "{\"model_type\":\"qwen3_moe\"," + kLlama + ",\"moe_intermediate_size\":8,\"num_experts_per_tok\":2";
  CHECK(model_from_config(start + ",\"num_experts\":4}", "c").digest() ==
        model_from_config(start + ",\"num_local_experts\":4}", "c").digest());
  CHECK(config_refusal(start + "}") == "config.json: num_experts: is missing; add it");
}

TEST_CASE("text models of models that see: their modules inside the whole, and what is left out is said") {
  const ModelGraph m = published("gemma-3-4b");
  CHECK(m.modules[0].class_name == "Gemma3ForConditionalGeneration");
  CHECK(m.modules[1].name == "model");
  CHECK(m.modules[1].class_name == "Gemma3Model");
  CHECK(m.modules[2].name == "model.language_model");
  CHECK(m.find_module("model.language_model.layers.33.mlp") > 0);
  CHECK(m.family == "gemma3");
  REQUIRE(m.notes.size() == 1);
  CHECK(holds(m.notes[0], "the text model alone"));
  const std::string llava = R"({"model_type":"llava","text_config":{"model_type":"mistral",)" + kLlama +
                            R"(,"num_key_value_heads":2},"vision_config":{}})";
  const ModelGraph l = model_from_config(llava, "runs/llava/config.json");
  CHECK(l.name == "llava");
  CHECK(l.modules[0].class_name == "LlavaForConditionalGeneration");
  CHECK(l.find_module("model.language_model.layers.0.self_attn.q_proj") > 0);
  CHECK(config_refusal(R"({"model_type":"llava","text_config":{"model_type":"llama"}})") ==
        "config.json: text_config: vocab_size: is missing; add it");
  CHECK(holds(config_refusal(R"({"model_type":"llava","text_config":3})"), "text_config: is no object"));
}

TEST_CASE("the head of a text model that is part of another is tied as transformers 5.23 ties it") {
  // What transformers' config classes make of the whole's word and of the text_config's; '-': it has none.
  struct Row {
    std::string_view type, text_type,
        of;  // whole and text in turn: "--", "-t", "-f", "t-", "tt", "tf", "f-", "ft", "ff"
  };
  constexpr std::array kCases{"--", "-t", "-f", "t-", "tt", "tf", "f-", "ft", "ff"};
  for (const Row& row : {Row{"gemma3", "gemma3_text", "111111000"}, Row{"mistral3", "mistral", "111111000"},
                         Row{"llava", "llama", "010111010"}, Row{"qwen2_5_vl", "qwen2_5_vl_text", "010111010"}}) {
    for (std::size_t i = 0; i < kCases.size(); ++i) {
      const auto says = [](char c) {
        return c == '-' ? "" : c == 't' ? ",\"tie_word_embeddings\":true" : ",\"tie_word_embeddings\":false";
      };
      const std::string text =
          fmt::format(R"({{"model_type":"{}","text_config":{{"model_type":"{}",{},"num_key_value_heads":2{}}}{}}})",
                      row.type, row.text_type, kLlama, says(kCases[i][1]), says(kCases[i][0]));
      CAPTURE(text);
      const ModelGraph m = model_from_config(text, "config.json");
      CHECK(!m.parameters.at(0).aliases.empty() == (row.of[i] == '1'));
    }
  }
}

TEST_CASE("a generic model is what its sizes say") {
  // Llama 3 8B's sizes.
  GenericSizes s;
  s.layers = 32, s.hidden = 4096, s.heads = 32, s.kv_heads = 8, s.ffn = 14336, s.vocab = 128256;
  const ModelGraph m = generic_model(s), llama = load_model("llama3-8b");
  CHECK(m.name == "generic");
  CHECK(m.parameter_count() == llama.parameter_count());
  CHECK(model_flops_per_token(m, 8192) == model_flops_per_token(llama, 8192));
  CHECK_FALSE(m.max_seq_len);
  s.experts = 8, s.experts_per_token = 2, s.vocab = 32000;
  CHECK(generic_model(s).parameter_count() == load_model("mixtral-8x7b").parameter_count());
  // As many heads of keys as heads, where it is not said: 24 more of 128 channels, for keys and values of 32 blocks.
  GenericSizes all = s;
  all.kv_heads.reset();
  CHECK(generic_model(all).parameter_count() ==
        generic_model(s).parameter_count() + std::int64_t{2} * 32 * 24 * 128 * 4096);

  const auto said = [](const GenericSizes& sizes) { return refusal([&] { return generic_model(sizes); }); };
  GenericSizes bad = s;
  bad.hidden.reset();
  CHECK(said(bad) == "hidden: is missing, which a generic model needs; give it, such as 4096");
  bad = s, bad.kv_heads = 5;
  CHECK(holds(said(bad), "kv_heads: 5 does not divide 32 heads"));
  bad = s, bad.hidden = 4100;
  CHECK(holds(said(bad), "hidden: 4100 is not divisible by 32 heads"));
  bad = s, bad.experts_per_token = 9;
  CHECK(holds(said(bad), "experts_per_token: 9 of 8 experts"));
  bad = s, bad.experts.reset();
  CHECK(holds(said(bad), "experts_per_token: needs a number of experts"));
}

TEST_CASE("where nobody names an implementation, it is one that knows the model") {
  const auto usual = [](const ModelGraph& m, bool compiled = false) {
    return std::string(usual_implementation(m, false, compiled, "i").name);
  };
  CHECK(usual(load_model("llama3-8b")) == "torchtitan");
  CHECK(usual(published("olmo2-7b")) == "torchtitan");
  CHECK(usual(published("phi-3-mini")) == "hf");
  CHECK(usual(published("granite-3.1-8b")) == "hf");
  CHECK(usual(published("gemma-3-1b")) == "hf");
  CHECK(usual(published("gpt-neox-20b")) == "hf");
  CHECK(usual(published("gemma-2-9b")) == "hf-eager-attention");
  CHECK(usual(load_model("mixtral-8x7b")) == "torchtitan");
  CHECK(usual(load_model("deepseek-v2-lite")) == "torchtitan");
  CHECK(usual(published("phi-3-mini"), true) == "torchtitan");  // which refuses it
  CHECK(usual_implementation(load_model("llama3-8b"), true, false, "i").name == "native");

  const auto refused = [](const char* implementation, const ModelGraph& m) {
    return refusal([&] {
      for (const Op& op : m.ops) (void)facts(find_implementation(implementation, false, "i"), op, {1, 64, 2});
    });
  };
  CHECK(refused("native", published("phi-3-mini")) ==
        "implementation: native has no known memory and time for rotary of packed q, k and v; those that have: hf, "
        "hf-eager-attention");
  CHECK(refused("hf", published("gemma-2-9b")) ==
        "implementation: hf has no known memory and time for attention with capped scores; those that have: "
        "hf-eager-attention");
  CHECK(refused("native", published("olmo2-7b")) == "");
  CHECK(holds(refused("native", published("granite-3.1-8b")), "for attention with a factor of its own"));
  CHECK(holds(refused("hf", published("falcon-7b")),
              "attention with a mask that is always written out (Falcon's); none has; `show model` has the model's "
              "parameters"));
}
