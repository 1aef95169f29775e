// The tape against eager PyTorch: which bytes are alive after each op of forward and before each op of backward, the
// peaks, and what checkpointing computes again (tests/torch/record_tape.py, torchtitan's way to write a Llama).
#include "planner/lowering/tape/tape.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/plan.h"
#include "planner/plan/naive_plan.h"
#include "planner/tensor/local_model.h"
#include "tests/support/small_models.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using namespace fsdp::testing;
using nlohmann::json;

namespace {

ModelGraph llama(const json& s) {
  const json config = {
      {"model_type", "llama"},           {"vocab_size", s["vocab"]},          {"hidden_size", s["width"]},
      {"intermediate_size", s["ffn"]},   {"num_attention_heads", s["heads"]}, {"num_key_value_heads", s["kv_heads"]},
      {"num_hidden_layers", s["layers"]}};
  return model_from_config(config.dump(), "c");
}

// A multiple of 4 tokens with 2 of 4 experts: a whole number of slots each.
ModelGraph mixtral(const json& s) {
  const json config = {{"model_type", "mixtral"},           {"vocab_size", s["vocab"]},
                       {"hidden_size", s["width"]},         {"intermediate_size", s["ffn"]},
                       {"num_attention_heads", s["heads"]}, {"num_key_value_heads", s["kv_heads"]},
                       {"num_hidden_layers", s["layers"]},  {"num_local_experts", 4},
                       {"num_experts_per_tok", 2}};
  return model_from_config(config.dump(), "c");
}

ModelGraph gpt2(const json& s) {
  const json config = {{"model_type", "gpt2"}, {"vocab_size", s["vocab"]}, {"n_embd", s["width"]},
                       {"n_head", s["heads"]}, {"n_layer", s["layers"]},   {"n_positions", s["seq_len"]}};
  return model_from_config(config.dump(), "c");
}

// The recording's names of frozen modules -> ours.
std::vector<std::string> frozen(const json& row) {
  static const std::map<std::string, std::string> names = {
      {"attention.w", "self_attn"}, {"feed_forward.w", "mlp"}, {"feed_forward", "mlp"}};
  std::vector<std::string> out;
  for (const std::string name : row.value("frozen", json::array())) {
    if (name == "tok_embeddings") out.emplace_back("model.embed_tokens");
    else if (name == "output") out.emplace_back("lm_head.weight");
    else if (name.size() == 8) out.push_back("model." + name);
    else out.push_back("model." + name.substr(0, 9) + names.at(name.substr(9)));
  }
  return out;
}

// torchtitan without what a kernel allocates inside itself, which the recorder cannot see.
OpFacts embedding_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(torchtitan_implementation(false), op, w);
  f.backward_scratch_bytes = 0;
  return f;
}
const Implementation& torchtitan_of_2025(bool compiled) {
  return find_implementation("torchtitan-2025", compiled, "test");
}
template <const Implementation& (*Of)(bool)>
OpFacts attention_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(Of(false), op, w);
  f.backward_scratch_bytes -= w.tokens() * op.shape.heads * 4 * (1 + op.shape.head_dim);  // delta and dq in fp32
  if (f.saved_inputs == 0b111) f.backward_scratch_bytes = 0;                              // dk and dv of all heads, too
  return f;
}
Implementation seen_from_outside(bool repeat, bool early_stop) {
  Implementation i = repeat ? torchtitan_of_2025(false) : torchtitan_implementation(false);
  i.rules[static_cast<std::size_t>(OpKind::embedding)] = embedding_outside;
  i.rules[static_cast<std::size_t>(OpKind::rms_norm)] =
      torchtitan_implementation(false).rules[static_cast<std::size_t>(OpKind::rms_norm)];
  i.rules[static_cast<std::size_t>(OpKind::attention)] =
      repeat ? attention_outside<torchtitan_of_2025> : attention_outside<torchtitan_implementation>;
  i.recompute_stops_early = early_stop;
  return i;
}

// "1.swiglu" -> graph op.
std::int32_t op_named(const std::string& label, std::int32_t layers) {
  static const std::map<std::string, std::int32_t> in_block = {{"v_proj", 3}, {"rotary", 5},  {"attention", 6},
                                                               {"add_1", 8},  {"swiglu", 12}, {"add_2", 14}};
  if (label == "embedding") return 0;
  if (label == "norm") return 1 + 15 * layers;
  if (label == "head") return 2 + 15 * layers;
  return 1 + 15 * std::stoi(label.substr(0, label.find('.'))) + in_block.at(label.substr(label.find('.') + 1));
}

// What the recorder counts while backward runs: recomputed ops, and the matrix products of backward.
std::map<std::string, int> counted(const Tape& tape, const ModelGraph& model) {
  std::map<std::string, int> n;
  for (const TapeOp& op : tape.ops) {
    if (op.graph_op < 0) continue;
    const OpKind kind = model.ops[at(op.graph_op)].kind;
    if (op.action == Action::recompute) {
      if (kind == OpKind::linear) ++n["aten.mm.default"];
      if (kind == OpKind::swiglu) ++n["aten.silu.default"];
      if (kind == OpKind::attention) ++n["aten._scaled_dot_product_flash_attention.default"];
    }
    if (op.action != Action::backward || kind != OpKind::linear) continue;
    const auto args = tape.args_of(op);
    for (std::size_t k = args.size() - 2; k < args.size(); ++k)  // gradient of the input, gradient of the weight
      if (args[k].kind != TapeArg::Kind::absent) ++n["aten.mm.default"];
  }
  return n;
}

struct Comparison {
  const json& row;
  ModelGraph model;
  Tape tape;
  Replay mine;
  std::size_t loss;
};

Comparison comparison(const json& row) {
  const json& s = row["shape"];
  ModelGraph model = freeze(llama(s), frozen(row), "t");
  std::vector<std::int32_t> checkpointed;
  for (int i = 0; i < s["layers"].get<int>() && row["checkpointing"] != "none"; ++i)
    checkpointed.push_back(model.find_module("model.layers." + std::to_string(i)));
  Tape tape =
      make_tape(model, seen_from_outside(s["repeat"], row["early_stop"]),
                {s["sequences"], s["seq_len"], 2, row["loss_chunks"]}, DType::bf16, checkpointed,
                row["checkpointing"] == "selective_op" ? CheckpointPolicy::selective_op : CheckpointPolicy::full);
  Replay mine = replay(tape, model);
  const std::size_t loss = tape.forward_of.back();
  return {row, std::move(model), std::move(tape), std::move(mine), loss};
}

}  // namespace

TEST_CASE(
    "peaks, saved bytes, gradients: PyTorch's, without checkpointing and with each kind, chunked loss, frozen "
    "parameters") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/tape.json"));
  REQUIRE(golden["cases"].size() == 18);
  for (const json& row : golden["cases"]) {
    CAPTURE(row["name"].get<std::string>());
    const Comparison c = comparison(row);
    const auto during = c.mine.during.begin(), backward = during + static_cast<std::ptrdiff_t>(c.loss) + 1;
    CHECK(near(*std::max_element(during, backward), row["forward_peak"]));
    CHECK(near(*std::max_element(backward, c.mine.during.end()), row["backward_peak"]));
    CHECK(near(c.mine.after[c.loss], row["saved"]));
    CHECK(near(c.mine.after.back(), row["end"]));
    CHECK(c.mine.gradients == row["gradients"].get<std::int64_t>());
  }
}

TEST_CASE("bytes alive between ops: PyTorch's") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/tape.json"));
  for (const json& row : golden["cases"]) {
    const Comparison c = comparison(row);
    const std::int32_t layers = row["shape"]["layers"];
    int compared = 0;
    const auto compare = [&](const std::string& when, const std::string& label, std::int64_t ours,
                             std::int64_t theirs) {
      ++compared;
      CHECK_MESSAGE(near(ours, theirs), row["name"].get<std::string>(), " ", when, " ", label, ": ", ours, ", PyTorch ",
                    theirs);
    };
    // Where nothing is kept, forward's locals in the middle of a module are Python's: not modelled, and far below the
    // peak.
    if (row["checkpointing"] == "none" && !row.contains("frozen"))
      for (const auto& [label, bytes] : row["forward"].items())
        compare("after", label, c.mine.after[c.tape.forward_of[at(op_named(label, layers))]], bytes);
    for (const auto& [label, bytes] : row["backward"].items())
      compare("before", label, c.mine.after[c.tape.backward_begin[at(op_named(label, layers))] - 1], bytes);
    CHECK(compared >= 6);
  }
}

TEST_CASE("what is computed again: PyTorch's") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/tape.json"));
  for (const json& row : golden["cases"]) {
    CAPTURE(row["name"].get<std::string>());
    const Comparison c = comparison(row);
    CHECK(counted(c.tape, c.model) == row["again"].get<std::map<std::string, int>>());
  }
}

TEST_CASE("whole models of transformers: peaks and saved bytes are PyTorch's") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/models/saved.json"))["models"];
  REQUIRE(golden.size() == 10);
  for (const json& row : golden) {
    CAPTURE(row.dump());
    const json& s = row["shape"];
    const bool is_llama = row["model"] != "gpt2", eager = row["attention"] == "eager";
    const ModelGraph model = row["model"] == "mixtral" ? mixtral(s) : is_llama ? llama(s) : gpt2(s);
    std::vector<std::int32_t> checkpointed;
    for (int i = 0; i < s["layers"].get<int>() && row["checkpointing"] != "none"; ++i)
      checkpointed.push_back(model.find_module((is_llama ? "model.layers." : "transformer.h.") + std::to_string(i)));
    Implementation i = eager ? hf_eager_attention_implementation() : hf_implementation(false);
    i.rules[static_cast<std::size_t>(OpKind::embedding)] = embedding_outside;
    if (!eager) i.rules[static_cast<std::size_t>(OpKind::attention)] = attention_outside<torchtitan_implementation>;
    const Tape tape = make_tape(model, i, {s["sequences"], s["seq_len"], 2}, DType::bf16, checkpointed);
    const Replay mine = replay(tape, model);
    const std::size_t loss = tape.forward_of.back();
    const auto during = mine.during.begin(), backward = during + static_cast<std::ptrdiff_t>(loss) + 1;
    // What a whole step has besides: shifted labels, and cosines and sines for all layers; checkpoints hold their
    // positions, too.
    const std::int64_t tokens = s["sequences"].get<std::int64_t>() * s["seq_len"].get<std::int64_t>();
    const std::int64_t besides =
        8 * tokens + (is_llama ? 4 * s["seq_len"].get<std::int64_t>() * s["head_dim"].get<std::int64_t>() : 0) +
        (is_llama && !checkpointed.empty() ? 8 * s["seq_len"].get<std::int64_t>() : 0);
    CHECK(near(mine.after[loss] + besides, row["saved"]));
    CHECK(near(*std::max_element(backward, mine.during.end()) + besides, row["backward_peak"]));
    CHECK(near(mine.after.back(), row["end"]));
    // Forward: transformers' model holds the embedded tokens to its end; inside a checkpoint, where nothing is kept, an
    // op's temporaries go earlier than ours. Neither is the peak of a step.
    const std::int64_t ours = *std::max_element(during, backward) + besides, theirs = row["forward_peak"],
                       embedded = tokens * s["width"].get<std::int64_t>() * 2;
    if (checkpointed.empty()) CHECK((ours <= theirs + theirs / 1000 && theirs <= ours + embedded + theirs / 1000));
    else CHECK((ours >= theirs - theirs / 100 && ours <= row["backward_peak"].get<std::int64_t>()));
  }
}

TEST_CASE("compiled: what one more block saves is what PyTorch's partitioner hands from its forward to its backward") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/tape.json"));
  json shape = golden["cases"][0]["shape"];
  const auto saved = [&](int layers, const std::string& how) {
    shape["layers"] = layers;
    const ModelGraph model = llama(shape);
    std::vector<std::int32_t> checkpointed;
    for (int i = 0; i < layers && how != "none"; ++i)
      checkpointed.push_back(model.find_module("model.layers." + std::to_string(i)));
    const Tape tape =
        make_tape(model, torchtitan_implementation(true), {shape["sequences"], shape["seq_len"], 2}, DType::bf16,
                  checkpointed, how == "selective_op" ? CheckpointPolicy::selective_op : CheckpointPolicy::full);
    return replay(tape, model).after[tape.forward_of.back()];
  };
  for (const auto& [how, bytes] : golden["compiled_block"].items()) {
    CAPTURE(how);
    CHECK(saved(3, how) - saved(2, how) == bytes.get<std::int64_t>());
  }
}

TEST_CASE("compiled: how many tensors of a feed-forward's inner width are alive at most is what Inductor makes it") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/tape.json"));
  json shape = golden["cases"][0]["shape"];
  shape["layers"] = 1, shape["ffn"] = 1000, shape["seq_len"] = 999;  // no other tensor has as many bytes
  const ModelGraph model = llama(shape);
  const Workload work{shape["sequences"], shape["seq_len"], 2};
  const std::int64_t wide = work.tokens() * 1000 * 2;
  const std::int64_t gradient = 1000 * shape["width"].get<std::int64_t>() * 2;  // of the layer that reads the product
  for (const auto& [how, most] : golden["wide_when_compiled"].items()) {
    CAPTURE(how);
    std::vector<std::int32_t> checkpointed;
    if (how != "none") checkpointed = {model.find_module("model.layers.0")};
    const Tape tape = make_tape(model, torchtitan_implementation(true), work, DType::bf16, checkpointed,
                                how == "selective_op" ? CheckpointPolicy::selective_op : CheckpointPolicy::full);
    std::int64_t live = 0, forward = 0, backward = 0;
    for (const TapeOp& op : tape.ops) {
      std::int64_t& reached = op.action == Action::forward ? forward : backward;
      const auto change = [&](std::int32_t v, int by) {
        const std::int64_t bytes = tape.values[at(v)].bytes;
        if (bytes == wide || bytes == wide - gradient) live += by * bytes;
        reached = std::max(reached, live);
      };
      for (std::uint32_t k = 0; k < op.allocs.count; ++k) change(tape.allocs[op.allocs.begin + k], 1);
      for (std::uint32_t k = 0; k < op.inner.count; ++k) {
        const std::int32_t v = tape.inner[op.inner.begin + k];
        change(v >= 0 ? v : ~v, v >= 0 ? 1 : -1);
      }
      for (std::uint32_t k = 0; k < op.frees.count; ++k) change(tape.frees[op.frees.begin + k], -1);
    }
    CHECK(forward == most["forward"].get<std::int64_t>() * wide);
    // Where a module ran again, the layer's gradient is there beside them, which Inductor makes later.
    CHECK(backward == most["backward"].get<std::int64_t>() * wide - (how == "none" ? 0 : gradient));
  }
}

TEST_CASE("compiled and run again: a product is made for trained weights alone, and counts beside their gradients") {
  json shape = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/tape.json"))["cases"][0]["shape"];
  shape["layers"] = 1, shape["ffn"] = 1000;
  const auto made_again = [&](std::int64_t tokens, bool frozen) {
    ModelGraph model = llama(shape);
    for (Parameter& p : model.parameters)
      if (p.name.find("down_proj") != std::string::npos) p.trainable = !frozen;
    const Tape tape = make_tape(model, torchtitan_implementation(true), {1, tokens, 2}, DType::bf16,
                                {model.find_module("model.layers.0")}, CheckpointPolicy::full);
    std::int64_t bytes = 0;
    for (const TapeOp& op : tape.ops) {
      if (op.action != Action::backward || model.ops[at(op.graph_op)].kind != OpKind::swiglu) continue;
      for (std::uint32_t k = 0; k < op.inner.count; ++k) {
        const std::int32_t v = tape.inner[op.inner.begin + k];
        if (v >= 0 && tape.values[at(v)].kind == BufferKind::scratch) bytes += tape.values[at(v)].bytes;
      }
    }
    return bytes;
  };
  const std::int64_t width = shape["width"];
  CHECK(made_again(4 * width, false) == (4 * width - width) * 1000 * 2);
  CHECK(made_again(width / 2, false) == 0);  // the gradient is larger
  CHECK(made_again(4 * width, true) == 0);
}

TEST_CASE("temporaries of AdamW and of clipping: PyTorch's") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/tape.json"))["optimizers"];
  const auto bytes = [&](const char* which) { return golden[which]["bytes"].get<std::int64_t>(); };
  const std::int64_t elements = golden["adamw_foreach"]["elements"], largest = golden["adamw_loop"]["largest"];
  const Implementation& foreach = find_implementation("torchtitan-2024", false, "test"),
                        &fused = torchtitan_implementation(false), &loop = foundry_implementation(false);
  CHECK(bytes("adamw_foreach") == foreach.optimizer_temp_bytes_per_element * elements);
  CHECK(foreach.optimizer_temps_at_once);
  CHECK(bytes("adamw_fused") == fused.optimizer_temp_bytes_per_element);
  CHECK(fused.optimizer_temp_bytes_per_element == 0);
  // One after the other: 8 bytes per element of the largest parameter and 4 of the one before, which is a quarter of it
  // here.
  CHECK(bytes("adamw_loop") == 8 * largest + 4 * largest / 4);
  CHECK(loop.optimizer_temp_bytes_per_element == 12);
  CHECK_FALSE(loop.optimizer_temps_at_once);
  CHECK(bytes("clip_foreach") < 1024);
}

TEST_CASE(
    "what AdamW by foreach holds beside the states is in their type: published peaks of five times the parameters") {
  const ModelGraph model = load_model("tiny-llama");
  for (const DType master : {DType::f32, DType::bf16}) {
    ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 16});
    plan.master_dtype = master;
    const Program program = lower(model, plan, by_foreach(find_implementation("hf", false, "test")));
    std::int64_t shards = 0, temporaries = 0;
    for (const Operation& op : program.steady_step.ops) {
      if (op.action != Action::optimizer) continue;
      shards += program.layouts[at(op.unit)].local_elements(0) * size_of(master);
      for (const Arg& arg : program.steady_step.args_of(op)) {
        const Buffer& b = program.buffers[at(arg.buffer)];
        if (b.kind == BufferKind::scratch) temporaries += b.bytes;
      }
    }
    CHECK(shards > 0);
    CHECK(temporaries == shards);
  }
}

// The profiler shows aten::add for the first of three gradients of a linear layer's input, then aten::add_: the first
// is a view of what its kernel made.
TEST_CASE("the engine makes a third tensor where it adds to a gradient that is a view") {
  const ModelGraph m = load_model("tiny-llama");
  const auto third = [&](const Implementation& i) {
    const Tape tape = make_tape(m, i, {1, 16, 2}, DType::bf16, {}, CheckpointPolicy::full);
    std::int64_t with = 0, sums = 0;
    for (const TapeOp& op : tape.ops) {
      if (op.action != Action::add_gradient) continue;
      ++sums;
      for (std::uint32_t k = 0; k < op.allocs.count; ++k)
        with += tape.values[at(tape.allocs[op.allocs.begin + k])].kind == BufferKind::scratch;
    }
    return std::pair{with, sums};
  };
  const auto blocks = static_cast<std::int64_t>(
      std::count_if(m.modules.begin(), m.modules.end(), [](const Module& module) { return module.block; }));
  // Of a block: k and v join q, up joins gate, and each norm's input has a second reader.
  CHECK(third(hf_implementation(false)) == std::pair{2 * blocks, 5 * blocks});
  CHECK(third(hf_implementation(true)).first == 0);
}

TEST_CASE("a stack without selective checkpointing refuses it") {
  const ModelGraph m = load_model("tiny-llama");
  CHECK_THROWS_WITH((void)make_tape(m, find_implementation("foundry", false, "t"), {1, 16, 2}, DType::bf16,
                                    {m.find_module("model.layers.0")}, CheckpointPolicy::selective_op),
                    "plan: checkpoint_policy: foundry has no selective checkpointing; use full");
}

TEST_CASE("freezing: what a tensor takes part in, refusals, digest") {
  const ModelGraph m = load_model("tiny-llama");
  const std::vector<std::string> embedding = {"model.embed_tokens"}, weight = {"model.layers.0.mlp.up_proj.weight"},
                                 all = {""}, wrong = {"model.layer"};
  const ModelGraph f = freeze(m, embedding, "t");
  CHECK_FALSE(f.tensors[at(f.ops[0].outputs[0])].requires_grad);
  CHECK(f.tensors[at(f.ops[1].outputs[0])].requires_grad);
  CHECK(f.digest() != m.digest());
  CHECK(freeze(m, {}, "t") == m);
  const ModelGraph one = freeze(m, weight, "t");
  CHECK(std::count_if(one.parameters.begin(), one.parameters.end(), [](const Parameter& p) { return !p.trainable; }) ==
        1);
  CHECK(one.tensors == m.tensors);
  const ModelGraph none = freeze(m, all, "t");
  CHECK_FALSE(none.tensors[at(none.ops.back().outputs[0])].requires_grad);
  const Tape tape = make_tape(none, torchtitan_implementation(false), {1, 16, 2}, DType::bf16, {});
  CHECK(std::none_of(tape.ops.begin(), tape.ops.end(), [](const TapeOp& o) { return o.action == Action::backward; }));
  CHECK_THROWS_WITH((void)freeze(m, wrong, "--freeze"),
                    "--freeze: \"model.layer\" is no module or parameter of tiny-llama; did you mean \"model.layers\", "
                    "\"model.layers.0\" or \"model.layers.0.self_attn\"?");
}
