// What a compiled block (torchtitan's Llama, transformers' families) keeps for backward in each recipe of float8,
// against what AOTAutograd's partitioner keeps (recorded by tests/torch/record_float8_saved.py).
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/plan.h"
#include "planner/tensor/local_model.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

ModelGraph block_of(const Json& c) {
  ModelGraph model = model_from_config(
      fmt::format(R"({{"model_type": "{}", "vocab_size": 160, "hidden_size": {}, "intermediate_size": {},
                       "num_hidden_layers": 1, "num_attention_heads": {}, "num_key_value_heads": {},
                       "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                       "hidden_act": "silu", "tie_word_embeddings": false, "head_dim": {}}})",
                  c.value("model_type", "llama"), c["hidden"].get<int>(), c["inner"].get<int>(), c["heads"].get<int>(),
                  c["kv_heads"].get<int>(), c["hidden"].get<int>() / c["heads"].get<int>()),
      "golden");
  ShardingPlan plan;
  plan.float8 = {parse_float8_recipe(c.at("recipe").get<std::string>(), "golden"), c.value("gathered", false)};
  return local_model(model, plan);
}

// Bytes that stay of what the block makes. Selectively: results that the policy keeps, but for the last layer's, which
// only a sum reads.
std::int64_t kept_bytes(const Json& c, const Implementation& stack) {
  const ModelGraph model = block_of(c);
  const Workload work{1, c.at("seq_len").get<std::int64_t>(), 2, 1};
  const auto block = std::find_if(model.modules.begin(), model.modules.end(), [](const Module& m) { return m.block; });
  std::set<std::int32_t> made, kept;
  std::int64_t bytes = 0, matmuls = 0;
  for (std::int32_t i = block->op_begin; i < block->op_end; ++i) {
    const Op& op = model.ops[static_cast<std::size_t>(i)];
    const OpFacts f = facts(stack, op, work, model);
    made.insert(op.outputs.begin(), op.outputs.end());
    if (c.at("selective").get<bool>()) {
      if (op.kind == OpKind::linear) ++matmuls;
      if (stack.keeps_beside) bytes += stack.keeps_beside(op, work, model, matmuls);
      if (matmuls == 7 || !stack.keeps_selectively(op, matmuls)) continue;
      kept.insert(op.outputs[0]);
      bytes += f.result_extra_bytes;
      continue;
    }
    for (std::size_t k = 0; k < op.inputs.size(); ++k)
      if ((f.saved_inputs >> k & 1) != 0) kept.insert(op.inputs[k]);
    for (std::size_t k = 0; k < op.outputs.size(); ++k)
      if ((f.saved_outputs >> k & 1) != 0) kept.insert(op.outputs[k]);
    bytes += f.saved_extra_bytes;
  }
  for (const std::int32_t t : kept)
    if (made.contains(t)) bytes += 2 * elements(model.tensors[static_cast<std::size_t>(t)], work);
  return bytes;
}

// Scales are not counted here: of PyTorch, by row, two fp32 numbers per token, or a 16-bit one per column of a layer,
// and of a weight that is kept one per column; of blocks of 32, a byte each of three inputs, of an attention's weight
// and of a feed-forward's.
void check_recorded(const char* golden, std::size_t count, const Implementation& (*of)(const Json&)) {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/" + golden);
  const Json cases = Json::parse(file).at("cases");
  CHECK(cases.size() == count);
  for (const Json& recorded : cases) {
    const Json& c = recorded.at("config");
    CAPTURE(c.at("name").get<std::string>());
    const bool rows = c.at("recipe") == "rowwise" || c.at("recipe") == "rowwise_with_gw_hp";
    const std::int64_t scales = recorded.at("saved").get<std::int64_t>() - kept_bytes(c, of(c));
    CHECK(scales >= 0);
    const std::int64_t tokens = c.at("seq_len"), hidden = c.at("hidden"), inner = c.at("inner");
    const std::int64_t blocks = (3 * tokens + hidden + inner) * hidden / 32;
    const std::int64_t columns = c.value("casts_kept", false) ? 2 * (6 * hidden + inner) : 0;
    CHECK(scales <= (rows ? 8 * tokens + columns : c.at("recipe") == "mxfp8" ? blocks : 0));
  }
}

const Implementation& of_then(const Json& c, bool of_all_weights) {
  return c.at("absolutes").get<bool>() ? torchtitan_with_absolutes(of_all_weights)
                                       : find_implementation("torchtitan-2024", true, "golden");
}

}  // namespace

TEST_CASE("a compiled block keeps for backward what PyTorch's partitioner keeps, in every float8 recipe") {
  check_recorded("float8_saved.json", 44, [](const Json& c) -> const Implementation& {
    static const Implementation titan_before = [] {
      Implementation i = torchtitan_implementation(true);
      i.float8_copies = Float8Copies::of_all;
      return i;
    }();
    static const Implementation hf_before = keeping_float8_casts(hf_implementation(true), /*again=*/false);
    const bool before = c.value("casts_kept", false), hf = c.contains("model_type");
    if (before) return hf ? hf_before : titan_before;
    return hf ? hf_implementation(true) : torchtitan_implementation(true);
  });
}

// tests/torch/early/record_float8_saved.py
TEST_CASE("while absolute values were kept, those of all weights were, and later of products that are made again") {
  check_recorded("float8_saved_torchao_0.8.json", 4,
                 [](const Json& c) -> const Implementation& { return of_then(c, true); });
  check_recorded("float8_saved_torchao_0.9.json", 4,
                 [](const Json& c) -> const Implementation& { return of_then(c, false); });
}
