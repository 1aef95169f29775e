// Emitted files: what they say, what they admit they cannot say, and that PyTorch makes the plan's units from the
// script.
#include "planner/emit.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/input/error.h"
#include "planner/layout.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"
#include "tests/planner/emit/scripts.h"
#include "tests/support/small_models.h"
#include "tests/support/temporary_folder.h"

using namespace fsdp;
using fsdp::testing::chosen_python;
using fsdp::testing::run;
using fsdp::testing::TemporaryFolder;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool any_has(const std::vector<Inexact>& list, const std::string& part) {
  return std::any_of(list.begin(), list.end(), [&](const Inexact& i) { return has(i.text(), part); });
}

ShardingPlan plan_of(const ModelGraph& model, std::string_view policy, std::int64_t ranks = 2,
                     std::int64_t replicate = 1) {
  ShardingPlan plan = naive_plan(model, {.ranks = ranks, .replicate = replicate, .seq_len = 16});
  plan.wrap = std::string(policy);
  plan.units = wrap(model, policy, "test");
  return plan;
}

// What run_emitted.py compares with PyTorch: unit by unit, from the layouts that lowering and the executor use.
std::string expected_units(const ShardingPlan& plan, const ModelGraph& model) {
  nlohmann::json units = nlohmann::json::array();
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    std::vector<std::string> parameters;
    for (const ShardedParam& p : layouts[u].params) parameters.push_back(model.parameters[p.param].name);
    const Reshard r = plan.units[u].reshard_after_forward;
    units.push_back({{"modules", plan.units[u].modules},
                     {"parameters", parameters},
                     {"reshard", r == Reshard::automatic ? !layouts[u].root : r != Reshard::no}});
  }
  return nlohmann::json{{"units", units}, {"checkpointed", plan.checkpointed}}.dump();
}

struct Case {
  std::string name;
  ModelGraph model;
  ShardingPlan plan;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const ModelGraph plain = small_llama(), tied = small_llama({.tied = true});
  const auto add = [&](const std::string& name, const ModelGraph& model, ShardingPlan plan) {
    list.push_back({name, model, std::move(plan)});
  };
  add("naive", plain, plan_of(plain, "block"));
  ShardingPlan p = plan_of(plain, "block:2", 8);
  p.micro_batches = {2, 1};
  p.grad_sync = GradSync::last;
  p.checkpointed = checkpointed_modules(plain, "every-2", "test");
  p.forward_prefetch = 1;
  p.backward_prefetch = 2;
  p.clip_norm = 1.0;
  add("grouped", plain, p);
  p = plan_of(tied, "titan", 8, 2);
  p.grad_sync = GradSync::reduce_scatter_only;
  p.micro_batches = {1, 1, 1};
  p.checkpointed = checkpointed_modules(tied, "full", "test");
  p.offload_activations = {p.checkpointed[1]};
  add("hybrid_tied", tied, p);
  p = plan_of(plain, "root");
  p.param_dtype = DType::f32;
  p.backward_prefetch = 0;
  p.optimizer.kind = OptimizerKind::sgd;
  p.optimizer.momentum = 0.9;
  p.offload_optimizer = true;
  add("root", plain, p);
  p = plan_of(plain, "params:500");
  p.units[0].reshard_after_forward = Reshard::no;
  p.units.back().reshard_after_forward = Reshard::yes;
  p.param_dtype = p.reduce_dtype = p.master_dtype = DType::f64;
  p.backward_prefetch = 0;
  add("by_size", plain, p);
  p = naive_plan(plain, {.ranks = 2, .seq_len = 16, .micro_batches = {1, 2}, .dialect = Dialect::ddp});
  p.grad_sync = GradSync::last;
  add("ddp", plain, p);
  p = plan_of(plain, "block", 2);
  p.units.insert(p.units.begin(), {{"model.embed_tokens"}, Reshard::yes});
  p.units[0].unshard_in_backward = false;
  p.units[1].grad_sync = GradSync::last;
  p.units[1].reshard_after_backward = false;
  p.units[1].forward_prefetch = {"model.layers.1"};
  p.units[2].gradient_divide_factor = 3;
  p.units[2].backward_prefetch = {"model.layers.0", "model.embed_tokens"};
  p.micro_batches = {1, 2};
  p.param_dtype = DType::f32;
  p.ignored = {"model.norm"};
  p.shard_dims = {{"model.layers.0.mlp.down_proj.weight", 1}};
  p.reduce_scatter_buffers = 2;
  p.separate_reduce_scatter = p.force_sum_reduction = p.offload = true;
  add("every_choice", plain, p);
  p = plan_of(plain, "block", 8);
  for (Unit& u : p.units) u.reshard_after_forward = Reshard{4};  // does not divide two ranks: --tiny reshards over both
  set_checkpointing(p, plain, "selective-op", "test");
  p.loss_chunks = 3;
  p.forward_prefetch = 1;
  add("selective", plain, p);
  const ModelGraph qwen = model_from_config(
      R"({"model_type": "qwen2", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu", "tie_word_embeddings": true, "use_sliding_window": false})",
      "qwen2");
  add("qwen2", qwen, plan_of(qwen, "block"));
  const ModelGraph big = load_model("llama3-8b");
  add("llama3_8b", big, plan_of(big, "block", 8));
  return list;
}

bool refuses_ddp(const std::string& format) {
  return format == "transformers" || format == "automodel" || format == "lightning" || format == "composer";
}

}  // namespace

TEST_CASE("emit knows its formats by name and refuses others, and broken plans") {
  const ModelGraph model = small_llama();
  CHECK(emit_formats() == std::vector<std::string>{"pytorch", "accelerate", "torchtitan", "torchtitan-args",
                                                   "torchtitan-toml", "transformers", "automodel", "lightning",
                                                   "composer", "deepspeed"});
  CHECK_THROWS_AS((void)emit("megatron", plan_of(model, "block"), model), InputError);
  ShardingPlan broken = plan_of(model, "block");
  broken.units.pop_back();
  CHECK_THROWS_AS((void)emit("pytorch", broken, model), InputError);
}

TEST_CASE("what cannot be expressed is also written at the top of the file") {
  for (const Case& c : cases()) {
    for (const std::string& format : emit_formats()) {
      if (c.plan.dialect == Dialect::ddp && refuses_ddp(format)) continue;
      const Emitted out = emit(format, c.plan, c.model);
      CAPTURE(c.name);
      CAPTURE(out.text);
      for (const Inexact& i : out.cannot_express) CHECK(has(out.text, "#  - " + i.text() + "\n"));
      CHECK(has(out.text, c.plan.digest()));
    }
  }
}

TEST_CASE("accelerate: keys of an FSDP2 config") {
  const ModelGraph model = small_llama();
  ShardingPlan plan = plan_of(model, "titan", 8, 2);
  plan.checkpointed = checkpointed_modules(model, "full", "test");
  const Emitted out = emit("accelerate", plan, model);
  for (const char* line :
       {"\ndistributed_type: FSDP\n", "\nmixed_precision: 'bf16'\n", "\nnum_processes: 8\n",
        "\nfsdp_config:\n  fsdp_version: 2\n", "\n  fsdp_activation_checkpointing: true\n",
        "\n  fsdp_reshard_after_forward: true\n", "\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n",
        "\n  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n", "\n  parallelism_config_dp_replicate_size: 2\n",
        "\n  parallelism_config_dp_shard_size: 4\n"}) {
    CAPTURE(line);
    CHECK(has(out.text, line));
  }
  CHECK_FALSE(any_has(out.cannot_express, "reshard_after_forward"));
  CHECK(any_has(out.cannot_express, "gradient reduction in fp32"));
  CHECK(any_has(out.cannot_express, "Accelerate 1.15 or newer"));  // whole blocks are recomputed
  CHECK(out.written.checkpointed == plan.checkpointed);
  CHECK_FALSE(any_has(out.cannot_express, "the plan's units"));
  CHECK(any_has(emit("accelerate", plan_of(model, "block:2"), model).cannot_express, "the plan's units"));
  // From 1.14 on the embedding, and norm and head, are units whatever is wrapped.
  for (const char* other : {"block", "root"})
    CHECK(any_has(emit("accelerate", plan_of(model, other), model).cannot_express, "the plan's units"));
  plan.units = with_ends(model, wrap_root(model));
  CHECK(has(emit("accelerate", plan, model).text, "fsdp_auto_wrap_policy: NO_WRAP"));
  CHECK_FALSE(any_has(emit("accelerate", plan, model).cannot_express, "the plan's units"));
  plan = naive_plan(model, {.ranks = 4, .seq_len = 8, .dialect = Dialect::ddp});
  CHECK(has(emit("accelerate", plan, model).text, "distributed_type: MULTI_GPU"));
}

TEST_CASE("accelerate: keys of an FSDP1 config") {
  const ModelGraph model = small_llama();
  ShardingPlan plan = plan_of(model, "block", 8, 1);
  plan.dialect = Dialect::fsdp1;
  plan.checkpointed = checkpointed_modules(model, "full", "test");
  Emitted out = emit("accelerate", plan, model);
  for (const char* line : {"\ndistributed_type: FSDP\n", "\nfsdp_config:\n  fsdp_version: 1\n",
                           "\n  fsdp_activation_checkpointing: true\n", "\n  fsdp_sharding_strategy: FULL_SHARD\n",
                           "\n  fsdp_backward_prefetch: BACKWARD_PRE\n", "\n  fsdp_forward_prefetch: false\n",
                           "\n  fsdp_use_orig_params: true\n", "\n  fsdp_offload_params: false\n",
                           "\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n",
                           "\n  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"}) {
    CAPTURE(line);
    CHECK(has(out.text, line));
  }
  CHECK_FALSE(has(out.text, "reshard_after_forward"));
  CHECK_FALSE(any_has(out.cannot_express, "recomputation"));  // FSDP1 recomputes what it wraps
  CHECK_FALSE(any_has(out.cannot_express, "root"));

  plan.backward_post = true;
  plan.forward_prefetch = 1;
  plan.use_orig_params = plan.limit_all_gathers = false;
  set_reshard(plan, Reshard::no);
  out = emit("accelerate", plan, model);
  for (const char* line :
       {"SHARD_GRAD_OP", "BACKWARD_POST", "fsdp_forward_prefetch: true", "fsdp_use_orig_params: false"})
    CHECK(has(out.text, line));
  CHECK(any_has(out.cannot_express, "limit_all_gathers"));
  plan.mesh = {{"replicate", 2}, {"shard", 4}};
  CHECK(has(emit("accelerate", plan, model).text, "fsdp_sharding_strategy: HYBRID_SHARD_ZERO2\n"));
  plan.units[0].reshard_after_forward = Reshard::yes;
  CHECK(any_has(emit("accelerate", plan, model).cannot_express, "a sharding strategy per unit"));
  set_reshard(plan, Reshard::automatic);
  plan.units[0].reshard_after_forward = plan.units[1].reshard_after_forward = Reshard::yes;
  CHECK(has(emit("accelerate", plan, model).text, "fsdp_sharding_strategy: HYBRID_SHARD\n"));
  plan.mesh = {{"replicate", 8}};
  plan.backward_post = false;
  plan.backward_prefetch = 0;
  plan.ignored = {"lm_head"};
  plan.param_dtype = plan.reduce_dtype = DType::f32;
  out = emit("accelerate", plan, model);
  CHECK(has(out.text, "fsdp_sharding_strategy: NO_SHARD\n"));
  CHECK(has(out.text, "fsdp_backward_prefetch: NO_PREFETCH\n"));
  CHECK(any_has(out.cannot_express, "ignored modules or parameters (lm_head)"));

  plan = plan_of(model, "params:500", 8, 1);
  plan.dialect = Dialect::fsdp1;
  plan.wrap = "params:500";
  out = emit("accelerate", plan, model);
  CHECK(has(out.text, "fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: 500\n"));
  for (const char* wrap : {"params:501x", "params:", "params:1e99", "by hand"}) {
    plan.wrap = wrap;
    CHECK_FALSE(has(emit("accelerate", plan, model).text, "SIZE_BASED_WRAP"));
  }
  for (const char* format : {"pytorch", "torchtitan"}) {
    CAPTURE(format);
    CHECK_THROWS_AS((void)emit(format, plan, model), InputError);
  }
}

TEST_CASE("accelerate says what it has no key for") {
  const ModelGraph model = small_llama();
  ShardingPlan plan = plan_of(model, "block", 8, 2);
  plan.offload = true;
  plan.units[0].reshard_after_forward = Reshard{2};
  plan.units[1].gradient_divide_factor = 2.0;
  plan.reduce_scatter_buffers = 2;
  plan.separate_reduce_scatter = plan.force_sum_reduction = true;
  plan.loss_chunks = 4;
  plan.ignored = {"model.norm"};
  plan.torch = {2, 14};
  plan.param_dtype = plan.reduce_dtype = DType::f32;
  const Emitted out = emit("accelerate", plan, model);
  CHECK(has(out.text, "\n  fsdp_offload_params: true\n"));
  for (const char* part : {"smaller group", "gradient_divide_factor: ", "2 reduce-scatter buffers", "communicator",
                           "sums instead", "4 chunks", "model.norm", "fsdp2@2.14"}) {
    CAPTURE(part);
    CHECK(any_has(out.cannot_express, part));
  }
}

TEST_CASE("every format says that it does not freeze parameters") {
  const ModelGraph model = small_llama();
  const std::vector<std::string> frozen = {"model.embed_tokens"};
  const ModelGraph partly = freeze(model, frozen, "test");
  for (const std::string& format : emit_formats()) {
    CAPTURE(format);
    CHECK_FALSE(any_has(emit(format, plan_of(model, "block"), model).cannot_express, "not trained"));
    CHECK(any_has(emit(format, plan_of(partly, "block"), partly).cannot_express, "not trained"));
  }
}

// Built by transformers alone: read here, not run. The sizes are those of the catalog's files.
TEST_CASE("mixtures of experts: transformers' keys, and what it has no word for") {
  const ModelGraph mixtral = load_model("mixtral-8x7b"), qwen = load_model("qwen3-30b-a3b"),
                   tiny = load_model("tiny-mixtral");
  const Emitted out = emit("pytorch", plan_of(mixtral, "block", 64), mixtral);
  for (const char* line : {"MODEL_TYPE = \"mixtral\"", "\"intermediate_size\": 14336,",
                           "\"num_local_experts\": 8, \"num_experts_per_tok\": 2,", "\"sliding_window\": None,",
                           "\"rope_theta\": 1000000.0", "\"model.layers.31.mlp.experts.down_proj\": 1"}) {
    CAPTURE(line);
    CHECK(has(out.text, line));
  }
  CHECK_FALSE(any_has(out.cannot_express, "capacity_factor"));
  const Emitted of_qwen = emit("pytorch", plan_of(qwen, "block", 8), qwen);
  for (const char* line : {"\"moe_intermediate_size\": 768,", "\"num_experts\": 128, \"num_experts_per_tok\": 8,",
                           "\"norm_topk_prob\": True,"}) {
    CAPTURE(line);
    CHECK(has(of_qwen.text, line));
  }
  CHECK(any_has(emit("pytorch", plan_of(tiny, "block"), tiny).cannot_express, "capacity_factor"));
}

TEST_CASE("mixtures with dense layers and shared experts: transformers' keys") {
  const ModelGraph deepseek = load_model("deepseek-v3"), glm = load_model("glm-4.5-air");
  const Emitted out = emit("pytorch", plan_of(deepseek, "block", 64), deepseek);
  for (const char* line :
       {"MODEL_TYPE = \"deepseek_v3\"",
        "\"intermediate_size\": 18432, \"moe_intermediate_size\": 2048, \"first_k_dense_replace\": 3,",
        "\"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"n_shared_experts\": 1, \"n_group\": 8,",
        "\"topk_group\": 4, \"routed_scaling_factor\": 2.5, \"norm_topk_prob\": True,",
        "\"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,",
        "\"v_head_dim\": 128,", "\"num_attention_heads\": 128, \"num_key_value_heads\": 128,"}) {
    CAPTURE(line);
    CHECK(has(out.text, line));
  }
  const ModelGraph biased = model_from_config(R"({"model_type": "deepseek_v3", "vocab_size": 64, "hidden_size": 32,
      "intermediate_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 4, "n_routed_experts": 16, "num_experts_per_tok": 2, "q_lora_rank": null,
      "attention_bias": true})",
                                              "config.json");
  const Emitted of_biased = emit("pytorch", plan_of(biased, "block"), biased);
  CHECK(has(of_biased.text, "\"attention_bias\": True"));
  CHECK(has(of_biased.text, "\"q_lora_rank\": None"));
  const ModelGraph limited = load_model("deepseek-v2"), greedy = load_model("deepseek-v2-lite");
  const Emitted of_limited = emit("pytorch", plan_of(limited, "block", 64), limited);
  CHECK(has(of_limited.text, "\"topk_method\": \"group_limited_greedy\","));
  CHECK(has(of_limited.text, "\"topk_group\": 3, \"routed_scaling_factor\": 16.0, \"norm_topk_prob\": False,"));
  CHECK(has(emit("pytorch", plan_of(greedy, "block", 8), greedy).text, "\"topk_method\": \"greedy\","));
  CHECK_FALSE(has(out.text, "topk_method"));
  const Emitted of_glm = emit("pytorch", plan_of(glm, "block", 8), glm);
  for (const char* line : {"MODEL_TYPE = \"glm4_moe\"",
                           "\"rope_theta\": 1000000.0, \"rope_type\": \"default\", \"partial_rotary_factor\": 0.5",
                           "\"head_dim\": 128, \"use_qk_norm\": False,", "\"attention_bias\": True,"}) {
    CAPTURE(line);
    CHECK(has(of_glm.text, line));
  }
}

TEST_CASE("gpt-oss: transformers' keys, and the layers that have a window, however many are built") {
  const ModelGraph model = load_model("gpt-oss-20b");
  const Emitted out = emit("pytorch", plan_of(model, "block", 8), model);
  for (const char* line : {"MODEL_TYPE = \"gpt_oss\"", "\"num_hidden_layers\": 24, \"intermediate_size\": 2880,",
                           "\"num_local_experts\": 32, \"num_experts_per_tok\": 4,", "\"sliding_window\": 128,",
                           "\"layer_types\": [\"sliding_attention\", \"full_attention\", ", "\"attention_bias\": True,",
                           "config[\"layer_types\"] = config[\"layer_types\"][:config[\"num_hidden_layers\"]]"}) {
    CAPTURE(line);
    CHECK(has(out.text, line));
  }
  CHECK(any_has(out.cannot_express, "rotary positions are not scaled"));
  const ModelGraph whole = model_from_config(R"({"model_type": "gpt_oss", "vocab_size": 64, "hidden_size": 32,
      "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["full_attention", "full_attention"]})",
                                             "config.json");
  const std::string text = emit("pytorch", plan_of(whole, "block"), whole).text;
  CHECK(has(text, "\"sliding_window\": 128,"));  // its mask is made in any case
  CHECK(has(text, "\"layer_types\": [\"full_attention\", \"full_attention\"],"));
}

TEST_CASE("torchtitan-toml: keys of a TOML config") {
  const ModelGraph model = small_llama({.layers = 4});
  ShardingPlan plan = plan_of(model, "titan", 8, 2);
  plan.micro_batches = {3, 3};
  plan.clip_norm = 1.0;
  plan.checkpointed = {"model.layers.1", "model.layers.3"};
  const Emitted out = emit("torchtitan-toml", plan, model);
  for (const char* line :
       {"\nlocal_batch_size = 3\n", "\nglobal_batch_size = 48\n", "\nseq_len = 16\n", "\nmax_norm = 1.0\n",
        "\ndata_parallel_replicate_degree = 2\n", "\ndata_parallel_shard_degree = 4\n",
        "\nfsdp_reshard_after_forward = \"default\"\n", "\nmode = \"selective\"\nselective_ac_option = \"2\"\n",
        "\nmixed_precision_param = \"bfloat16\"\n"}) {
    CAPTURE(line);
    CHECK(has(out.text, line));
  }
  CHECK_FALSE(any_has(out.cannot_express, "units"));
  CHECK_FALSE(any_has(out.cannot_express, "which block"));
  CHECK(plan.checkpointed == checkpointed_modules(model, "last-of-2", "test"));
  plan.checkpointed = checkpointed_modules(model, "every-2", "test");  // blocks 0 and 2: torchtitan takes 1 and 3
  CHECK(any_has(emit("torchtitan-toml", plan, model).cannot_express, "which block recomputation starts at"));
  set_checkpointing(plan, model, "selective-op", "test");
  CHECK(has(emit("torchtitan-toml", plan, model).text, "\nmode = \"selective\"\nselective_ac_option = \"op\"\n"));
  CHECK_FALSE(any_has(emit("torchtitan-toml", plan, model).cannot_express, "recomputation"));
  plan.checkpointed.pop_back();
  CHECK(any_has(emit("torchtitan-toml", plan, model).cannot_express, "recomputation of these modules"));
  for (Unit& u : plan.units) u.reshard_after_forward = Reshard::no;
  CHECK(has(emit("torchtitan-toml", plan, model).text, "\"never\""));
  for (std::size_t u = 0; u + 1 < plan.units.size(); ++u) plan.units[u].reshard_after_forward = Reshard::yes;
  CHECK(has(emit("torchtitan-toml", plan, model).text, "\"always\""));
  CHECK(any_has(emit("torchtitan-toml", plan_of(model, "block"), model).cannot_express, "units"));
  CHECK(has(emit("torchtitan-toml", plan_of(load_model("llama3-8b"), "titan"), load_model("llama3-8b")).text,
            "name = \"llama3\"\nflavor = \"8B\"\n"));
}

TEST_CASE("torchtitan: a Python configuration and arguments, since February 2026") {
  const ModelGraph model = load_model("llama3-8b");
  ShardingPlan plan = plan_of(model, "titan", 8, 2);
  plan.seq_len = 512;
  plan.micro_batches = {3, 3};
  plan.clip_norm = 1.0;
  set_checkpointing(plan, model, "selective-op", "test");
  const Emitted python = emit("torchtitan", plan, model), words = emit("torchtitan-args", plan, model);
  for (const char* line :
       {"\nfrom torchtitan.models.llama3.config_registry import llama3_8b\n", "\n    config = llama3_8b()\n",
        "\n    config.training.num_tokens_per_microbatch_per_dp_rank = 1536\n",
        "\n    config.training.num_tokens_per_train_step = 24576\n", "\n    config.training.max_context_length = 512\n",
        "\n    config.parallelism.data_parallel_replicate_degree = 2\n",
        "\n    config.parallelism.fsdp_reshard_after_forward = \"default\"\n",
        "\n    config.activation_checkpoint = SelectiveAC.Config()\n", "\n    return config\n"}) {
    CAPTURE(line);
    CHECK(has(python.text, line));
  }
  for (const char* word : {"MODULE=llama3 CONFIG=llama3_8b", "--training.num_tokens_per_microbatch_per_dp_rank 1536 ",
                           "--parallelism.data_parallel_shard_degree 4 ", "--training.no-enable_cpu_offload ",
                           "\n  activation-checkpoint:selective\n"}) {
    CAPTURE(word);
    CHECK(has(words.text, word));
  }
  for (const Emitted& out : {python, words}) CHECK_FALSE(out.changes_prediction());
  plan.checkpoint_policy = CheckpointPolicy::full;
  plan.checkpointed = checkpointed_modules(model, "every-2", "test");
  const Emitted none = emit("torchtitan", plan, model);
  CHECK(has(none.text, "config.activation_checkpoint = None\n"));
  CHECK(none.written.checkpointed.empty());
  CHECK(any_has(none.cannot_express, "recomputation of some of 32 blocks"));
}

TEST_CASE("transformers: rules for modules by name; norm and head that are kept are one unit") {
  const ModelGraph model = load_model("tiny-llama");
  const ShardingPlan plan = plan_of(model, "titan", 8, 2);
  const Emitted out = emit("transformers", plan, model);
  for (const char* line :
       {"    fsdp_size=4,\n    dp_replicate_size=2,\n", "        \"lm_head\": \"keep_full_weight\",\n",
        "        \"model.embed_tokens\": \"free_full_weight\",\n",
        "        \"model.layers.*\": \"free_full_weight\",\n", "        \"model.norm\": \"keep_full_weight\",\n",
        "    fsdp_mixed_precision=True,\n", "    config.base_model_fsdp_plan = {}\n",
        "    model_class._fsdp_plan = {}\n"}) {
    CAPTURE(line);
    CHECK(has(out.text, line));
  }
  CHECK_FALSE(out.changes_prediction());
  ShardingPlan kept = plan;
  for (Unit& u : kept.units) u.reshard_after_forward = Reshard::no;
  kept.units.back().reshard_after_forward = Reshard::automatic;
  const Emitted apart = emit("transformers", kept, model);  // four are kept: it does not group two of them
  CHECK(any_has(apart.cannot_express, "groups of modules"));
  CHECK(apart.written.units.size() == kept.units.size() + 1);
  ShardingPlan some = plan_of(model, "block", 8, 2);
  some.units.erase(some.units.begin());
  CHECK(any_has(emit("transformers", some, model).cannot_express, "some modules of those that are named alike"));
}

TEST_CASE("automodel: blocks and the root, reshard of all but the last block, prefetch depths") {
  const ModelGraph model = load_model("tiny-llama");
  ShardingPlan plan = plan_of(model, "block", 8, 2);
  plan.clip_norm = 1.0;
  plan.forward_prefetch = 1;
  plan.backward_prefetch = 2;
  CHECK(has(emit("automodel", plan, model).text, "\n  reshard_after_forward: true\n"));
  plan.units[plan.units.size() - 2].reshard_after_forward = Reshard::no;
  const Emitted out = emit("automodel", plan, model);
  for (const char* line : {"\n  reshard_after_forward: null\n", "\n  dp_size: 8\n  dp_replicate_size: 2\n",
                           "\n  enable_fsdp2_prefetch: true\n",
                           "\n  fsdp2_forward_prefetch_depth: 1\n  fsdp2_backward_prefetch_depth: 2\n",
                           "\n    _target_: torch.distributed.fsdp.MixedPrecisionPolicy\n    param_dtype: bfloat16\n",
                           "\nclip_grad_norm:\n  max_norm: 1.0\n"}) {
    CAPTURE(line);
    CHECK(has(out.text, line));
  }
  CHECK_FALSE(out.changes_prediction());
  CHECK(any_has(emit("automodel", plan_of(model, "titan", 8), model).cannot_express, "the plan's units"));
}

TEST_CASE("composer, lightning and deepspeed: what they hold and what they do not") {
  const ModelGraph model = load_model("tiny-llama");
  ShardingPlan plan = plan_of(model, "titan", 8, 2);
  plan.units[1].reshard_after_forward = Reshard{2};
  const Emitted composer = emit("composer", plan, model), lightning = emit("lightning", plan, model),
                deepspeed = emit("deepspeed", plan, model);
  CHECK(has(composer.text, "    \"model.layers.0\": 2,\n"));
  CHECK(has(composer.text, "(4, 2), mesh_dim_names") == false);
  CHECK(has(composer.text, "(2, 4), mesh_dim_names=(\"replicate\", \"shard\")"));
  CHECK(any_has(composer.cannot_express, "groups of modules"));
  CHECK_FALSE(lightning.changes_prediction());
  CHECK(lightning.written == plan);
  const std::string begin = "r'''\n";
  const std::string json = lightning.text.substr(lightning.text.find(begin) + begin.size());
  CHECK(parse_plan(json.substr(0, json.find("'''")), "lightning") == plan);
  CHECK_FALSE(deepspeed.predictable());
  CHECK(has(deepspeed.text, "\"stage\": 3"));
  for (const char* format : {"transformers", "automodel", "composer", "lightning"})
    CHECK_THROWS_AS((void)emit(format, naive_plan(model, {.ranks = 4, .seq_len = 8, .dialect = Dialect::ddp}), model),
                    InputError);
}

TEST_CASE("emitted PyTorch scripts parse, and train with the plan's units where torch is installed") {
  const TemporaryFolder folder;
  std::string scripts, arguments;
  for (const Case& c : cases()) {
    const std::filesystem::path script = folder.path() / (c.name + ".py"), units = folder.path() / (c.name + ".json");
    std::ofstream(script) << emit("pytorch", c.plan, c.model).text;
    std::ofstream(units) << expected_units(c.plan, c.model);
    scripts += fmt::format(" '{}'", script.string());
    arguments += fmt::format(" '{}' '{}'", script.string(), units.string());
  }
  if (run(chosen_python() + " -c pass") != 0) {
    MESSAGE("skipped: there is no '" << chosen_python() << "' to read the scripts with (set FSDP_PLAN_PYTHON)");
    return;
  }
  CHECK(run(chosen_python() + " -m py_compile" + scripts) == 0);
  const int code = run(chosen_python() + " '" FSDP_TESTS_DIR "/torch/run_emitted.py'" + arguments);
  if (code == 77) {
    MESSAGE("skipped: '" << chosen_python()
                         << "' cannot import torch, so the scripts were read but not run (set FSDP_PLAN_PYTHON)");
    return;
  }
  CHECK(code == 0);
}
