// ModelGraph: counts of work against closed forms, and every invariant refused when it is broken.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "models/catalog.h"
#include "models/error.h"

using namespace fsdp;

namespace {

const ModelGraph& tiny() {
  static const ModelGraph model = load_model("tiny-llama");
  return model;
}

std::int32_t op_of(const ModelGraph& m, OpKind kind) {
  for (std::size_t i = 0; i < m.ops.size(); ++i) {
    if (m.ops[i].kind == kind) return static_cast<std::int32_t>(i);
  }
  return -1;
}

}  // namespace

TEST_CASE("forward flops of Llama-3-8B are 2 per weight and token, and the causal half of the scores") {
  const ModelGraph m = load_model("llama3-8b");
  const Workload w{2, 4096, 2};
  double linear = 0, attention = 0, other = 0;
  for (const Op& op : m.ops) {
    double& sum = op.kind == OpKind::linear ? linear : op.kind == OpKind::attention ? attention : other;
    sum += forward_flops(op, w);
  }
  // Weights in products: all but the embedding (128256 * 4096) and the 65 norms of 4096.
  const double weights = 8'030'261'248.0 - 128'256.0 * 4096 - 65.0 * 4096;
  CHECK(linear == 2 * weights * 8192);
  // 32 layers * 2 sequences * 32 heads * 4 * 128 flops per pair * 4096^2 / 2 pairs.
  CHECK(attention == 32.0 * 2 * 32 * 4 * 128 * 4096 * 4096 / 2);
  CHECK(other < 0.01 * linear);
  CHECK(model_flops_per_token(m, 4096) == 6 * weights + 12.0 * 32 * 32 * 128 * 4096);
}

TEST_CASE("a tied head counts its product, once") {
  const ModelGraph m = load_model("gpt2");
  // nanoGPT's count for GPT-2: 6 N with N = parameters without positions (the tied table counts as the head's), less what is no
  // matrix: biases and norms. Per block 12 * 768^2 weights.
  CHECK(model_flops_per_token(m, 1024) == 6.0 * (12 * 12.0 * 768 * 768 + 50257.0 * 768) + 12.0 * 12 * 768 * 1024);
}

TEST_CASE("a window leaves out the far triangle") {
  Op op{OpKind::attention, 0, {}, {}, {}, {.heads = 1, .kv_heads = 1, .head_dim = 1, .window = 3}};
  // Query i of 0..9 sees min(i + 1, 3) keys: 1 + 2 + 3 * 8 = 27 pairs. In the continuous count that "half of the square" is:
  // (100 - 49) / 2 = 25.5; 4 flops per pair.
  CHECK(forward_flops(op, {1, 10, 2}) == 4 * 25.5);
  op.shape.window = 0;
  CHECK(forward_flops(op, {1, 10, 2}) == 4 * 50.0);
  CHECK(backward_flops(op, {1, 10, 2}) == 2.5 * 4 * 50.0);
  op.shape.causal = false;
  CHECK(forward_flops(op, {1, 10, 2}) == 4 * 100.0);
}

TEST_CASE("the graph of a Llama block") {
  const ModelGraph& m = tiny();
  const std::int32_t id = m.find_module("model.layers.1");
  REQUIRE(id >= 0);
  const Module& block = m.modules[static_cast<std::size_t>(id)];
  CHECK(block.block);
  CHECK(block.class_name == "LlamaDecoderLayer");
  std::string kinds;
  for (std::int32_t i = block.op_begin; i < block.op_end; ++i)
    kinds += std::string(name(m.ops[static_cast<std::size_t>(i)].kind)) + " ";
  CHECK(kinds == "rms_norm linear linear linear rotary rotary attention linear add rms_norm linear linear swiglu linear add ");
  CHECK(m.modules[static_cast<std::size_t>(m.find_module("model.layers"))].container);
  const Module& rotary = m.modules[static_cast<std::size_t>(m.find_module("model.rotary_emb"))];
  CHECK(rotary.op_begin == rotary.op_end);
  CHECK(m.find_module("model.layers.4") == -1);
  CHECK(m.ops.back().module == -1);
}

TEST_CASE("digests change with what decides a result, and with nothing else") {
  ModelGraph m = tiny();
  m.name = "another";
  m.max_seq_len = 7;
  CHECK(m.digest() == tiny().digest());
  const std::function<void(ModelGraph&)> changes[] = {
      [](ModelGraph& g) { g.ops[1].shape.eps = 1e-6; },
      [](ModelGraph& g) { g.parameters[0].shape[0] += 1; },
      [](ModelGraph& g) { g.parameters[0].aliases.push_back("lm_head.weight"); },
      [](ModelGraph& g) { g.modules[3].block = true; },
      [](ModelGraph& g) { std::swap(g.ops[2].inputs, g.ops[5].inputs); },
      [](ModelGraph& g) { g.tensors[4].width *= 2; },
      [](ModelGraph& g) { g.parameters[1].trainable = false; },
  };
  for (const auto& change : changes) {
    ModelGraph changed = tiny();
    change(changed);
    CHECK(changed.digest() != tiny().digest());
  }
}

TEST_CASE("check_graph refuses every broken promise") {
  CHECK_NOTHROW(check_graph(tiny(), "t"));
  const auto op = [](ModelGraph& g, OpKind kind) -> Op& { return g.ops[static_cast<std::size_t>(op_of(g, kind))]; };
  const std::pair<const char*, std::function<void(ModelGraph&)>> breaks[] = {
      {"the root", [](ModelGraph& g) { g.modules[0].name = "root"; }},
      {"two modules", [](ModelGraph& g) { g.modules[5].name = g.modules[4].name; }},
      {"is no child of", [](ModelGraph& g) { g.modules[5].name = "elsewhere"; }},
      {"before its parent", [](ModelGraph& g) { g.modules[2].parent = 9; }},
      {"has a dimension of 0", [](ModelGraph& g) { g.parameters[3].shape[0] = 0; }},
      {"overflows", [](ModelGraph& g) { g.parameters[3].shape[0] = std::int64_t{1} << 60; }},
      {"has no dimension", [](ModelGraph& g) { g.parameters[3].shape.clear(); }},
      {"named_parameters() order", [](ModelGraph& g) { std::swap(g.parameters[3], g.parameters[4]); }},
      {"one owner per name", [](ModelGraph& g) { g.parameters[3].aliases.push_back("x"); }},
      {"last op must be the loss", [](ModelGraph& g) { g.ops.pop_back(); }},
      {"nobody has made yet", [](ModelGraph& g) { std::swap(g.ops[3], g.ops[8]); }},
      {"exists already", [](ModelGraph& g) { g.ops[3].outputs = g.ops[2].outputs; }},
      {"another module", [&](ModelGraph& g) { op(g, OpKind::linear).params = {0}; }},
      {"has another shape",
       [&](ModelGraph& g) {
         g.parameters[static_cast<std::size_t>(op(g, OpKind::linear).params[0])].shape = {128, 127};
       }},
      {"inputs do not match", [&](ModelGraph& g) { op(g, OpKind::swiglu).shape.width -= 1; }},
      {"kv_heads must divide", [&](ModelGraph& g) { op(g, OpKind::attention).shape.kv_heads = 3; }},
      {"even head_dim", [&](ModelGraph& g) { op(g, OpKind::rotary).shape.head_dim = 33; }},
      {"its ops are not exactly", [](ModelGraph& g) { g.modules[4].op_end += 1; }},
      {"ids and targets", [](ModelGraph& g) { g.targets = 10'000; }},
      {"wrong module", [](ModelGraph& g) { g.ops[2].module = 10'000; }},
  };
  for (const auto& [message, change] : breaks) {
    CAPTURE(message);
    ModelGraph broken = tiny();
    change(broken);
    std::string said;
    try {
      check_graph(broken, "t");
    } catch (const InputError& e) {
      said = e.what();
    }
    CAPTURE(said);
    CHECK(said.find(message) != std::string::npos);
  }
}
