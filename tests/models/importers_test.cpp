// Importers against PyTorch: what tests/torch/record_models.py saw of the models that transformers builds from the same
// configs.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/catalog.h"

using namespace fsdp;
using nlohmann::json;

namespace {

std::vector<std::filesystem::path> goldens() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(FSDP_TESTS_DIR "/torch/golden/families"))
    out.push_back(entry.path());
  return out;
}

json read(const std::filesystem::path& path) { return json::parse(std::ifstream(path)); }

double flops(const ModelGraph& m, const Workload& w, OpKind kind, double (*count)(const Op&, const Workload&)) {
  double sum = 0;
  for (const Op& op : m.ops) sum += op.kind == kind ? count(op, w) : 0;
  return sum;
}

}  // namespace

TEST_CASE("modules, parameters, order of forward and flops are those of PyTorch") {
  REQUIRE(goldens().size() == 37);
  for (const auto& path : goldens()) {
    CAPTURE(path.string());
    const json golden = read(path);
    const ModelGraph m = model_from_config(golden["config"].dump(), "config.json");
    CHECK(m.parameter_count() == golden["parameter_count"].get<std::int64_t>());

    json modules = json::array(), parameters = json::array(), order = json::array();
    for (const Module& x : m.modules) modules.push_back({x.name, x.class_name});
    for (const Parameter& p : m.parameters)
      parameters.push_back({{"name", p.name}, {"shape", p.shape}, {"aliases", p.aliases}});
    std::set<std::int32_t> owners;
    for (const Parameter& p : m.parameters) owners.insert(p.modules.begin(), p.modules.end());
    // A module is called before its children.
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(m.ops.size()); ++i)
      for (const std::int32_t owner : owners) {
        const Module& called = m.modules[static_cast<std::size_t>(owner)];
        if (called.op_begin == i && called.op_end > i) order.push_back(called.name);
      }
    CHECK(modules == golden["modules"]);
    CHECK(parameters == golden["parameters"]);
    CHECK(order == golden["run"]["forward_order"]);

    // PyTorch's counter sees the whole square of scores; we count the causal half of it, and with a window of 16 of 24
    // positions pairs (24^2 - 8^2) / 2 of 24^2, of 8 positions (24^2 - 16^2) / 2. Gemma and gpt-oss have both kinds of
    // layers.
    const Workload w{golden["run"]["sequences"], golden["run"]["seq_len"], 4};
    const double square = golden["run"]["attention_square_forward_flops"], wide = (576.0 - 64) / 1152,
                 narrow = (576.0 - 256) / 1152;
    const std::map<std::string, double> windowed = {{"mistral.json", wide},
                                                    {"phi3.json", wide},
                                                    {"gemma2.json", (wide + 0.5) / 2},
                                                    {"gemma3_text.json", (6 * narrow + 0.5) / 7},
                                                    {"gpt_oss.json", (2 * wide + 0.5) / 3},
                                                    {"gpt_oss_tied_no_bias.json", (narrow + 0.5) / 2}};
    const auto share = windowed.find(path.filename().string());
    // 48 tokens with 2 choices of 4 experts, or 3 of 6, or of 8: a whole number of slots each at capacity factor 1.
    const auto products = [&](double (*count)(const Op&, const Workload&)) {
      return flops(m, w, OpKind::linear, count) + flops(m, w, OpKind::expert_linear, count);
    };
    CHECK(products(forward_flops) == golden["run"]["linear_forward_flops"].get<double>());
    CHECK(products(backward_flops) == golden["run"]["linear_backward_flops"].get<double>());
    CHECK(flops(m, w, OpKind::attention, forward_flops) ==
          doctest::Approx(square * (share != windowed.end() ? share->second : 0.5)));
  }
}

TEST_CASE("what a config says of attention reaches the op") {
  const auto attention = [](const ModelGraph& m, int which) {
    for (const Op& op : m.ops) {
      if (op.kind == OpKind::attention && which-- == 0) return op.shape;
    }
    return OpShape{};
  };
  const OpShape llama = attention(load_model("llama3-8b"), 0);
  CHECK(llama.heads == 32);
  CHECK(llama.kv_heads == 8);
  CHECK(llama.head_dim == 128);
  CHECK(llama.causal);
  CHECK_FALSE(llama.packed);
  CHECK(attention(load_model("mistral-7b"), 31).window == 4096);
  CHECK(attention(load_model("qwen2.5-7b"), 0).window ==
        0);  // sliding_window is stated but use_sliding_window is false
  CHECK(attention(load_model("gpt2"), 0).packed);
  CHECK(attention(load_model("mpt-7b"), 0).alibi);
  CHECK_FALSE(attention(load_model("mpt-7b-bench"), 0).alibi);

  const std::string qwen =
      R"({"model_type":"qwen2","vocab_size":8,"hidden_size":8,"intermediate_size":8,"num_hidden_layers":3,
    "num_attention_heads":2,"num_key_value_heads":2,"sliding_window":5,"use_sliding_window":true,"max_window_layers":2)";
  CHECK(attention(model_from_config(qwen + "}", "q"), 1).window == 0);
  CHECK(attention(model_from_config(qwen + "}", "q"), 2).window == 5);
  const ModelGraph listed =
      model_from_config(qwen + R"(,"layer_types":["sliding_attention","full_attention","full_attention"]})", "q");
  CHECK(attention(listed, 0).window == 5);
  CHECK(attention(listed, 2).window == 0);
}

TEST_CASE("rope_theta is found where the files of each transformers generation keep it") {
  const std::string start =
      R"({"model_type":"llama","vocab_size":8,"hidden_size":8,"intermediate_size":8,"num_hidden_layers":1,"num_attention_heads":2)";
  const auto theta = [&](const std::string& more) {
    for (const Op& op : model_from_config(start + more + "}", "c").ops) {
      if (op.kind == OpKind::rotary) return op.shape.theta;
    }
    return 0.0;
  };
  CHECK(theta("") == 10000.0);
  CHECK(theta(R"(,"rope_theta":500000.0)") == 500000.0);
  CHECK(theta(R"(,"rope_parameters":{"rope_theta":7.5,"rope_type":"default"})") == 7.5);
  CHECK(theta(R"(,"rope_theta":9.0,"rope_scaling":{"factor":8.0,"rope_type":"llama3"})") == 9.0);
  // As transformers 5.23 reads them: the place inside counts, rope_scaling before rope_parameters unless it is empty.
  CHECK(theta(R"(,"rope_theta":9.0,"rope_parameters":{"rope_theta":7.5})") == 7.5);
  CHECK(theta(R"(,"rope_scaling":{"rope_theta":3.0},"rope_parameters":{"rope_theta":7.5})") == 3.0);
  CHECK(theta(R"(,"rope_scaling":{},"rope_parameters":{"rope_theta":7.5})") == 7.5);
}
