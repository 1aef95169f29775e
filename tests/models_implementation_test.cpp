// Implementations: what each op keeps and takes, against PyTorch's autograd (tests/torch/record_saved.py) and closed forms.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/catalog.h"
#include "models/error.h"
#include "models/implementation.h"

using namespace fsdp;
using nlohmann::json;

namespace {

OpKind kind_named(std::string_view wanted) {
  for (int k = 0; k < kOpKinds; ++k) {
    if (name(static_cast<OpKind>(k)) == wanted) return static_cast<OpKind>(k);
  }
  FAIL("unknown op " << wanted);
  return {};
}

// Sum over the ops of what forward leaves behind for backward; a tensor kept by several ops counts once.
std::int64_t saved_bytes(const Implementation& implementation, const ModelGraph& m, const Workload& w) {
  std::set<std::int32_t> kept;
  std::int64_t bytes = 0;
  for (const Op& op : m.ops) {
    const OpFacts f = facts(implementation, op, w);
    bytes += f.saved_extra_bytes;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if ((f.saved_inputs >> i & 1) != 0) kept.insert(op.inputs[i]);
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      if ((f.saved_outputs >> i & 1) != 0) kept.insert(op.outputs[i]);
    }
  }
  for (std::int32_t t : kept) {
    const Tensor& tensor = m.tensors[static_cast<std::size_t>(t)];
    bytes += elements(tensor, w) * (tensor.kind == TensorKind::ids ? 8 : w.element_bytes);
  }
  return bytes;
}

}  // namespace

TEST_CASE("torchtitan, eager: what is saved is what PyTorch's autograd saves") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/models_saved.json"));
  const json& s = golden["shapes"];
  REQUIRE(golden["ops"].size() == 20);
  for (const json& row : golden["ops"]) {
    CAPTURE(row.dump());
    const std::string label = row["op"];
    Op op;
    op.kind = kind_named(label.substr(0, label.find("_grouped")));
    const std::int64_t heads = s["heads"];
    op.shape = {.in = s["width"],
                .out = s["out"],
                .width = s["width"],
                .heads = heads,
                .kv_heads = label == "attention_grouped" ? s["kv_heads"].get<std::int64_t>() : heads,
                .head_dim = s["head_dim"],
                .vocab = s["vocab"]};
    const OpFacts f = facts(torchtitan_2025_implementation(false), op, {s["sequences"], s["seq_len"], row["element_bytes"]});
    CHECK(int{f.saved_inputs} == row["saved_inputs"].get<int>());
    CHECK(int{f.saved_outputs} == row["saved_outputs"].get<int>());
    CHECK(f.saved_extra_bytes == row["saved_extra_bytes"].get<std::int64_t>());
  }
}

TEST_CASE("saved activations of one Llama block, in closed form") {
  // Two models that differ by one block; the difference is what a block saves. Widths: h hidden, q = h (heads * head_dim),
  // k kv heads * head_dim, f feed-forward; s elements bytes; T tokens.
  const auto layers = [](int n) {
    return model_from_config(
        R"({"model_type":"llama","vocab_size":64,"hidden_size":32,"intermediate_size":48,"num_attention_heads":4,
      "num_key_value_heads":2,"num_hidden_layers":)" +
            std::to_string(n) + "}",
        "c");
  };
  const Workload w{3, 8, 2};
  const std::int64_t t = 24, h = 32, k = 16, f = 48, s = 2, heads = 4;
  const auto block = [&](const Implementation& i) { return saved_bytes(i, layers(3), w) - saved_bytes(i, layers(2), w); };
  // native: norm input, normed (h each, twice: 4h), q k v (h + 2k), attention output (h), gate, up, product (3f);
  // fp32: 1/rms twice, log-sum-exp per head.
  CHECK(block(native_implementation()) == t * s * (4 * h + h + 2 * k + h + 3 * f) + t * 4 * (2 + heads));
  // torchtitan, eager: silu(gate) (f) besides; before 2026 k and v repeated to all heads instead (2h).
  CHECK(block(torchtitan_implementation(false)) == t * s * (4 * h + h + 2 * k + h + 4 * f) + t * 4 * (2 + heads));
  CHECK(block(torchtitan_implementation(true)) == t * s * (4 * h + h + 2 * k + h + 3 * f) + t * 4 * (2 + heads));
  CHECK(block(torchtitan_2025_implementation(false)) == t * s * (4 * h + h + 2 * h + h + 4 * f) + t * 4 * (2 + heads));
}

TEST_CASE("every implementation states plausible facts for every op of every family") {
  for (const char* model : {"tiny-llama", "qwen3-0.6b", "gpt2", "mpt-125m-bench"}) {
    const ModelGraph m = load_model(model);
    for (const Implementation* i :
         {&native_implementation(), &torchtitan_implementation(false), &torchtitan_implementation(true)}) {
      for (const Op& op : m.ops) {
        CAPTURE(model);
        CAPTURE(name(op.kind));
        const OpFacts one = facts(*i, op, {1, 64, 2}), two = facts(*i, op, {2, 64, 2});
        CHECK((one.saved_inputs >> op.inputs.size()) == 0);
        CHECK((one.saved_outputs >> op.outputs.size()) == 0);
        CHECK(one.forward_traffic_bytes > 0);
        CHECK(one.forward_scratch_bytes <= two.forward_scratch_bytes);  // more tokens never need less
        CHECK(one.backward_scratch_bytes <= two.backward_scratch_bytes);
        CHECK(two.saved_extra_bytes == 2 * one.saved_extra_bytes);  // per token
        CHECK(one.forward_traffic_bytes <= two.forward_traffic_bytes);
        CHECK(one.backward_traffic_bytes <= two.backward_traffic_bytes);
      }
    }
  }
}

TEST_CASE("compiling never saves, launches or moves more") {
  for (const char* model : {"tiny-llama", "gpt2"}) {
    for (const Op& op : load_model(model).ops) {
      CAPTURE(name(op.kind));
      const OpFacts eager = facts(torchtitan_implementation(false), op, {1, 64, 2}),
                    fused = facts(torchtitan_implementation(true), op, {1, 64, 2});
      CHECK(fused.forward_launches <= eager.forward_launches);
      CHECK(fused.backward_launches <= eager.backward_launches);
      CHECK(fused.saved_extra_bytes <= eager.saved_extra_bytes);
      CHECK(fused.forward_scratch_bytes <= eager.forward_scratch_bytes);
      CHECK(fused.forward_traffic_bytes <= eager.forward_traffic_bytes + 8 * 64);  // + maximum and log-sum of the fused loss
      CHECK(fused.backward_traffic_bytes <= eager.backward_traffic_bytes);
    }
  }
}

TEST_CASE("implementations are found by name, and have different digests") {
  CHECK(&find_implementation("native", false, "t") == &native_implementation());
  CHECK(&find_implementation("torchtitan", true, "t") == &torchtitan_implementation(true));
  CHECK_THROWS_WITH((void)find_implementation("native", true, "--compile"),
                    "--compile: \"native\" has no compiled form; leave out --compile");
  CHECK_THROWS_WITH((void)find_implementation("torchtitn", false, "--implementation"),
                    "--implementation: \"torchtitn\" is no implementation; did you mean \"torchtitan\"?");
  CHECK(digest(native_implementation()) != digest(torchtitan_implementation(false)));
  CHECK(digest(torchtitan_implementation(true)) != digest(torchtitan_implementation(false)));
  Implementation changed = native_implementation();
  changed.rules[static_cast<std::size_t>(OpKind::gelu)] = changed.rules[static_cast<std::size_t>(OpKind::add)];
  CHECK(digest(changed) != digest(native_implementation()));
}
