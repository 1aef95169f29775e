// Wrap policies against PyTorch's own (tests/torch/record_wrap.py -> tests/torch/golden/wrap.json) and by hand.
#include "planner/wrap.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "models/input/error.h"
#include "planner/plan/naive_plan.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

// The module tree that PyTorch saw; it has no ops.
ModelGraph tree(const nlohmann::json& json) {
  ModelGraph model;
  for (const auto& m : json.at("modules")) {
    Module module;
    module.name = m.at("name");
    module.class_name = m.at("class");
    module.parent = m.at("parent");
    module.container = m.at("container");
    model.modules.push_back(module);
  }
  for (const auto& p : json.at("parameters")) {
    Parameter parameter;
    parameter.name = p.at("name");
    parameter.shape = p.at("shape").get<std::vector<std::int64_t>>();
    parameter.modules = p.at("modules").get<std::vector<std::int32_t>>();
    model.parameters.push_back(parameter);
  }
  return model;
}

bool within(const std::string& module, const std::vector<std::string>& ignored) {
  return std::any_of(ignored.begin(), ignored.end(),
                     [&](const std::string& i) { return module == i || module.starts_with(i + "."); });
}

// PyTorch wraps a match even if inner matches have taken all its parameters, or they are ignored; it holds nothing
// then, and we leave it out.
std::vector<std::string> holding_parameters(const std::vector<std::string>& wrapped, const ModelGraph& model,
                                            const std::vector<std::string>& ignored) {
  std::set<std::string> all(wrapped.begin(), wrapped.end()), holding;
  for (const Parameter& p : model.parameters) {
    if (std::any_of(p.modules.begin(), p.modules.end(),
                    [&](std::int32_t m) { return within(model.modules[m].name, ignored); }))
      continue;
    for (std::int32_t m : p.modules) {
      while (m > 0 && !all.contains(model.modules[m].name)) m = model.modules[m].parent;
      holding.insert(model.modules[m].name);
    }
  }
  std::vector<std::string> kept;
  for (const std::string& w : wrapped) {
    if (holding.contains(w)) kept.push_back(w);
  }
  return kept;
}

std::vector<std::string> singles(const std::vector<Unit>& units) {  // without the root
  std::vector<std::string> names;
  for (std::size_t u = 0; u + 1 < units.size(); ++u) {
    REQUIRE(units[u].modules.size() == 1);
    names.push_back(units[u].modules.front());
  }
  return names;
}

std::vector<std::vector<std::string>> lists(const std::vector<Unit>& units) {
  std::vector<std::vector<std::string>> all;
  for (const Unit& u : units) all.push_back(u.modules);
  return all;
}

using Lists = std::vector<std::vector<std::string>>;

std::string message(auto&& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "(accepted)";
}

}  // namespace

TEST_CASE("policies choose the modules that PyTorch's choose, in their order and with their settings") {
  std::ifstream file(FSDP_TESTS_DIR "/torch/golden/wrap.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::map<std::string, ModelGraph> trees;
  for (const auto& [name, json] : golden.at("trees").items()) trees[name] = tree(json);
  REQUIRE(golden.at("cases").size() > 300);
  int dropped = 0, containers = 0, settings = 0;
  for (const auto& c : golden.at("cases")) {
    const ModelGraph& model = trees.at(c.at("tree"));
    const std::string name = c.at("tree"), policy = c.at("policy");
    const auto ignored = c.value("ignored", std::vector<std::string>{});
    CAPTURE(name);
    CAPTURE(policy);
    CAPTURE(ignored.size());
    const auto wrapped = c.at("wrapped").get<std::vector<std::string>>();
    // A container that PyTorch would wrap could never be gathered: refused.
    if (std::any_of(wrapped.begin(), wrapped.end(),
                    [&](const std::string& w) { return model.modules[model.find_module(w)].container; })) {
      CHECK(message([&] { (void)wrap(model, policy, "test", ignored); }).find("has no forward of its own") !=
            std::string::npos);
      ++containers;
      continue;
    }
    const std::vector<std::string> expected = holding_parameters(wrapped, model, ignored);
    dropped += expected.size() != wrapped.size();
    const std::vector<Unit> units = wrap(model, policy, "test", ignored);
    CHECK(singles(units) == expected);
    CHECK(units.back().modules == std::vector<std::string>{""});
    for (const Unit& u : units) {
      const auto set = c.value("reshard", std::map<std::string, std::string>{});
      const auto found = set.find(u.modules.front());
      CHECK(u.reshard_after_forward ==
            (found == set.end() ? Reshard::automatic : parse_reshard(found->second, "golden")));
      settings += found != set.end();
    }
  }
  CHECK(dropped > 0);  // the golden has such cases
  CHECK(containers > 0);
  CHECK(settings > 20);
}

TEST_CASE("block policies make units of so many blocks, and the root") {
  const ModelGraph model = small_llama({.layers = 5});
  CHECK(
      lists(wrap(model, "block", "test")) ==
      Lists{{"model.layers.0"}, {"model.layers.1"}, {"model.layers.2"}, {"model.layers.3"}, {"model.layers.4"}, {""}});
  CHECK(lists(wrap(model, "block:2", "test")) ==
        Lists{{"model.layers.0", "model.layers.1"}, {"model.layers.2", "model.layers.3"}, {"model.layers.4"}, {""}});
  CHECK(lists(wrap(model, "block:5", "test")).size() == 2);
  CHECK(lists(wrap(model, "root", "test")) == Lists{{""}});
}

TEST_CASE("titan: embedding, blocks, norm + head kept after forward; tied weights in one unit") {
  const std::vector<Unit> units = wrap(small_llama({.layers = 2}), "titan", "test");
  CHECK(lists(units) ==
        Lists{{"model.embed_tokens"}, {"model.layers.0"}, {"model.layers.1"}, {"model.norm", "lm_head"}, {""}});
  CHECK(units[3].reshard_after_forward == Reshard::no);
  CHECK(units[0].reshard_after_forward == Reshard::automatic);
  CHECK(lists(wrap(small_llama({.layers = 2, .tied = true}), "titan", "test")) ==
        Lists{{"model.layers.0"}, {"model.layers.1"}, {"model.embed_tokens", "model.norm", "lm_head"}, {""}});
}

TEST_CASE("every policy's plan passes check on every family, units in execution order") {
  const ModelGraph models[] = {
      small_llama(), small_llama({.tied = true}),
      model_from_config(
          R"({"model_type": "gpt2", "vocab_size": 50, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"})",
          "gpt2")};
  for (const ModelGraph& model : models) {
    for (const char* policy : {"block", "block:2", "root", "titan", "params:200", "params:500", "params:2000"}) {
      CAPTURE(model.name);
      CAPTURE(policy);
      ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 8});
      plan.units = wrap(model, policy, "test");
      const bool tied = std::any_of(model.parameters.begin(), model.parameters.end(),
                                    [](const Parameter& p) { return p.modules.size() > 1; });
      // A size policy does not know of tied weights: where it takes one of the two modules, `check` refuses it, as
      // PyTorch does.
      if (tied && std::string(policy).starts_with("params")) continue;
      CHECK(message([&] { check(plan, model); }) == "(accepted)");
      std::int32_t last = 0;
      for (const Unit& u : plan.units) {
        std::int32_t end = 0;
        for (const std::string& m : u.modules) end = std::max(end, model.modules[model.find_module(m)].op_end);
        CHECK(end >= last);
        last = end;
      }
    }
  }
}

TEST_CASE("class policy: units come in execution order, not in registration order") {
  // LlamaDecoderLayer registers self_attn, mlp and then its norms; it runs norm, self_attn, norm, mlp.
  const ModelGraph model = small_llama({.layers = 1});
  const std::string norm = model.modules[model.find_module("model.norm")].class_name;
  CHECK(lists(wrap(model, "class:" + norm, "test")) ==
        Lists{{"model.layers.0.input_layernorm"}, {"model.layers.0.post_attention_layernorm"}, {"model.norm"}, {""}});
}

TEST_CASE("bad policies are refused with what there is") {
  const ModelGraph model = small_llama();
  for (const char* bad : {"",
                          "blocks",
                          "block:",
                          "block:0",
                          "block:-1",
                          "block:9",
                          "block:1.5",
                          "block:x",
                          "block:1x",
                          "block:99999999999999999999",
                          "params",
                          "params:",
                          "params:0",
                          "params:nan",
                          "params:inf",
                          "params:-1",
                          "params:0.5",
                          "class",
                          "class:",
                          "class:,",
                          "class:Nope",
                          "root:1",
                          "titan:2",
                          "class:ModuleList",
                          "|",
                          "block|",
                          "root|block",
                          "block:2|params:10",
                          "class:LlamaMLP=false|block",
                          "class:LlamaMLP=maybe",
                          "class:LlamaMLP,LlamaMLP",
                          "class:=true",
                          "params:10;",
                          "params:10;leaf",
                          "params:10;leaf=Nope",
                          "params:10;size=3",
                          "params:10;exclude=,",
                          ";",
                          "params:;leaf=LlamaMLP"}) {
    CAPTURE(bad);
    CHECK(message([&] { (void)wrap(model, bad, "--wrap"); }).starts_with("--wrap: "));
  }
  CHECK(message([&] { (void)wrap(model, "class:Nope", "--wrap"); }).find("LlamaDecoderLayer") != std::string::npos);
  CHECK(message([&] { (void)wrap(model, "sizes", "--wrap"); }).find("params:1e8") != std::string::npos);
  CHECK(message([&] { (void)wrap(model, "block", "--wrap", {"nope"}); }) ==
        "(accepted)");  // not PyTorch's: counts nothing
  CHECK(message([&] { (void)wrap(model, "params:10", "--wrap", {"nope"}); }).find("no module is named 'nope'") !=
        std::string::npos);
  CHECK(wrap(model, "params:1e3", "--wrap") == wrap(model, "params:1000", "--wrap"));
}

TEST_CASE("activation checkpointing policies") {
  const ModelGraph model = small_llama({.layers = 5});
  using Names = std::vector<std::string>;
  CHECK(checkpointed_modules(model, "none", "x").empty());
  CHECK(checkpointed_modules(model, "full", "x").size() == 5);
  ShardingPlan plan;
  set_checkpointing(plan, model, "selective-op", "x");
  CHECK(plan.checkpointed.size() == 5);
  CHECK(plan.checkpoint_policy == CheckpointPolicy::selective_op);
  set_checkpointing(plan, model, "every-2", "x");
  CHECK(plan.checkpointed.size() == 3);
  CHECK(plan.checkpoint_policy == CheckpointPolicy::full);
  CHECK(checkpointed_modules(model, "every-2", "x") == Names{"model.layers.0", "model.layers.2", "model.layers.4"});
  CHECK(checkpointed_modules(model, "last-of-2", "x") == Names{"model.layers.1", "model.layers.3"});
  CHECK(checkpointed_modules(model, "last-of-5", "x") == Names{"model.layers.4"});
  CHECK(checkpointed_modules(model, "first-2", "x") == Names{"model.layers.0", "model.layers.1"});
  CHECK(checkpointed_modules(model, "class:LlamaMLP:first-2", "x") ==
        Names{"model.layers.0.mlp", "model.layers.1.mlp"});
  CHECK(checkpointed_modules(model, "first-1|class:LlamaMLP:first-2", "x") ==
        Names{"model.layers.0", "model.layers.1.mlp"});  // a module inside another one goes with it
  CHECK(checkpointed_modules(model, "first-4|class:LlamaMLP", "x").back() == "model.layers.4.mlp");
  set_checkpointing(plan, model, "selective-op:first-3", "x");
  CHECK(plan.checkpointed == Names{"model.layers.0", "model.layers.1", "model.layers.2"});
  CHECK(plan.checkpoint_policy == CheckpointPolicy::selective_op);
  for (const char* policy : {"none", "full", "every-2", "first-3", "selective-op", "selective-op:first-3",
                             "selective-op:every-2", "last-of-2", "reentrant", "reentrant:first-3", "class:LlamaMLP",
                             "class:LlamaMLP:first-3", "first-2|class:LlamaAttention"}) {
    CAPTURE(policy);
    set_checkpointing(plan, model, policy, "x");
    CHECK(checkpointing_policy(plan, model) == policy);
  }
  for (const char* bad : {"class:",
                          "class:Nope",
                          "class:LlamaMLP:first-6",
                          "class:LlamaMLP:none",
                          "class:ModuleList",
                          "selective-op:full",
                          "selective-op|full",
                          "selective-opfirst-2",
                          "none|full",
                          "full|",
                          "",
                          "all",
                          "every-",
                          "last-of-",
                          "last-of-0",
                          "last-of-6",
                          "last-2",
                          "every-0",
                          "every-6",
                          "first-6",
                          "first--1",
                          "every-1.5",
                          "selective"}) {
    CAPTURE(bad);
    CHECK(message([&] {
            (void)checkpointed_modules(model, bad, "--activation-checkpointing");
          }).starts_with("--activation-checkpointing: "));
  }
}
