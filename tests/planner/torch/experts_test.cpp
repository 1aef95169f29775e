// torchtitan's mixtures of experts, of each time, and its latent attention: what is alive at most, against recordings
// of the same operators in PyTorch, in a model of transformers (tests/torch/record_saved.py with titan_experts.py and
// titan_latent.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "models/catalog.h"
#include "models/graph/experts.h"
#include "planner/lowering/tape/tape.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using namespace fsdp::testing;
using nlohmann::json;

namespace {

// transformers' model with torchtitan's experts. Recordings do not see inside of kernels, and are of
// scaled_dot_product_attention.
OpFacts embedding_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(find_implementation("hf", false, "test"), op, w);
  f.backward_scratch_bytes = 0;
  return f;
}
OpFacts attention_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(find_implementation("hf", false, "test"), op, w);
  f.backward_scratch_bytes = 0;
  return f;
}

Implementation with_parts_of(const std::string& form, bool latent) {
  Implementation i = find_implementation("hf", false, "test");
  const Implementation& titan = find_implementation(form, false, "test");
  i.own_form = titan.own_form;
  for (const OpKind kind : {OpKind::moe_route, OpKind::moe_dispatch, OpKind::moe_combine})
    i.rules[static_cast<std::size_t>(kind)] = titan.rules[static_cast<std::size_t>(kind)];
  if (latent)
    for (const OpKind kind : {OpKind::rotary, OpKind::attention})
      i.rules[static_cast<std::size_t>(kind)] = titan.rules[static_cast<std::size_t>(kind)];
  i.rules[static_cast<std::size_t>(OpKind::embedding)] = embedding_outside;
  if (!latent) i.rules[static_cast<std::size_t>(OpKind::attention)] = attention_outside;
  return i;
}

}  // namespace

TEST_CASE(
    "peaks and saved bytes of torchtitan's experts and latent attention, in transformers' models, are PyTorch's") {
  const json golden =
      json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/models/saved.json"))["torchtitan_experts"];
  REQUIRE(golden.size() == 16);
  for (const json& row : golden) {
    CAPTURE(row["name"].get<std::string>());
    CAPTURE(row["checkpointing"].get<std::string>());
    const bool again = row["checkpointing"] != "none";
    const bool latent = row["config"].contains("kv_lora_rank");
    const Implementation i = with_parts_of(row["form"], latent);
    const ModelGraph model = i.own_form(model_from_config(row["config"].dump(), "c"));
    check_graph(model, "test");
    const Workload w{row["sequences"], row["seq_len"], 2};
    const std::vector<std::int32_t> checkpointed = again ? blocks_of(model) : std::vector<std::int32_t>{};
    const Recorded mine = as_recorded(make_tape(model, i, w, DType::bf16, checkpointed), model, w, again);
    for (const auto& [what, ours] : {std::pair("saved", mine.saved),
                                     {"end", mine.end},
                                     {"forward_peak", mine.forward_peak},
                                     {"backward_peak", mine.backward_peak}}) {
      CAPTURE(std::string(what));
      CAPTURE(ours);
      CHECK(near(ours, row[what]));
    }
  }
}

TEST_CASE("what a compiled mixture of torchtitan keeps is what autograd's node of it saves") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/compiled_experts.json"))["cases"];
  REQUIRE(golden.size() == 2);
  const Implementation& compiled = find_implementation("torchtitan", true, "test");
  for (const json& row : golden) {
    const json& c = row["config"];
    CAPTURE(c["name"].get<std::string>());
    json config = {{"model_type", "qwen3_moe"}, {"vocab_size", 64},         {"num_hidden_layers", 1},
                   {"num_attention_heads", 8},  {"num_key_value_heads", 2}, {"head_dim", 32},
                   {"intermediate_size", 640},  {"norm_topk_prob", true},   {"decoder_sparse_step", 1}};
    if (c.contains("shared"))
      config = {{"model_type", "glm4_moe"},
                {"vocab_size", 64},
                {"num_hidden_layers", 1},
                {"num_attention_heads", 8},
                {"num_key_value_heads", 2},
                {"head_dim", 32},
                {"intermediate_size", 640},
                {"first_k_dense_replace", 0},
                {"n_group", 1},
                {"topk_group", 1},
                {"n_shared_experts", c["shared"]},
                {"norm_topk_prob", true}};
    for (const char* key : {"num_experts", "num_experts_per_tok", "hidden_size", "moe_intermediate_size"})
      config[key] = c[key];
    if (c.contains("shared")) config["n_routed_experts"] = c["num_experts"];
    const ModelGraph model = compiled.own_form(model_from_config(config.dump(), "c"));
    const Workload w{c["sequences"], c["seq_len"], 2};
    const auto router =
        std::find_if(model.ops.begin(), model.ops.end(), [](const Op& op) { return op.kind == OpKind::moe_route; });
    REQUIRE(router - model.ops.begin() > 2);
    // From the norm before the router's product to the sum with what came in, which is behind a shared expert's.
    const auto end = std::find_if(router, model.ops.end(), [&](const Op& op) { return op.kind == OpKind::rms_norm; });
    std::set<std::int32_t> kept;
    std::int64_t saved = 0;
    for (auto op = router - 2; op != end; ++op) {
      const OpFacts f = facts(compiled, *op, w);
      saved += f.saved_extra_bytes;
      for (std::size_t k = 0; k < op->inputs.size(); ++k)
        if ((f.saved_inputs >> k & 1) != 0) kept.insert(op->inputs[k]);
      for (std::size_t k = 0; k < op->outputs.size(); ++k)
        if ((f.saved_outputs >> k & 1) != 0) kept.insert(op->outputs[k]);
    }
    std::set<std::int32_t> wide;  // weights are fp32
    for (const Op& op : model.ops)
      if (op.kind == OpKind::moe_route) wide.insert(op.outputs[0]);
    for (const std::int32_t t : kept) {
      const Tensor& tensor = model.tensors[at(t)];
      const std::int64_t bytes = tensor.kind == TensorKind::ids ? 8 : wide.contains(t) ? 4 : 2;
      saved += elements(tensor, w) * bytes;
    }
    CHECK(saved + 4 * c["num_experts"].get<std::int64_t>() == row["saved"].get<std::int64_t>());  // where rows end
  }
}
