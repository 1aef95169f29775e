// What is said of PyTorch's other bytes, against sums by hand. tests/torch/random/random_plans.py holds the same
// numbers against PyTorch.
#include "simulator/analysis/known_differences.h"

#include <doctest/doctest.h>

#include "planner/lower.h"
#include "tests/support/small_models.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

std::int64_t said(DifferenceKind kind, const ModelGraph& model, const ShardingPlan& plan, const char* implementation) {
  const Program program = lower(model, plan, find_implementation(implementation, false, "test"));
  for (const KnownDifference& d : known_differences(program, plan, model))
    if (d.kind == kind) return d.bytes;
  return 0;
}

}  // namespace

TEST_CASE("tables: positions of 8 bytes, and 18 bytes for each channel that turns; of learned positions two copies") {
  const ModelGraph llama = small_llama();
  ShardingPlan plan = toy::plan(llama, 2);
  const std::int64_t head_dim = 24 / 4;
  CHECK(said(DifferenceKind::tables, llama, plan, "hf") == plan.seq_len * (8 + 18 * head_dim));
  CHECK(said(DifferenceKind::tables, llama, plan, "torchtitan") == 0);
  CHECK(said(DifferenceKind::tables, llama, plan, "native") == 0);
}

TEST_CASE("tables of DeepSeek-V2: 20 bytes for each complex number, which turns two channels") {
  const ModelGraph model = model_from_config(
      R"({"model_type": "deepseek_v2", "vocab_size": 11, "hidden_size": 12, "intermediate_size": 10,
          "moe_intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3,
          "q_lora_rank": 5, "kv_lora_rank": 7, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5,
          "n_routed_experts": 4, "num_experts_per_tok": 2})",
      "config.json");
  const ShardingPlan plan = toy::plan(model, 2);
  CHECK(said(DifferenceKind::tables, model, plan, "hf") == plan.seq_len * (8 + 20 * 2));
}

TEST_CASE("latent parts: what turns of all queries, or the latent, where units lie inside of attention") {
  const ModelGraph model = model_from_config(
      R"({"model_type": "deepseek_v3", "vocab_size": 11, "hidden_size": 12, "intermediate_size": 10,
          "moe_intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3,
          "q_lora_rank": 5, "kv_lora_rank": 7, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5,
          "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1})",
      "config.json");
  ShardingPlan plan = toy::plan(model, 2);
  CHECK(said(DifferenceKind::latent_parts, model, plan, "hf") == 0);
  Unit inside = plan.units.front();
  inside.modules = {"model.layers.0.self_attn.o_proj"};
  plan.units.insert(plan.units.begin(), inside);
  const std::int64_t tokens = plan.seq_len * plan.micro_batches.front();
  CHECK(said(DifferenceKind::latent_parts, model, plan, "hf") == tokens * 3 * 4 * 4);  // heads, channels, bytes
}

TEST_CASE("whole operations: one rank casts a unit at once, PyTorch one parameter at a time") {
  const ModelGraph model = toy::model();
  ShardingPlan plan = toy::plan(model, 1);
  plan.param_dtype = DType::bf16;
  // The root's head is cast while the embedding's 11 x 6 cast is there; a block's two are of 10 x 6.
  CHECK(said(DifferenceKind::whole_operations, model, plan, "hf") >= 2 * 11 * 6);
  plan.mesh[1].size = 2;
  const std::int64_t two = said(DifferenceKind::whole_operations, model, plan, "hf");
  plan.param_dtype = DType::f32;
  CHECK(two <= said(DifferenceKind::whole_operations, model, plan, "hf"));
}

TEST_CASE("whole operations: where the rows of experts end goes with their products, 4 bytes each") {
  for (const int experts : {4, 8}) {
    const ModelGraph model = small_mixtral(experts);
    CHECK(said(DifferenceKind::whole_operations, model, toy::plan(model, 2), "hf") == 4 * experts);
  }
}

TEST_CASE("gpt-oss: tables of half of the channels and the masks of both kinds of layers; norms' gradients in fp32") {
  const ModelGraph model = model_from_config(
      R"({"model_type": "gpt_oss", "vocab_size": 11, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "num_local_experts": 4,
          "num_experts_per_tok": 2})",
      "config.json");
  ShardingPlan plan = toy::plan(model, 2);
  const std::int64_t s = plan.seq_len, b = plan.micro_batches.front();
  CHECK(said(DifferenceKind::tables, model, plan, "hf") == s * (8 + 16 * 3) + 2 * b * s * s * 4);
  CHECK(said(DifferenceKind::wide_gradients, model, plan, "hf") == 0);
  plan.param_dtype = DType::bf16;
  CHECK(said(DifferenceKind::tables, model, plan, "hf") == s * (8 + 16 * 3) + 2 * b * s * s * 2);
  CHECK(said(DifferenceKind::wide_gradients, model, plan, "hf") == (2 * 2 + 1) * 12 * 2);
  CHECK(said(DifferenceKind::wide_gradients, model, plan, "hf-eager-attention") == (2 * 2 + 1) * 12 * 2);
  plan.seq_len = 1024;  // the second mask's booleans are more than the tables
  CHECK(said(DifferenceKind::tables, model, plan, "hf") == 2 * b * 1024 * 1024 * 2 + 1024 * 1024 + 3 * 8 * 1024);
}
