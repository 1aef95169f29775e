// ModelGraph: counts of work against closed forms, and every invariant refused when it is broken.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "models/catalog.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "tests/support/small_models.h"

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
  // nanoGPT's count for GPT-2: 6 N with N = parameters without positions (the tied table counts as the head's), less
  // what is no matrix: biases and norms. Per block 12 * 768^2 weights.
  CHECK(model_flops_per_token(m, 1024) == 6.0 * (12 * 12.0 * 768 * 768 + 50257.0 * 768) + 12.0 * 12 * 768 * 1024);
}

TEST_CASE("model flops: a token sees no further than its window, and a frozen model has no backward") {
  const ModelGraph mistral = load_model("mistral-7b");  // 32 layers, window 4,096, width 4,096
  const double attention = 12.0 * 32 * 4096;
  const double matmuls = model_flops_per_token(mistral, 1024) - attention * 1024;
  CHECK(model_flops_per_token(mistral, 4096) == matmuls + attention * 4096);
  CHECK(model_flops_per_token(mistral, 65536) == matmuls + attention * 4096);
  // Trained from the last block's end on: of all before, the forward alone.
  const std::vector<std::string> before = {"model"};
  const ModelGraph head = freeze(load_model("llama3-8b"), before, "test");
  const double all = 6.0 * (8'030'261'248.0 - 128'256.0 * 4096 - 65.0 * 4096), of_head = 128'256.0 * 4096;
  CHECK(model_flops_per_token(head, 4096) == (all / 6 - of_head) * 2 + of_head * 4 + 4.0 * 32 * 32 * 128 * 4096);
}

TEST_CASE("latent attention: heads of values are narrower than those of queries") {
  const Op op{
      OpKind::attention, 0, {}, {}, {}, {.heads = 2, .kv_heads = 2, .head_dim = 6, .rotated = 2, .v_head_dim = 4}};
  CHECK(forward_flops(op, {1, 10, 2}) == 2 * 2 * (6 + 4) * 50.0);
  CHECK(backward_flops(op, {1, 10, 2}) == doctest::Approx(2 * 2 * (3 * 6 + 2 * 4) * 50.0));
  // As the paper counts it: 37 billion parameters are at work for a token, and 61 layers of 128 heads attend.
  const double attention = 6.0 * 61 * 128 * (192 + 128);
  CHECK(model_flops_per_token(load_model("deepseek-v3"), 4096) - attention * 4096 ==
        doctest::Approx(6 * 37e9).epsilon(0.02));
}

TEST_CASE("a window leaves out the far triangle") {
  Op op{OpKind::attention, 0, {}, {}, {}, {.heads = 1, .kv_heads = 1, .head_dim = 1, .window = 3}};
  // Query i of 0..9 sees min(i + 1, 3) keys: 1 + 2 + 3 * 8 = 27 pairs. In the continuous count that "half of the
  // square" is: (100 - 49) / 2 = 25.5; 4 flops per pair.
  CHECK(forward_flops(op, {1, 10, 2}) == 4 * 25.5);
  op.shape.window = 0;
  CHECK(forward_flops(op, {1, 10, 2}) == 4 * 50.0);
  CHECK(backward_flops(op, {1, 10, 2}) == 2.5 * 4 * 50.0);
  op.shape.causal = false;
  CHECK(forward_flops(op, {1, 10, 2}) == 4 * 100.0);
}

TEST_CASE("a Llama block has the ops, parameters and shapes of its configuration") {
  const ModelGraph& m = tiny();
  const std::int32_t id = m.find_module("model.layers.1");
  REQUIRE(id >= 0);
  const Module& block = m.modules[static_cast<std::size_t>(id)];
  CHECK(block.block);
  CHECK(block.class_name == "LlamaDecoderLayer");
  std::string kinds;
  for (std::int32_t i = block.op_begin; i < block.op_end; ++i)
    kinds += std::string(name(m.ops[static_cast<std::size_t>(i)].kind)) + " ";
  CHECK(kinds ==
        "rms_norm linear linear linear rotary rotary attention linear add rms_norm linear linear swiglu linear add ");
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

TEST_CASE("a mixture of experts: slots, work, and what a token uses of it") {
  const ModelGraph m = load_model("mixtral-8x7b");
  const auto find = [&m](OpKind kind) -> const Op& { return m.ops[static_cast<std::size_t>(op_of(m, kind))]; };
  std::string kinds;
  const Module& block = m.modules[static_cast<std::size_t>(m.find_module("model.layers.3.mlp"))];
  for (std::int32_t i = block.op_begin; i < block.op_end; ++i)
    kinds += std::string(name(m.ops[static_cast<std::size_t>(i)].kind)) + " ";
  CHECK(kinds == "linear moe_route moe_dispatch expert_linear swiglu expert_linear moe_combine ");
  // 4096 tokens with 2 of 8 experts: 1024 slots each.
  const Workload w{1, 4096, 2};
  const Op& up = find(OpKind::expert_linear);
  CHECK(elements(m.tensors[static_cast<std::size_t>(up.outputs[0])], w) == 8 * 1024 * 2 * 14336);
  CHECK(forward_flops(up, w) == 2.0 * 8 * 1024 * 4096 * 2 * 14336);
  CHECK(backward_flops(up, w) == 2 * forward_flops(up, w));
  // Active: 32 layers of q, o (2 * 4096^2), k, v (2 * 4096 * 1024), the router and 2 experts of 3 * 4096 * 14336; the
  // head.
  const double active = 32.0 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 2.0 * 3 * 4096 * 14336) + 32000.0 * 4096;
  CHECK(model_flops_per_token(m, 4096) == 6 * active + 12.0 * 32 * 32 * 128 * 4096);
  CHECK(active / 1e9 == doctest::Approx(12.75).epsilon(0.001));  // "12.9B active", with the embedding
  // More room is more work, of which a token does not use more.
  ModelGraph roomy = model_from_config(
      R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "capacity_factor": 1.25})",
      "roomy");
  CHECK(roomy.digest() != m.digest());
  CHECK(forward_flops(roomy.ops[static_cast<std::size_t>(op_of(roomy, OpKind::expert_linear))], w) ==
        1.25 * forward_flops(up, w));
  CHECK(model_flops_per_token(roomy, 4096) == model_flops_per_token(m, 4096));
}

TEST_CASE("freezing everything below the experts leaves no gradient in front of them, and ids have none ever") {
  const ModelGraph m = load_model("tiny-mixtral");
  const std::vector<std::string> names = {"model.embed_tokens", "model.layers.0.self_attn",
                                          "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
                                          "model.layers.0.mlp.gate"};
  const ModelGraph frozen = freeze(m, names, "test");
  CHECK_NOTHROW(check_graph(frozen, "test"));
  const Op& route = frozen.ops[static_cast<std::size_t>(op_of(frozen, OpKind::moe_route))];
  CHECK_FALSE(frozen.tensors[static_cast<std::size_t>(route.outputs[0])].requires_grad);
  const Op& up = frozen.ops[static_cast<std::size_t>(op_of(frozen, OpKind::expert_linear))];
  CHECK_FALSE(frozen.tensors[static_cast<std::size_t>(up.inputs[0])].requires_grad);
  CHECK(frozen.tensors[static_cast<std::size_t>(up.outputs[0])].requires_grad);
  for (const Tensor& t : freeze(m, {}, "test").tensors) CHECK((t.kind != TensorKind::ids || !t.requires_grad));
}

TEST_CASE("gpt-oss keeps which expert a row is of for the gradients of biases, while one of them is trained") {
  const ModelGraph model = small_gpt_oss(2);
  const Workload w{2, 16, 2};
  const auto kept = [&](const std::vector<std::string>& frozen) {
    const ModelGraph partly = freeze(model, frozen, "t");
    std::vector<std::int64_t> bytes;
    for (const Op& op : partly.ops)
      if (op.kind == OpKind::moe_dispatch) bytes.push_back(facts(hf_implementation(false), op, w).saved_extra_bytes);
    return bytes;
  };
  const std::string experts = "model.layers.0.mlp.experts.";
  const std::int64_t ids = 2 * 16 * 2 * 8, without = 2 * ids + 4 * 4, with = without + ids;
  CHECK(kept({}) == std::vector{with, with});
  CHECK(kept({experts + "gate_up_proj_bias"}) == std::vector{with, with});
  CHECK(kept({experts + "gate_up_proj_bias", experts + "down_proj_bias"}) == std::vector{without, with});
}

TEST_CASE("check_graph refuses every broken promise of a mixture of experts") {
  const auto op = [](ModelGraph& g, OpKind kind) -> Op& { return g.ops[static_cast<std::size_t>(op_of(g, kind))]; };
  const auto made = [&](ModelGraph& g, OpKind kind, std::size_t k) -> Tensor& {
    return g.tensors[static_cast<std::size_t>(op(g, kind).outputs[k])];
  };
  const std::pair<const char*, std::function<void(ModelGraph&)>> breaks[] = {
      {"top_k must be 1", [&](ModelGraph& g) { op(g, OpKind::moe_route).shape.experts.top_k = 5; }},
      {"top_k must be 1", [&](ModelGraph& g) { op(g, OpKind::moe_route).shape.experts.count = -4; }},
      {"capacity_factor must be positive",
       [&](ModelGraph& g) { op(g, OpKind::moe_combine).shape.experts.capacity_factor = 0; }},
      {"needs experts", [&](ModelGraph& g) { op(g, OpKind::moe_dispatch).shape.experts = {}; }},
      {"has no experts", [&](ModelGraph& g) { op(g, OpKind::rms_norm).shape.experts = {.count = 4, .top_k = 2}; }},
      {"inputs do not match", [&](ModelGraph& g) { op(g, OpKind::expert_linear).shape.experts.capacity_factor = 1; }},
      {"outputs do not match", [&](ModelGraph& g) { made(g, OpKind::moe_route, 1).kind = TensorKind::activation; }},
      {"ids have no gradient", [&](ModelGraph& g) { made(g, OpKind::moe_route, 1).requires_grad = true; }},
      {"outputs do not match", [&](ModelGraph& g) { made(g, OpKind::moe_dispatch, 0).experts = {}; }},
      {"without experts", [&](ModelGraph& g) { made(g, OpKind::rms_norm, 0).experts.top_k = 2; }},
      {"inputs do not match", [&](ModelGraph& g) { op(g, OpKind::swiglu).shape.packed = false; }},
      {"has another shape",
       [&](ModelGraph& g) {
         g.parameters[static_cast<std::size_t>(op(g, OpKind::expert_linear).params[0])].shape[0] = 5;
       }},
      {"width 1", [](ModelGraph& g) { g.tensors[static_cast<std::size_t>(g.targets)].width = 2; }},
  };
  for (const auto& [message, change] : breaks) {
    CAPTURE(message);
    ModelGraph broken = load_model("tiny-mixtral");
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
