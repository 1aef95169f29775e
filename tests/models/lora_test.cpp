// Adapters against peft: what tests/torch/record_lora.py saw of the models into which it puts them.
#include "models/graph/lora.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/graph/gradients.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using nlohmann::json;

namespace {

ModelGraph adapted(const ModelGraph& model, const std::string& text) {
  return add_lora(model, parse_lora(text, setting("lora")), setting("lora"));
}

std::string refusal_of(const ModelGraph& model, const std::string& text) {
  return fsdp::testing::refusal([&] { return adapted(model, text); });
}

}  // namespace

TEST_CASE("modules, parameters, what is trained, order of forward and flops are those of peft") {
  const json goldens = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/models/lora.json"));
  REQUIRE(goldens.size() == 8);
  for (const json& golden : goldens) {
    const std::string text = golden["lora"];
    CAPTURE(text);
    const ModelGraph m = adapted(model_from_config(golden["config"].dump(), "config.json"), text);
    CHECK(m.parameter_count() == golden["parameter_count"].get<std::int64_t>());

    json modules = json::array(), parameters = json::array(), order = json::array();
    for (const Module& x : m.modules) modules.push_back({x.name, x.class_name});
    for (const Parameter& p : m.parameters)
      parameters.push_back({{"name", p.name}, {"shape", p.shape}, {"aliases", p.aliases}, {"trainable", p.trainable}});
    const Workload w{golden["run"]["sequences"], golden["run"]["seq_len"], 4};
    double forward = 0, backward = 0, factor = 0;
    for (const Op& op : m.ops) {
      const std::string& name = op.module >= 0 ? m.modules[static_cast<std::size_t>(op.module)].name : "";
      if (!op.params.empty() && (order.empty() || order.back() != name)) order.push_back(name);
      if (op.kind == OpKind::scale) factor = op.shape.factor;
      if (!is_matmul(op.kind)) continue;
      // One matmul for the gradient of the input, one for the weight's.
      const Gradients needed = needed_gradients(op, m);
      const int gradients = (needed.input ? 1 : 0) + (needed.weight ? 1 : 0);
      forward += forward_flops(op, w), backward += gradients * forward_flops(op, w);
    }
    CHECK(modules == golden["modules"]);
    CHECK(parameters == golden["parameters"]);
    CHECK(order == golden["run"]["forward_order"]);
    CHECK(factor == golden["factor"].get<double>());
    const double tokens = static_cast<double>(w.tokens());
    double attention = 0;
    for (const Op& op : m.ops) {
      if (op.kind != OpKind::attention) continue;
      const std::int64_t seen = op.shape.window > 0 ? std::min(op.shape.window, w.seq_len) : w.seq_len;  // phi3's: 16
      attention += (m.tensors[static_cast<std::size_t>(op.outputs[0])].requires_grad ? 12.0 : 4.0) *
                   static_cast<double>(op.shape.heads * op.shape.head_dim * seen);
    }
    if (m.family != "mixtral")  // whose experts the counter sees apart
      CHECK(model_flops_per_token(m, w.seq_len) * tokens == doctest::Approx(forward + backward + attention * tokens));
    CHECK(forward == golden["run"]["linear_forward_flops"].get<double>());
    CHECK(backward == golden["run"]["linear_backward_flops"].get<double>());
  }
}

TEST_CASE("frozen weights in 4 bits are packed as bitsandbytes packs them, with scales as large") {
  const json goldens = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/models/four_bits.json"));
  REQUIRE(goldens.size() == 9);
  for (const json& golden : goldens) {
    const std::string text = golden["lora"];
    CAPTURE(golden["config"].dump());
    CAPTURE(text);
    const ModelGraph m = adapted(model_from_config(golden["config"].dump(), "config.json"), text);
    json modules = json::array(), parameters = json::array(), scales = json::object();
    std::int64_t frozen = 0;
    for (const Module& x : m.modules) modules.push_back({x.name, x.class_name});
    for (const Parameter& p : m.parameters) {
      parameters.push_back({{"name", p.name}, {"shape", p.shape}, {"trainable", p.trainable}});
      frozen += p.trainable ? 0 : p.numbers();
      if (p.scale_bytes > 0) scales[p.name.substr(0, p.name.rfind('.'))] = p.scale_bytes;
    }
    CHECK(modules == golden["modules"]);
    CHECK(parameters == golden["parameters"]);
    CHECK(scales == golden["scales"]);
    CHECK(frozen == golden["frozen_numbers"].get<std::int64_t>());
  }
}

TEST_CASE("the text of an adapter") {
  const LoraSpec spec = parse_lora("rank=8,alpha=16,targets=q_proj+mlp.up_proj", "--lora");
  CHECK(spec.rank == 8);
  CHECK(spec.alpha == 16.0);
  CHECK(spec.targets == std::vector<std::string>{"q_proj", "mlp.up_proj"});
  CHECK(parse_lora("8", "--lora") == LoraSpec{.rank = 8});
  CHECK(parse_lora("targets=all-linear,rank=4", "--lora") == LoraSpec{.rank = 4});
  CHECK(parse_lora("rank=4,dropout=0.1,base=nf4-double", "--lora") ==
        LoraSpec{.rank = 4, .dropout = 0.1, .base = FourBits::nf4_double});
  CHECK(parse_lora("rank=4,dropout=0", "--lora") == LoraSpec{.rank = 4});
  for (const char* bad : {"",
                          "0",
                          "-1",
                          "1.5",
                          "x",
                          "rank=",
                          "rank=1e9",
                          "rank=65537",
                          "8,",
                          "8,8",
                          "rank=8,alpha=0",
                          "rank=8,alpha=nan",
                          "rank=8,targets=",
                          "rank=8,targets=q_proj+",
                          "rank=8,dropout=1",
                          "rank=8,dropout=-0.1",
                          "rank=8,dropout=",
                          "rank=8,base=",
                          "rank=8,base=int8",
                          "rank=8,base=nf4,base=nf4",
                          "8,rank=8",
                          "rank=8,alpha=8,alpha=8",
                          "alpha=8"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS((void)parse_lora(bad, "--lora"), InputError);
  }
}

TEST_CASE("what cannot be adapted is refused by name") {
  const ModelGraph llama = small_llama({.tied = true});
  CHECK(refusal_of(llama, "rank=2,targets=q_prj") ==
        "lora: \"q_prj\" is no linear layer of small_llama; did you mean \"q_proj\", \"k_proj\" or \"v_proj\"?");
  CHECK(refusal_of(llama, "rank=2,targets=lm_head").find("shares its weight with another layer") != std::string::npos);
  CHECK(refusal_of(load_model("tiny-mixtral"), "2")
            .find("adapters of experts (model.layers.0.mlp.experts) are not modelled") != std::string::npos);
  CHECK(refusal_of(load_model("tiny-mixtral"), "rank=2,targets=gate").find("is no linear layer") != std::string::npos);
  const ModelGraph once = adapted(llama, "2");
  CHECK_THROWS_AS((void)adapted(once, "2"), InputError);
  CHECK(once.digest() != adapted(llama, "3").digest());
  CHECK(once.digest() != adapted(llama, "rank=2,alpha=4").digest());
}
