// Names and configurations as the Hugging Face hub, transformers 5.23 and peft 0.21 have them. That they load is
// compared with those libraries by tests/torch/hub_folders.py.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/hub/adapters.h"
#include "models/hub/config.h"
#include "models/hub/tensors.h"
#include "models/input/error.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const Parameter& parameter(const ModelGraph& model, const std::string& name) {
  const auto found = std::find_if(model.parameters.begin(), model.parameters.end(),
                                  [&](const Parameter& p) { return p.name == name; });
  REQUIRE(found != model.parameters.end());
  return *found;
}

ModelGraph adapted(const std::string& name, const LoraSpec& spec) { return add_lora(load_model(name), spec, "lora"); }

}  // namespace

// transformers 5.23: MixtralForCausalLM(...).save_pretrained(...), hidden 24, one expert 20 wide.
TEST_CASE("Mixtral's experts stand one by one in files, under the names of the hub") {
  const ModelGraph model = small_mixtral();
  const std::string moe = "model.layers.0.block_sparse_moe.";
  const std::vector<HubTensor> wide = hub_tensors(model, parameter(model, "model.layers.0.mlp.experts.gate_up_proj"));
  REQUIRE(wide.size() == 8);  // 4 experts, w1 (gate) and w3 (up) of each
  CHECK(wide[0] == HubTensor{moe + "experts.0.w1.weight", {20, 24}, 0});
  CHECK(wide[1] == HubTensor{moe + "experts.0.w3.weight", {20, 24}, 480});
  CHECK(wide[7] == HubTensor{moe + "experts.3.w3.weight", {20, 24}, 3360});
  const std::vector<HubTensor> down = hub_tensors(model, parameter(model, "model.layers.0.mlp.experts.down_proj"));
  REQUIRE(down.size() == 4);
  CHECK(down[3] == HubTensor{moe + "experts.3.w2.weight", {24, 20}, 1440});
  CHECK(hub_tensors(model, parameter(model, "model.layers.0.mlp.gate.weight")) ==
        std::vector{HubTensor{moe + "gate.weight", {4, 24}, 0}});
  CHECK(expert_count(model, parameter(model, "model.layers.0.mlp.experts.down_proj")) == 4);
  CHECK(expert_count(model, parameter(model, "model.layers.0.mlp.gate.weight")) == 0);
}

TEST_CASE("other families' experts are called gate_proj, up_proj and down_proj") {
  const ModelGraph model = load_model("qwen3-30b-a3b");
  const std::vector<HubTensor> wide = hub_tensors(model, parameter(model, "model.layers.47.mlp.experts.gate_up_proj"));
  REQUIRE(wide.size() == 256);
  CHECK(wide[255] == HubTensor{"model.layers.47.mlp.experts.127.up_proj.weight", {768, 2048}, 255LL * 768 * 2048});
  CHECK(hub_tensors(model, parameter(model, "model.layers.47.mlp.gate.weight"))[0].name ==
        "model.layers.47.mlp.gate.weight");
}

TEST_CASE("the tensors of every parameter of the catalog cover it, one after the other, under names of their own") {
  for (const std::string& name : model_names()) {
    CAPTURE(name);
    const ModelGraph model = load_model(name);
    std::set<std::string> names;
    for (const Parameter& p : model.parameters) {
      std::int64_t end = 0;
      for (const HubTensor& t : hub_tensors(model, p)) {
        CHECK(names.insert(t.name).second);
        REQUIRE(t.begin == end);
        std::int64_t elements = 1;
        for (const std::int64_t d : t.shape) elements *= d;
        end += elements;
      }
      REQUIRE(end == p.numel());
    }
  }
}

TEST_CASE("a config that is exported makes the same model, with the type of the weights, and keeps its fields") {
  for (const std::string& name : model_names()) {
    CAPTURE(name);
    const std::string config = load_config(name);
    const ModelGraph model = load_model(name);
    const HubConfig out = hub_config(config, model, DType::f16);
    CHECK(out.text.empty() == name.ends_with("-bench"));  // MosaicML's: with learned positions and biases
    if (out.text.empty()) {
      CHECK(holds(out.problem, "transformers builds MPT without biases, with ALiBi"));
      continue;
    }
    const auto before = nlohmann::json::parse(config), after = nlohmann::json::parse(out.text);
    CHECK(after["dtype"] == "float16");
    CHECK(after["tie_word_embeddings"] == !model.parameters[0].aliases.empty());
    CHECK(after.contains("architectures"));
    for (const auto& [key, value] : before.items())
      if (key != "torch_dtype" && key != "dtype") CHECK(after[key] == value);
    CHECK(model_from_config(out.text, "out").digest() == model.digest());
    const bool drops =
        std::any_of(model.ops.begin(), model.ops.end(), [](const Op& op) { return op.kind == OpKind::moe_route; });
    CHECK(out.problem.empty() == (name != "llama3.1-405b" && (!drops || name == "tiny-mixtral")));
  }
}

TEST_CASE("a config says what it did not say, keeps what is not read, and is quantised no more") {
  const std::string config =
      R"({"model_type": "llama", "zeta": [1e-05, 10000.0, 18446744073709551615], "vocab_size": 40, "hidden_size": 24, "intermediate_size": 36,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
          "eos_token_id": [1, 2], "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "gptq"},
          "rope_scaling": {"rope_type": "llama3", "factor": 8.0}})";
  const ModelGraph model = model_from_config(config, "config.json");
  const HubConfig out = hub_config(config, model, DType::f32);
  CHECK(out.text.find("\"zeta\"") < out.text.find("\"vocab_size\""));
  CHECK(holds(out.text, "1e-05"));
  CHECK(holds(out.text, "10000.0"));
  CHECK(holds(out.text, "18446744073709551615"));
  const auto j = nlohmann::json::parse(out.text);
  CHECK(j["architectures"] == std::vector<std::string>{"LlamaForCausalLM"});
  CHECK(j["torch_dtype"] == "float32");
  CHECK(j["dtype"] == "float32");
  CHECK(j["eos_token_id"] == std::vector<int>{1, 2});
  CHECK(j["rope_scaling"]["factor"] == 8.0);
  CHECK_FALSE(j.contains("quantization_config"));
  CHECK(holds(out.problem, "scales rotary positions"));
}

TEST_CASE("a config of Llama's keys alone gets its model_type") {
  const std::string config =
      R"({"vocab_size": 40, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 1,
          "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5})";
  const auto j = nlohmann::json::parse(hub_config(config, model_from_config(config, "c"), DType::f32).text);
  CHECK(j["model_type"] == "llama");
  CHECK(j["tie_word_embeddings"] == false);
}

TEST_CASE("what a run computes otherwise than transformers is said") {
  const ModelGraph model = small_mixtral();
  CHECK(holds(differs_from_transformers("{}", model), "drops the tokens of full experts"));
  CHECK(differs_from_transformers("{}", load_model("tiny-mixtral")).empty());  // capacity_factor 2 of 4 / 2
  CHECK(differs_from_transformers(R"({"rope_scaling": {"type": "default"}, "rope_parameters": null})",
                                  load_model("tiny-llama"))
            .empty());
}

TEST_CASE("the text model of a whole that sees has no config of its own") {
  const std::string config =
      R"({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 40, "hidden_size": 24,
          "intermediate_size": 36, "num_hidden_layers": 1, "num_attention_heads": 4}})";
  const HubConfig out = hub_config(config, model_from_config(config, "config.json"), DType::f32);
  CHECK(out.text.empty());
  CHECK(holds(out.problem, "the text model alone"));
}

// peft 0.21: get_peft_model(...).save_pretrained(...).
TEST_CASE("adapters have peft's names, and the frozen weights those of the model without adapters") {
  const ModelGraph model = adapted("tiny-llama", {.rank = 4, .targets = {"q_proj"}});
  const std::string q = "model.layers.0.self_attn.q_proj.";
  CHECK(has_adapters(model));
  CHECK_FALSE(has_adapters(load_model("tiny-llama")));
  CHECK(hub_tensors(model, parameter(model, q + "base_layer.weight"))[0].name == q + "weight");
  CHECK(hub_tensors(model, parameter(model, q + "lora_A.default.weight")) ==
        std::vector{HubTensor{"base_model.model." + q + "lora_A.weight", {4, 128}, 0}});
  CHECK(hub_tensors(model, parameter(model, q + "lora_B.default.weight"))[0].name ==
        "base_model.model." + q + "lora_B.weight");
  CHECK(lora_part(parameter(model, q + "lora_A.default.weight")) == LoraPart::down);
  CHECK(lora_part(parameter(model, q + "lora_B.default.weight")) == LoraPart::up);
  CHECK(lora_part(parameter(model, q + "base_layer.weight")) == LoraPart::none);
}

TEST_CASE("adapter_config.json names rank, scale and layers") {
  const auto config = [](const std::string& name, const LoraSpec& spec) {
    return nlohmann::json::parse(adapter_config(adapted(name, spec), spec));
  };
  const auto some = config("tiny-llama", {.rank = 4, .alpha = 6, .targets = {"q_proj", "layers.1.mlp.up_proj"}});
  CHECK(some["peft_type"] == "LORA");
  CHECK(some["r"] == 4);
  CHECK(some["lora_alpha"] == 6);
  CHECK(some["fan_in_fan_out"] == false);
  CHECK(some["target_modules"] == std::vector<std::string>{"q_proj", "layers.1.mlp.up_proj"});
  const auto all = config("tiny-llama", {.rank = 8});
  CHECK(all["lora_alpha"] == 8);
  CHECK(all["target_modules"] ==
        std::vector<std::string>{"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"});
  const auto gpt2 = config("gpt2", {.rank = 2, .alpha = 0.5});
  CHECK(gpt2["fan_in_fan_out"] == true);
  CHECK(gpt2["lora_alpha"] == 0.5);
  CHECK(gpt2["target_modules"] == std::vector<std::string>{"c_attn", "c_fc", "c_proj"});
}

TEST_CASE("adapters that a model does not compute with are refused by the field of their config") {
  const ModelGraph model = adapted("tiny-llama", {.rank = 4, .alpha = 6});
  const auto says = [&](const std::string& change) {
    auto j = nlohmann::json::parse(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none"})");
    j.merge_patch(nlohmann::json::parse(change));
    return refusal([&] { return (check_adapter_config(j.dump(), "adapter_config.json", model), 0); });
  };
  CHECK(says("{}").empty());
  CHECK(says(R"({"lora_alpha": 6.0, "lora_dropout": 0.1, "rank_pattern": {}, "alpha_pattern": null})").empty());
  CHECK(says(R"({"lora_alpha": 3, "use_rslora": true})").empty());  // 3 / sqrt(4) is 6 / 4
  CHECK(holds(says(R"({"use_rslora": true})"),
              "adapter_config.json: lora_alpha: scales the adapters by 3, the model's "
              "by 1.5"));
  CHECK(holds(says(R"({"lora_alpha": 8})"), "lora_alpha: scales the adapters by 2, the model's by 1.5"));
  CHECK(holds(says(R"({"lora_alpha": null})"), "lora_alpha"));
  CHECK(holds(says(R"({"r": 0})"), "adapter_config.json: r"));
  CHECK(holds(says(R"({"r": 8})"), "r: the adapters have rank 8, the model's "));
  CHECK(holds(says(R"({"peft_type": "IA3"})"), "peft_type: \"IA3\" is not LORA"));
  CHECK(holds(says(R"({"use_dora": true})"), "use_dora: true is not modelled"));
  CHECK(holds(says(R"({"bias": "all"})"), "bias: \"all\" is not modelled"));
  CHECK(holds(says(R"({"init_lora_weights": "pissa"})"), "init_lora_weights: \"pissa\" changes the base weights"));
  CHECK(holds(says(R"({"layers_to_transform": 3})"), "layers_to_transform: is not modelled"));
  CHECK(holds(says(R"({"alora_invocation_tokens": [5]})"), "alora_invocation_tokens: is not modelled"));
  CHECK(says(R"({"init_lora_weights": true, "target_parameters": [], "layers_to_transform": null})").empty());
  CHECK(holds(says(R"({"alpha_pattern": {"q_proj": 2}})"), "alpha_pattern: gives layers"));
  CHECK(holds(says(R"({"rank_pattern": {"q_proj": 2}})"), "rank_pattern: gives layers"));
  CHECK(holds(refusal([&] { return (check_adapter_config("{", "f", model), 0); }), "f"));
}
