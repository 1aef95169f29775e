// Published models in full size: the config.json files that transformers' config classes write, against what
// transformers builds of them on the meta device (tests/torch/record_full_models.py), or the advice where a kind of
// model is not modelled.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"

using namespace fsdp;
using nlohmann::json;

namespace {

const std::filesystem::path kGolden = FSDP_TESTS_DIR "/torch/golden/models";

ModelGraph published(const std::string& name) { return load_model((kGolden / "configs" / (name + ".json")).string()); }

}  // namespace

TEST_CASE("parameters, ties and flops of published models are PyTorch's") {
  const json golden = json::parse(std::ifstream(kGolden / "full_models.json"));
  REQUIRE(golden["models"].size() == 26);
  const Workload w{1, golden["seq_len"], 2};
  for (const auto& [name, row] : golden["models"].items()) {
    CAPTURE(name);
    const ModelGraph m = published(name);
    CHECK(m.parameter_count() == row["parameter_count"].get<std::int64_t>());
    CHECK(m.parameters.size() == row["parameter_tensors"].get<std::size_t>());
    std::map<std::string, const Parameter*> ours;
    for (const Parameter& p : m.parameters) ours[p.name] = &p;
    for (const json& p : row["parameters"]) {
      CAPTURE(p[0].get<std::string>());
      REQUIRE(ours.count(p[0]) == 1);
      CHECK(json(ours[p[0]]->shape) == p[1]);
      CHECK(json(ours[p[0]]->aliases) == p[2]);
    }
    if (!row.contains("linear_forward_flops")) continue;
    double linear = 0, square = 0;
    for (const Op& op : m.ops) {
      if (op.kind == OpKind::linear) linear += forward_flops(op, w);
      if (op.kind != OpKind::attention) continue;
      Op all = op;
      all.shape.causal = false;
      all.shape.window = 0;
      square += forward_flops(all, w);
    }
    CHECK(linear == row["linear_forward_flops"].get<double>());
    CHECK(square == row["attention_square_forward_flops"].get<double>());
  }
}

// As the hub has google/gemma-3-4b-pt: what equals the config class's defaults is left out.
TEST_CASE("a config that leaves out its class's defaults is the same model as one that states all") {
  json whole = json::parse(std::ifstream(kGolden / "configs" / "gemma-3-4b.json"));
  const ModelGraph full = model_from_config(whole.dump(), "config.json");
  json& text = whole["text_config"];
  text = {{"hidden_size", text["hidden_size"]},
          {"intermediate_size", text["intermediate_size"]},
          {"model_type", text["model_type"]},
          {"num_hidden_layers", text["num_hidden_layers"]},
          {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
          {"sliding_window", text["sliding_window"]}};
  whole.erase("tie_word_embeddings");
  const ModelGraph sparse = model_from_config(whole.dump(), "config.json");
  CHECK(sparse.digest() == full.digest());
  CHECK(sparse.max_seq_len == full.max_seq_len);
}

TEST_CASE("heads of keys and values that a config does not state are as many as its class says") {
  // transformers 5.23: Config(num_attention_heads=32).num_key_value_heads; null: as many as heads, where the class
  // takes it.
  for (const auto& [family, silent] : std::map<std::string, std::int64_t>{{"llama", 32},
                                                                          {"mistral", 8},
                                                                          {"mixtral", 8},
                                                                          {"qwen2", 32},
                                                                          {"qwen3", 32},
                                                                          {"qwen3_moe", 4},
                                                                          {"qwen2_5_vl_text", 8},
                                                                          {"olmoe", 32},
                                                                          {"olmo2", 32},
                                                                          {"granite", 32},
                                                                          {"phi3", 32},
                                                                          {"gemma2", 4},
                                                                          {"gemma3_text", 4}}) {
    CAPTURE(family);
    json config = {{"model_type", family},    {"vocab_size", 64},       {"hidden_size", 4096},
                   {"intermediate_size", 64}, {"num_hidden_layers", 1}, {"num_attention_heads", 32}};
    if (family.starts_with("mixtral") || family.ends_with("moe"))
      config.update({{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 64}});
    const auto kv_heads = [&] {
      for (const Op& op : model_from_config(config.dump(), "config.json").ops)
        if (op.kind == OpKind::attention) return op.shape.kv_heads;
      return std::int64_t{0};
    };
    CHECK(kv_heads() == silent);
    config["num_key_value_heads"] = nullptr;
    CHECK(kv_heads() == 32);
  }
}
