// What is alive where tensors have no gradient, as beside the adapters of a first layer. The plans at which PyTorch's
// bytes differed once are in tests/torch/random/kept_plans.json.
#include <doctest/doctest.h>

#include <string>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/implementation.h"
#include "planner/lowering/tape/tape.h"

using namespace fsdp;

namespace {

constexpr Workload kWork{1, 16, 2};

ModelGraph adapted(const std::string& targets) {
  return add_lora(load_model("tiny-llama"), parse_lora("rank=2,targets=" + targets, "lora"), "lora");
}

// The n-th op of a kind.
std::int32_t op_of(const ModelGraph& model, OpKind kind, int n) {
  for (std::size_t i = 0; i < model.ops.size(); ++i)
    if (model.ops[i].kind == kind && n-- == 0) return static_cast<std::int32_t>(i);
  return kNone;
}

Tape checkpointed_first_layer(const ModelGraph& model) {
  return make_tape(model, find_implementation("hf", false, "test"), kWork, DType::bf16,
                   {model.find_module("model.layers.0")}, CheckpointPolicy::full);
}

std::size_t tape_op(const Tape& tape, Action action, std::int32_t graph_op) {
  for (std::size_t o = 0; o < tape.ops.size(); ++o)
    if (tape.ops[o].action == action && tape.ops[o].graph_op == graph_op) return o;
  FAIL("the tape has no such op");
  return 0;
}

// The tape op with which, or behind which, the value goes.
std::size_t goes_with(const Tape& tape, std::int32_t value) {
  for (std::size_t o = 0; o < tape.ops.size(); ++o)
    for (const auto& [slice, list] :
         {std::pair{tape.ops[o].frees, &tape.frees}, {tape.ops[o].late_frees, &tape.late_frees}})
      for (std::uint32_t k = 0; k < slice.count; ++k)
        if ((*list)[slice.begin + k] == value) return o;
  return tape.ops.size();
}

}  // namespace

TEST_CASE("a gate without a gradient: silu's result is kept for up's, and the gate is not") {
  const ModelGraph model = adapted("up_proj");
  const Implementation hf = find_implementation("hf", false, "test");
  const Op& first = model.ops[static_cast<std::size_t>(op_of(model, OpKind::swiglu, 0))];
  const Op& second = model.ops[static_cast<std::size_t>(op_of(model, OpKind::swiglu, 1))];
  const OpFacts kept = facts(hf, first, kWork, model), both = facts(hf, second, kWork, model);
  CHECK(kept.saved_inputs == 0b1);  // of silu's size, in whose place it stands
  CHECK(kept.saved_extra_bytes == 0);
  CHECK(both.saved_inputs == 0b11);
  CHECK(both.saved_extra_bytes == kWork.tokens() * second.shape.width * kWork.element_bytes);
  const ModelGraph later = adapted("down_proj");  // nothing before the product has a gradient
  const OpFacts none = facts(hf, later.ops[static_cast<std::size_t>(op_of(later, OpKind::swiglu, 0))], kWork, later);
  CHECK(none.saved_inputs == 0);
  CHECK(none.saved_extra_bytes == 0);
}

TEST_CASE("a checkpointed gate goes as silu's result appears, whatever else has a gradient") {
  const ModelGraph model = adapted("gate_proj+down_proj");
  const Tape tape = checkpointed_first_layer(model);
  const TapeOp& op = tape.ops[tape_op(tape, Action::forward, op_of(model, OpKind::swiglu, 0))];
  for (const TapeArg& a : tape.args_of(op))
    if (a.kind == TapeArg::Kind::value && a.id >= 0)
      CHECK(tape.values[static_cast<std::size_t>(a.id)].kind != BufferKind::scratch);
}

TEST_CASE("silu's result is there before the other factor is computed, where nothing keeps it, too") {
  const ModelGraph model = adapted("gate_proj+down_proj");
  const Tape tape = checkpointed_first_layer(model);
  const std::size_t product = tape_op(tape, Action::recompute, op_of(model, OpKind::swiglu, 0));
  std::int32_t scratch = kNone;
  for (const TapeArg& a : tape.args_of(tape.ops[product]))
    if (a.kind == TapeArg::Kind::value && a.id >= 0 &&
        tape.values[static_cast<std::size_t>(a.id)].kind == BufferKind::scratch)
      scratch = a.id;
  REQUIRE(scratch >= 0);
  std::size_t appears = tape.ops.size();
  for (std::size_t o = 0; o < tape.ops.size(); ++o)
    for (std::uint32_t k = 0; k < tape.ops[o].late_allocs.count; ++k)
      if (tape.late_allocs[tape.ops[o].late_allocs.begin + k] == scratch) appears = o;
  CHECK(appears == product - 2);  // with the sum that makes the gate; between the two, the other factor
}

TEST_CASE("queries and keys of a recomputed attention that has no backward live until attention returns") {
  const ModelGraph model = adapted("gate_proj+up_proj");
  const Tape tape = checkpointed_first_layer(model);
  const std::int32_t attention = op_of(model, OpKind::attention, 0), output = attention + 1;
  REQUIRE(model.modules[static_cast<std::size_t>(model.ops[static_cast<std::size_t>(output)].module)].name ==
          "model.layers.0.self_attn.o_proj");
  const std::size_t returns = tape_op(tape, Action::recompute, output);
  const auto args = tape.args_of(tape.ops[tape_op(tape, Action::recompute, attention)]);
  for (std::size_t k = 0; k < 3; ++k) CHECK(goes_with(tape, args[k].id) == returns);
}

TEST_CASE("attention that is multiplied out below all that is trained has what it multiplies until it returns") {
  const ModelGraph model = adapted("o_proj");
  const Op& attention = model.ops[static_cast<std::size_t>(op_of(model, OpKind::attention, 0))];
  REQUIRE(!model.tensors[static_cast<std::size_t>(attention.outputs[0])].requires_grad);
  REQUIRE(attention.shape.kv_heads < attention.shape.heads);
  for (const std::int64_t sequences : {1, 2}) {
    const std::int64_t tokens = 64, rows = sequences * tokens * attention.shape.heads;
    const std::int64_t scores = rows * tokens * 4, q = rows * attention.shape.head_dim * 4, mask = tokens * tokens * 4;
    const OpFacts f = facts(hf_implementation(false), attention, {sequences, tokens, 4}, model);
    CHECK(f.saved_extra_bytes == 0);
    // As PyTorch holds them while it computes the softmax: scores and its result, where scores are minus infinity (a
    // byte each, and one per row), the mask; queries times the root of the scale, keys and values repeated. The result,
    // as large as the queries, counts during the whole op, and is not there yet.
    CHECK(f.forward_scratch_bytes == 2 * scores + scores / 4 + rows + mask + 3 * q - q);
  }
}

TEST_CASE("a norm below all that is trained has what it multiplies with its weight, and the cast of its input") {
  const ModelGraph model = adapted("o_proj");
  const Op& norm = model.ops[static_cast<std::size_t>(op_of(model, OpKind::rms_norm, 0))];
  REQUIRE(!model.tensors[static_cast<std::size_t>(norm.outputs[0])].requires_grad);
  const auto scratch = [&](const char* implementation, std::int64_t element_bytes) {
    const Workload work{1, 16, element_bytes};
    const OpFacts f = facts(find_implementation(implementation, false, "test"), norm, work, model);
    CHECK(f.saved_extra_bytes == 0);
    return f.forward_scratch_bytes;
  };
  const std::int64_t n = 16 * norm.shape.width, rows = 16 * 4;
  CHECK(scratch("hf", 4) == 4 * n + rows);              // the product, which its weight multiplies; the variance
  CHECK(scratch("hf", 2) == 4 * n + 2 * n + 2 * rows);  // beside the result: the rest of cast and product; both numbers
  CHECK(scratch("torchtitan", 2) == rows);              // one kernel: 1/rms
  CHECK(scratch("native", 4) == 0);
}
