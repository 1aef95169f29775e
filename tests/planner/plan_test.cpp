// Plans: each rule refused with its own sentence, JSON there and back, digests.
#include "planner/plan.h"
#include "planner/plan/file.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "models/input/error.h"
#include "planner/layout.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

std::string message(auto&& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "(accepted)";
}

std::string refusal(const ShardingPlan& plan, const ModelGraph& model) {
  return message([&] { check(plan, model, "plan.json"); });
}

void check_has(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  CHECK(text.find(part) != std::string::npos);
}

ShardingPlan naive(const ModelGraph& model, std::int64_t ranks = 4) {
  return naive_plan(model, {.ranks = ranks, .seq_len = 8});
}

struct Rule {
  const char* says;
  void (*breaks)(ShardingPlan&);
};

}  // namespace

TEST_CASE("the naive plan is one unit per block and the root, and passes") {
  const ModelGraph model = small_llama();
  const ShardingPlan plan = naive(model);
  CHECK_NOTHROW(check(plan, model));
  REQUIRE(plan.units.size() == 4);
  CHECK(plan.units[0].modules == std::vector<std::string>{"model.layers.0"});
  CHECK(plan.units[3].modules == std::vector<std::string>{""});
  CHECK(plan.shard() == 4);
  CHECK(plan.replicate() == 1);
  CHECK(naive_plan(model, {.ranks = 12, .replicate = 3, .seq_len = 8}).shard() == 4);
  CHECK(plan.tokens_per_step() == 4 * 8);
  CHECK_NOTHROW(check(naive_plan(model, {.ranks = 3, .seq_len = 8, .dialect = Dialect::ddp}), model));
  CHECK_THROWS_AS((void)naive_plan(model, {.ranks = 6, .replicate = 4}), InputError);
  CHECK_THROWS_AS((void)naive_plan(model, {.ranks = 0}), InputError);
  CHECK_THROWS_AS((void)naive_plan(model, {.ranks = 6, .replicate = 0}), InputError);
}

TEST_CASE("a plan that breaks a rule is refused with the field that breaks it") {
  const ModelGraph model = small_llama();
  const Rule rules[] = {
      {"plan.json: model_digest: the plan was made for another model",
       [](ShardingPlan& p) { p.model_digest = "0123456789abcdef"; }},
      {"units[1].modules: no module is named 'model.layers.9'",
       [](ShardingPlan& p) { p.units[1].modules = {"model.layers.9"}; }},
      {"units[1].modules: 'model.layers.0' is listed twice",
       [](ShardingPlan& p) { p.units[1].modules = {"model.layers.0"}; }},
      {"units[0].modules: 'model.layers.0' is listed twice",
       [](ShardingPlan& p) {
         p.units[0].modules = {"model.layers.0", "model.layers.0"};
       }},
      {"units[0].modules: 'model.layers' is a ModuleList",
       [](ShardingPlan& p) { p.units[0].modules = {"model.layers"}; }},
      {"units[0].modules: the unit has no modules", [](ShardingPlan& p) { p.units[0].modules.clear(); }},
      {"units[1].modules: 'model.layers.0.mlp' comes after units[0], which holds 'model.layers.0' around it",
       [](ShardingPlan& p) { p.units.insert(p.units.begin() + 1, {{"model.layers.0.mlp"}}); }},
      {"units[0].modules: 'model.layers.0.mlp' lies inside 'model.layers.0' of the same unit",
       [](ShardingPlan& p) { p.units[0].modules.push_back("model.layers.0.mlp"); }},
      {"units: the last unit must be the root", [](ShardingPlan& p) { p.units.pop_back(); }},
      {"units: the last unit must be the root", [](ShardingPlan& p) { p.units.clear(); }},
      {"units[0].modules: the root \"\" must be a unit by itself",
       [](ShardingPlan& p) { p.units.insert(p.units.begin(), p.units.back()); }},
      {"units[0].modules: the root \"\" must be a unit by itself",
       [](ShardingPlan& p) { p.units[0].modules.push_back(""); }},
      {"mesh: there is no dimension 'pipeline'",
       [](ShardingPlan& p) {
         p.mesh.push_back({"pipeline", 2});
       }},
      {"mesh: dimension 'shard' has size 0",
       [](ShardingPlan& p) {
         p.mesh = {{"shard", 0}};
       }},
      {"mesh: dimension 'shard' has size -8",
       [](ShardingPlan& p) {
         p.mesh = {{"shard", -8}};
       }},
      {"mesh: dimension 'replicate' is repeated or out of order",
       [](ShardingPlan& p) {
         p.mesh = {{"shard", 2}, {"replicate", 2}};
       }},
      {"mesh: dimension 'shard' is repeated or out of order",
       [](ShardingPlan& p) {
         p.mesh = {{"shard", 2}, {"shard", 2}};
       }},
      {"mesh: more than 1,048,576 ranks",
       [](ShardingPlan& p) {
         p.mesh = {{"replicate", 2048}, {"shard", 1024}};
       }},
      {"mesh: more than 1,048,576 ranks",
       [](ShardingPlan& p) {
         p.mesh = {{"replicate", 2}, {"shard", std::numeric_limits<std::int64_t>::max()}};
       }},
      {"micro_batches: there is no micro-batch", [](ShardingPlan& p) { p.micro_batches.clear(); }},
      {"micro_batches: a micro-batch of 0 sequences",
       [](ShardingPlan& p) {
         p.micro_batches = {2, 0};
       }},
      {"micro_batches: a micro-batch of -1 sequences", [](ShardingPlan& p) { p.micro_batches = {-1}; }},
      {"micro_batches: a micro-batch of 9223372036854775807 sequences; use at most 65,536",
       [](ShardingPlan& p) { p.micro_batches = {std::numeric_limits<std::int64_t>::max()}; }},
      {"micro_batches: a micro-batch of 65537 sequences",
       [](ShardingPlan& p) {
         p.micro_batches = {1, 65'537};
       }},
      {"micro_batches: 65536 sequences of 4097 tokens are more than 268,435,456 tokens at once",
       [](ShardingPlan& p) {
         p.micro_batches = {1, 65'536};
         p.seq_len = 4097;
       }},
      {"micro_batches: more than 2^36 tokens",
       [](ShardingPlan& p) {
         p.micro_batches.assign(4000, 65'536);
         p.seq_len = 4096;
       }},
      {"micro_batches: more than 4,096 micro-batches", [](ShardingPlan& p) { p.micro_batches.assign(4097, 1); }},
      {"seq_len: 0 tokens per sequence", [](ShardingPlan& p) { p.seq_len = 0; }},
      {"seq_len: 16777217 tokens per sequence; use at most 16,777,216",
       [](ShardingPlan& p) { p.seq_len = (std::int64_t{1} << 24) + 1; }},
      {"seq_len: 4294967296 tokens per sequence", [](ShardingPlan& p) { p.seq_len = std::int64_t{1} << 32; }},
      {"wrap: \"a?b\" holds a control character", [](ShardingPlan& p) { p.wrap = "a\nb"; }},
      {"checkpointed: no module is named 'x'", [](ShardingPlan& p) { p.checkpointed = {"x"}; }},
      {"checkpointed: 'model.layers.1' is listed twice",
       [](ShardingPlan& p) {
         p.checkpointed = {"model.layers.1", "model.layers.1"};
       }},
      {"checkpointed: 'model.layers.1.mlp' lies inside 'model.layers.1'",
       [](ShardingPlan& p) {
         p.checkpointed = {"model.layers.1.mlp", "model.layers.1"};
       }},
      {"checkpointed: 'model.layers' is a ModuleList", [](ShardingPlan& p) { p.checkpointed = {"model.layers"}; }},
      {"checkpointed: the root cannot be recomputed", [](ShardingPlan& p) { p.checkpointed = {""}; }},
      {"param_dtype: int64 cannot hold gradients", [](ShardingPlan& p) { p.param_dtype = DType::i64; }},
      {"reduce_dtype: int64 cannot hold gradients", [](ShardingPlan& p) { p.reduce_dtype = DType::i64; }},
      {"master_dtype: int64 cannot hold gradients", [](ShardingPlan& p) { p.master_dtype = DType::i64; }},
      {"optimizer.lr: -0.1", [](ShardingPlan& p) { p.optimizer.lr = -0.1; }},
      {"optimizer.lr: 0.000000 is out of range; use a number above 0", [](ShardingPlan& p) { p.optimizer.lr = 0; }},
      {"optimizer.lr: 9223372036854775808", [](ShardingPlan& p) { p.optimizer.lr = 0x1p63; }},
      {"optimizer.weight_decay: 2000000", [](ShardingPlan& p) { p.optimizer.weight_decay = 2e6; }},
      {"optimizer.beta2: 1.0", [](ShardingPlan& p) { p.optimizer.beta2 = 1; }},
      {"optimizer.eps: 0.0", [](ShardingPlan& p) { p.optimizer.eps = 0; }},
      {"optimizer.weight_decay: nan",
       [](ShardingPlan& p) { p.optimizer.weight_decay = std::numeric_limits<double>::quiet_NaN(); }},
      {"clip_norm: 0.0", [](ShardingPlan& p) { p.clip_norm = 0.0; }},
      {"clip_norm_type: 0.5", [](ShardingPlan& p) { p.clip_norm_type = 0.5; }},
      {"clip_norm_type: nan", [](ShardingPlan& p) { p.clip_norm_type = std::numeric_limits<double>::quiet_NaN(); }},
      {"clip_norm: inf", [](ShardingPlan& p) { p.clip_norm = std::numeric_limits<double>::infinity(); }},
      {"forward_prefetch: -1 units", [](ShardingPlan& p) { p.forward_prefetch = -1; }},
      {"backward_prefetch: -1 units", [](ShardingPlan& p) { p.backward_prefetch = -1; }},
      {"backward_prefetch: 2000 units", [](ShardingPlan& p) { p.backward_prefetch = 2000; }},
      {"backward_post: fsdp2 has no prefetch after", [](ShardingPlan& p) { p.backward_post = true; }},
      {"limit_all_gathers: fsdp2 does not hold the host back", [](ShardingPlan& p) { p.limit_all_gathers = false; }},
      {"use_orig_params: fsdp2 has no flat parameters", [](ShardingPlan& p) { p.use_orig_params = false; }},
      {"trained_outermost: fsdp2 shards no parameter", [](ShardingPlan& p) { p.trained_outermost = true; }},
      {"reentrant: reentrant checkpoints are known of fsdp1 alone", [](ShardingPlan& p) { p.reentrant = true; }},
      {"grad_sync: reduce-scatter-only leaves out the all-reduce over replicas, but there is one",
       [](ShardingPlan& p) { p.grad_sync = GradSync::reduce_scatter_only; }},
      {"mesh: ddp replicates parameters and cannot shard them over 4 ranks",
       [](ShardingPlan& p) { p.dialect = Dialect::ddp; }},
  };
  for (const Rule& rule : rules) {
    ShardingPlan plan = naive(model);
    rule.breaks(plan);
    const std::string said = refusal(plan, model);
    check_has(said, rule.says);
    CHECK(said.starts_with("plan.json: "));
  }
}

TEST_CASE("ddp has no sharding, no second dtype, no prefetch") {
  const ModelGraph model = small_llama();
  const ShardingPlan good = naive_plan(model, {.ranks = 4, .seq_len = 8, .dialect = Dialect::ddp});
  ShardingPlan plan = good;
  plan.param_dtype = DType::bf16;
  check_has(refusal(plan, model),
            "param_dtype: ddp computes and reduces in the dtype its parameters are kept in (fp32)");
  plan = good;
  plan.reduce_dtype = DType::bf16;
  check_has(refusal(plan, model), "reduce_dtype: ddp computes");
  plan = good;
  plan.grad_sync = GradSync::reduce_scatter_only;
  check_has(refusal(plan, model), "grad_sync: ddp has no reduce-scatter");
  plan = good;
  plan.forward_prefetch = 1;
  check_has(refusal(plan, model), "forward_prefetch: ddp gathers nothing");
  plan = good;
  plan.units[0].reshard_after_forward = Reshard::yes;
  check_has(refusal(plan, model), "units[0].reshard_after_forward: ddp keeps parameters whole");
}

TEST_CASE("a unit whose parameters all lie in units inside it has hooks under fsdp2, and nothing to do elsewhere") {
  const ModelGraph model = small_llama();
  const auto split = [&](Dialect dialect) {
    ShardingPlan plan = naive_plan(model, {.ranks = 4, .seq_len = 8, .dialect = dialect});
    std::vector<Unit> inner;
    for (const char* module : {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
      inner.push_back({{std::string("model.layers.0.") + module}});
    plan.units.insert(plan.units.begin(), inner.begin(), inner.end());
    return plan;
  };
  CHECK_NOTHROW(check(split(Dialect::fsdp2), model));
  for (const Dialect dialect : {Dialect::fsdp1, Dialect::ddp})
    check_has(refusal(split(dialect), model),
              "units[4].modules: the unit of 'model.layers.0' has no parameters of its own, so that " +
                  std::string(name(dialect)) + " has nothing to do for it");
}

TEST_CASE("tied parameters may not be split over two units") {
  const ModelGraph model = small_llama({.tied = true});
  ShardingPlan plan = naive(model);
  CHECK_NOTHROW(check(plan, model));  // both in the root
  plan.units.insert(plan.units.begin(), {{"model.embed_tokens"}});
  check_has(refusal(plan, model),
            "units: the tied parameter 'model.embed_tokens.weight' (also 'lm_head.weight') would lie in units[0] and "
            "units[4], which PyTorch refuses, too");
  plan.units[0].modules = {"model.embed_tokens", "lm_head"};
  CHECK_NOTHROW(check(plan, model));
}

TEST_CASE("an empty name stands for no parameter") {
  const ModelGraph model = load_model("llama3-8b");
  ShardingPlan plan = naive(model);
  plan.shard_dims = {{"", 1}};
  CHECK_THROWS_WITH_AS(resolve_ids(plan, model), doctest::Contains("no parameter is named ''"), InputError);
}

TEST_CASE("learned positions bound the sequence length") {
  const ModelGraph model = model_from_config(
      R"({"model_type": "gpt2", "vocab_size": 50, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"})",
      "gpt2");
  ShardingPlan plan = naive(model);
  plan.seq_len = 16;
  CHECK_NOTHROW(check(plan, model));
  plan.seq_len = 17;
  check_has(refusal(plan, model), "seq_len: 17 tokens, but");
}

TEST_CASE("a plan for another model is refused even if all names fit") {
  const ModelGraph model = small_llama(), wider = small_llama({.inner = 48});
  check_has(refusal(naive(wider), model), "model_digest");
}

namespace {

ShardingPlan random_plan(const ModelGraph& model, std::mt19937_64& random) {
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  const auto real = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  ShardingPlan p = naive(model);
  p.dialect = pick(Dialect::fsdp2, Dialect::fsdp1, Dialect::ddp);
  p.wrap = pick("block", "", "class:\"a\\b\"\n", "params:1e8");
  p.mesh = random() % 2 ? std::vector<MeshDim>{{"replicate", static_cast<std::int64_t>(random() % 9 + 1)},
                                               {"shard", static_cast<std::int64_t>(random() % 99 + 1)}}
                        : std::vector<MeshDim>{{"shard", 1}};
  p.units = wrap(model, pick("root", "block", "params:300", "titan"), "test");
  for (Unit& u : p.units) u.reshard_after_forward = pick(Reshard::automatic, Reshard::yes, Reshard::no);
  for (Unit& u : p.units) {
    if (random() % 4 == 0) u.param_dtype = pick(DType::f32, DType::bf16, DType::i64);
    if (random() % 4 == 0) u.reduce_dtype = pick(DType::f32, DType::f16);
    if (random() % 4 == 0) u.output_dtype = pick(DType::f64, DType::bf16);
    u.cast_forward_inputs = random() % 4 != 0;
  }
  p.checkpointed = checkpointed_modules(model, pick("none", "full", "every-2", "first-1"), "test");
  p.micro_batches.assign(random() % 4, 1 + static_cast<std::int64_t>(random() >> 2));
  p.seq_len = static_cast<std::int64_t>(random());
  p.grad_sync = pick(GradSync::every, GradSync::last, GradSync::reduce_scatter_only);
  p.forward_prefetch = static_cast<int>(random() % 5) - 1;
  p.backward_prefetch = static_cast<int>(random() % 5) - 1;
  p.param_dtype = pick(DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64);
  p.reduce_dtype = pick(DType::f64, DType::f32, DType::bf16, DType::f16);
  p.master_dtype = pick(DType::f64, DType::f32, DType::bf16, DType::f16);
  p.optimizer = {pick(OptimizerKind::adamw, OptimizerKind::sgd), real() * 1e-3, real(), real(), real() * 1e-12, real()};
  if (random() % 2) p.clip_norm = real() * 1e300;
  p.clip_norm_type = pick(2.0, 1.0, 3.5, std::numeric_limits<double>::infinity());
  p.seed = random();
  return p;
}

}  // namespace

TEST_CASE("parse(to_json_text(p)) == p for generated plans") {
  const std::uint64_t seed = 7;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const ModelGraph model = small_llama();
  for (int i = 0; i < 200; ++i) {
    const ShardingPlan plan = random_plan(model, random);
    const std::string text = to_json_text(plan);
    CAPTURE(text);
    const ShardingPlan back = parse_plan(text, "plan.json");
    CHECK(back == plan);
    CHECK(to_json_text(back) == text);
  }
}

TEST_CASE("documents that are no plans are refused by name, every cut and every change without a crash") {
  const ModelGraph model = small_llama();
  const std::string text = to_json_text(naive(model));
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string t = text;
    REQUIRE(t.find(from) != std::string::npos);
    t.replace(t.find(from), from.size(), to);
    return message([&] { (void)parse_plan(t, "plan.json"); });
  };
  check_has(edited("fsdp-plan/plan/1", "fsdp-plan/prediction/1"), "schema");
  check_has(edited("\"seq_len\"", "\"sequence\""), "seq_len");
  check_has(edited("\"seed\": 0", "\"seed\": 0, \"colour\": 1"), "colour");
  check_has(edited("\"seq_len\": 8", "\"seq_len\": \"8\""), "seq_len");
  check_has(edited("\"seq_len\": 8", "\"seq_len\": 8.5"), "seq_len");
  check_has(edited("\"seq_len\": 8", "\"seq_len\": 99999999999999999999"), "seq_len");
  check_has(edited("\"fsdp2\"", "\"fsdp3\""), "dialect: unknown dialect 'fsdp3'");
  check_has(edited("\"bf16\"", "\"bfloat\""), "param_dtype");
  check_has(edited("\"auto\"", "\"maybe\""), "units[0].reshard_after_forward");
  check_has(edited("\"auto\"", "0"), "units[0].reshard_after_forward");
  check_has(edited("\"adamw\"", "\"lion\""), "optimizer");
  check_has(edited("\"name\": \"shard\"", "\"name\": 3"), "mesh[1].name");
  check_has(edited("\"name\": \"shard\"", "\"name\": \"tensor\""),
            "plan.json: mesh: has no dimension 'shard'; add {\"name\": \"shard\", \"size\": N}");
  const std::string mesh = text.substr(text.find("\"mesh\": ["), text.find("\"seq_len\"") - text.find("\"mesh\": ["));
  check_has(edited(mesh, "\"mesh\": [], "), "mesh: has no dimension 'shard'");
  for (std::size_t cut = 0; cut + 2 < text.size(); ++cut)
    CHECK_THROWS_AS((void)parse_plan(text.substr(0, cut), "plan.json"), InputError);
  std::mt19937_64 random(11);
  for (int i = 0; i < 2000; ++i) {  // accepted or refused, never anything else
    std::string t = text;
    t[random() % t.size()] = static_cast<char>(random() % 256);
    (void)message([&] { (void)parse_plan(t, "plan.json"); });
  }
}

TEST_CASE("the digest ignores what is for people and how a mesh is written, and nothing else") {
  const ModelGraph model = small_llama();
  const ShardingPlan plan = naive(model);
  ShardingPlan same = plan;
  same.wrap = "something else";
  same.model_name = "another name of the same model";
  same.mesh = {{"shard", 4}};
  CHECK(same.digest() == plan.digest());
  void (*const changes[])(ShardingPlan&) = {
      [](ShardingPlan& p) { p.dialect = Dialect::ddp; },
      [](ShardingPlan& p) { p.model_digest += "0"; },
      [](ShardingPlan& p) {
        p.mesh = {{"replicate", 4}, {"shard", 1}};
      },
      [](ShardingPlan& p) { p.units[0].reshard_after_forward = Reshard::no; },
      [](ShardingPlan& p) { p.units.erase(p.units.begin()); },
      [](ShardingPlan& p) { p.checkpointed = {"model.layers.0"}; },
      [](ShardingPlan& p) {
        p.micro_batches = {1, 1};
      },
      [](ShardingPlan& p) { p.seq_len = 9; },
      [](ShardingPlan& p) { p.grad_sync = GradSync::last; },
      [](ShardingPlan& p) { p.forward_prefetch = 1; },
      [](ShardingPlan& p) { p.backward_prefetch = 2; },
      [](ShardingPlan& p) { p.param_dtype = DType::f32; },
      [](ShardingPlan& p) { p.reduce_dtype = DType::bf16; },
      [](ShardingPlan& p) { p.master_dtype = DType::bf16; },
      [](ShardingPlan& p) { p.optimizer.lr = 1; },
      [](ShardingPlan& p) { p.optimizer.kind = OptimizerKind::sgd; },
      [](ShardingPlan& p) { p.optimizer.kind = OptimizerKind::adamw_8bit; },
      [](ShardingPlan& p) { p.optimizer.momentum = 0.9; },
      [](ShardingPlan& p) { p.clip_norm = 1.0; },
      [](ShardingPlan& p) { p.clip_norm_type = 1; },
      [](ShardingPlan& p) { p.clip_norm_type = std::numeric_limits<double>::infinity(); },
      [](ShardingPlan& p) { p.seed = 1; },
      [](ShardingPlan& p) {
        p.torch = {2, 11};
      },
      [](ShardingPlan& p) { p.units[0].reshard_after_forward = {2}; },
      [](ShardingPlan& p) { p.units[0].reshard_after_backward = false; },
      [](ShardingPlan& p) { p.units[0].unshard_in_backward = false; },
      [](ShardingPlan& p) { p.units[0].grad_sync = GradSync::last; },
      [](ShardingPlan& p) { p.units[0].gradient_divide_factor = 3; },
      [](ShardingPlan& p) { p.units[0].forward_prefetch = {"model.layers.1"}; },
      [](ShardingPlan& p) { p.units[1].backward_prefetch = {"model.layers.0"}; },
      [](ShardingPlan& p) { p.units[0].param_dtype = DType::f16; },
      [](ShardingPlan& p) { p.units[0].reduce_dtype = DType::f16; },
      [](ShardingPlan& p) { p.units[0].output_dtype = DType::f16; },
      [](ShardingPlan& p) { p.units[0].cast_forward_inputs = false; },
      [](ShardingPlan& p) { p.checkpoint_policy = CheckpointPolicy::selective_op; },
      [](ShardingPlan& p) { p.loss_chunks = 4; },
      [](ShardingPlan& p) { p.loop.unshard_async = true; },
      [](ShardingPlan& p) { p.loop.post_optim_event = true; },
      [](ShardingPlan& p) { p.loop.last_backward = true; },
      [](ShardingPlan& p) { p.loop.forwards = 2; },
      [](ShardingPlan& p) { p.loop.loss_in_model = true; },
      [](ShardingPlan& p) { p.loop.host_threads = 8; },
      [](ShardingPlan& p) { p.loop.chunk_head = true; },
      [](ShardingPlan& p) { p.loop.unshard = {"model.layers.1"}; },
      [](ShardingPlan& p) { p.loop.reshard = {"model.layers.1"}; },
      [](ShardingPlan& p) { p.offload = true; },
      [](ShardingPlan& p) { p.ignored = {"lm_head"}; },
      [](ShardingPlan& p) {
        p.shard_dims = {{"lm_head.weight", 1}};
      },
      [](ShardingPlan& p) { p.float8.recipe = Float8Recipe::rowwise; },
      [](ShardingPlan& p) { p.float8.recipe = Float8Recipe::rowwise_with_gw_hp; },
      [](ShardingPlan& p) {
        p.float8 = {Float8Recipe::tensorwise, true};
      },
      [](ShardingPlan& p) {
        p.float8 = {Float8Recipe::tensorwise, true, true};
      },
      [](ShardingPlan& p) { p.reduce_scatter_buffers = 2; },
      [](ShardingPlan& p) { p.separate_reduce_scatter = true; },
      [](ShardingPlan& p) { p.force_sum_reduction = true; },
      [](ShardingPlan& p) { p.share_comm_context = true; },
      [](ShardingPlan& p) { p.backward_post = true; },
      [](ShardingPlan& p) { p.limit_all_gathers = false; },
      [](ShardingPlan& p) { p.use_orig_params = false; },
      [](ShardingPlan& p) { p.trained_outermost = true; },
      [](ShardingPlan& p) { p.reentrant = true; },
  };
  for (const auto change : changes) {
    ShardingPlan other = plan;
    change(other);
    CHECK(other.digest() != plan.digest());
    CHECK(parse_plan(to_json_text(other), "plan.json") == other);
  }
}

TEST_CASE("units are checked without the model, too: none is empty, the root is the last one, inner before outer") {
  const Rule rules[] = {
      {"units: the last unit must be the root", [](ShardingPlan& p) { p.units.pop_back(); }},
      {"units[0].modules: the unit has no modules", [](ShardingPlan& p) { p.units[0].modules.clear(); }},
      {"units[0].modules: the root \"\" must be a unit by itself",
       [](ShardingPlan& p) { p.units[0].modules.push_back(""); }},
      {"units[1].modules: 'model.layers.0' is listed twice",
       [](ShardingPlan& p) { p.units[1].modules = {"model.layers.0"}; }},
      {"units[1].modules: 'model.layers.0.mlp' comes after units[0], which holds 'model.layers.0' around it",
       [](ShardingPlan& p) { p.units.insert(p.units.begin() + 1, {{"model.layers.0.mlp"}}); }},
  };
  for (const Rule& rule : rules) {
    ShardingPlan plan = naive(small_llama());
    rule.breaks(plan);
    check_has(message([&] { check(plan, "plan.json"); }), rule.says);
  }
}

TEST_CASE("a unit that does not say whether it reshards is told what there is to say") {
  std::string text = to_json_text(naive(small_llama()));
  const std::string key = "\"reshard_after_forward\"";
  text.replace(text.find(key), key.size(), "\"reshard\"");
  check_has(message([&] { (void)parse_plan(text, "plan.json"); }),
            "units[0].reshard_after_forward: is missing; add true, false, \"auto\" or a number of ranks");
}

TEST_CASE("a plan with several roots is refused where these are none, or beside what is not known of them") {
  const ModelGraph model = small_llama();
  ShardingPlan roots = naive(model);
  roots.units.pop_back();
  roots.units.push_back({{"model"}});
  roots.units.push_back({{"lm_head"}});
  roots.share_comm_context = true;
  CHECK_NOTHROW(check(roots, model));
  CHECK_NOTHROW(check(roots, "plan.json"));
  const Rule rules[] = {
      {"units: the last unit must be the root", [](ShardingPlan& p) { p.share_comm_context = false; }},
      {"units[4].param_dtype: a dtype of its own of the root 'lm_head'",
       [](ShardingPlan& p) { p.units.back().param_dtype = DType::f32; }},
      {"units[3].output_dtype: a dtype of its own of the root 'model'",
       [](ShardingPlan& p) { p.units[3].output_dtype = DType::bf16; }},
      {"share_comm_context: the unit of the whole model is the only root",
       [](ShardingPlan& p) { p.units.push_back({{""}}); }},
      {"units: no unit holds parameter 'lm_head.weight'", [](ShardingPlan& p) { p.units.pop_back(); }},
      {"the unit of 'model.norm' is a root and has 2 modules",
       [](ShardingPlan& p) {
         p.units.pop_back(), p.units.pop_back();
         p.units.push_back({{"model.norm", "lm_head"}});
         p.units.push_back({{"model.embed_tokens"}});
       }},
      {"'lm_head' lies outside of 'model', which holds 'model.norm' of the same unit",
       [](ShardingPlan& p) {
         p.units.pop_back();
         p.units.insert(p.units.end() - 1, {{"model.norm", "lm_head"}});
       }},
      {"beside another release of PyTorch",
       [](ShardingPlan& p) {
         p.torch = {2, 14};
       }},
      {"beside what the training loop does by hand", [](ShardingPlan& p) { p.loop.unshard_async = true; }},
      {"beside shards in host memory", [](ShardingPlan& p) { p.offload = true; }},
      {"(separate_reduce_scatter); leave out separate_reduce_scatter, or replace share_comm_context by the unit "
       "{\"modules\": [\"\"], \"reshard_after_forward\": \"auto\"} at the end of units",
       [](ShardingPlan& p) { p.separate_reduce_scatter = true; }},
  };
  for (const Rule& rule : rules) {
    ShardingPlan plan = roots;
    rule.breaks(plan);
    check_has(refusal(plan, model), rule.says);
  }
}

TEST_CASE("the note of what a plan was found for is kept in its file, and is no part of the plan") {
  const ModelGraph model = load_model("tiny-llama");
  const ShardingPlan plan = naive(model);
  const PlanFile file{plan, FoundFor{"hf", true}};
  const PlanFile read = parse_plan_file(to_json_text(file), "plan.json");
  CHECK(read == file);
  CHECK(read.found_for->text() == "hf, compiled");
  CHECK(read.plan.digest() == plan.digest());
  CHECK(parse_plan(to_json_text(file), "plan.json") == plan);
  CHECK(parse_plan_file(to_json_text(plan), "plan.json") == PlanFile{plan, std::nullopt});
  const auto refused = [&](const std::string& note) {
    std::string text = to_json_text(plan);
    return message([&] { (void)parse_plan_file(text.insert(1, "\"found_for\": " + note + ","), "plan.json"); });
  };
  check_has(refused("\"hf\""), "plan.json: found_for");
  check_has(refused(R"({"implementation": "hf"})"), "found_for");
  check_has(refused(R"({"implementation": "hf", "compile": 1})"), "found_for.compile");
  check_has(refused(R"({"implementation": "hf", "compile": true, "gpus": 8})"), "found_for.gpus");
}

TEST_CASE("names of closed choices read back; unknown ones list what there is") {
  for (const Dialect d : {Dialect::fsdp2, Dialect::fsdp1, Dialect::ddp}) CHECK(parse_dialect(name(d), "x") == d);
  for (const GradSync s : {GradSync::every, GradSync::last, GradSync::reduce_scatter_only})
    CHECK(parse_grad_sync(name(s), "x") == s);
  for (const Reshard r : {Reshard::automatic, Reshard::yes, Reshard::no}) CHECK(parse_reshard(name(r), "x") == r);
  for (const OptimizerKind o : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::adamw_8bit})
    CHECK(parse_optimizer(name(o), "x") == o);
  check_has(message([] { (void)parse_dialect("FSDP2", "--dialect"); }),
            "--dialect: unknown dialect 'FSDP2'; use one of: fsdp2, fsdp1, ddp");
  CHECK_THROWS_AS((void)parse_reshard("yes", "x"), InputError);
}

TEST_CASE("float8 of TransformerEngine: sides, tokens and recomputation that it or Composer does not have") {
  const ModelGraph model = small_llama({.hidden = 32, .inner = 48});
  ShardingPlan plan = naive(model);
  plan.float8.recipe = Float8Recipe::delayed;
  plan.seq_len = 12, plan.micro_batches = {2, 2};
  CHECK(refusal(plan, model) == "(accepted)");
  plan.dialect = Dialect::fsdp1;
  CHECK(refusal(plan, model) == "(accepted)");
  const ModelGraph odd = small_llama({.hidden = 32, .inner = 36});
  ShardingPlan of_odd = plan;
  of_odd.model_digest = odd.digest();
  CHECK(refusal(of_odd, odd) ==
        "plan.json: float8: te.Linear takes sides that are multiples of 16, and 'model.layers.0.mlp.gate_proj' is 32 "
        "by 36; "
        "leave it out");
  plan.micro_batches = {2, 1};
  CHECK(refusal(plan, model) ==
        "plan.json: seq_len: TransformerEngine multiplies no micro-batch of 12 tokens in 8 bits, as that is no "
        "multiple of "
        "8; use one that is");
  plan.micro_batches = {2, 2};
  set_checkpointing(plan, model, "full", "test");
  CHECK(
      refusal(plan, model).find("checkpointed: what is recomputed beside TransformerEngine's products runs outside") !=
      std::string::npos);
}

TEST_CASE("float8: what torchao, fully_shard and this program do not know is refused with its field") {
  const ModelGraph model = small_llama({.hidden = 32, .inner = 48});
  ShardingPlan plan = naive(model);
  plan.float8 = {Float8Recipe::tensorwise, true, true};
  CHECK(refusal(plan, model) == "(accepted)");
  const Rule rules[] = {
      {"float8: products in 8 bits beside ddp",
       [](ShardingPlan& p) {
         p.dialect = Dialect::ddp, p.param_dtype = DType::f32;
         p.mesh = {{"replicate", 4}};
       }},
      {"float8: tensorwise beside computing in fp16", [](ShardingPlan& p) { p.param_dtype = DType::f16; }},
      {"float8: torchao gathers weights in 8 bits with one scale per tensor only",
       [](ShardingPlan& p) { p.float8.recipe = Float8Recipe::rowwise; }},
      {"float8: scales are computed ahead", [](ShardingPlan& p) { p.float8.all_gather = false; }},
      {"float8: says how weights are gathered in 8 bits",
       [](ShardingPlan& p) { p.float8.recipe = Float8Recipe::none; }},
      {"float8: one rank gathers nothing",
       [](ShardingPlan& p) {
         p.mesh = {{"replicate", 4}};
       }},
      {"float8: casting shards in fp64", [](ShardingPlan& p) { p.master_dtype = DType::f64; }},
      {"float8: casting shards that live in host memory", [](ShardingPlan& p) { p.offload = true; }},
      {"units[0].reshard_after_forward: PyTorch cannot gather 'model.layers.0.self_attn.q_proj.weight' in 8 bits",
       [](ShardingPlan& p) { p.units[0].reshard_after_forward = {2}; }},
      {"shard_dims: gathering 'model.layers.1.mlp.up_proj.weight' in 8 bits is known on dimension 0 only",
       [](ShardingPlan& p) {
         p.shard_dims = {{"model.layers.1.mlp.up_proj.weight", 1}};
       }},
      {"float8: torchao cannot gather 'model.layers.0.self_attn.q_proj.weight' in 8 bits: 3 ranks do not divide",
       [](ShardingPlan& p) {
         p.mesh = {{"shard", 3}};
       }},
  };
  for (const Rule& rule : rules) {
    ShardingPlan broken = plan;
    rule.breaks(broken);
    check_has(refusal(broken, model), rule.says);
  }
  const ModelGraph narrow = small_llama(), experts = small_mixtral();
  const std::string none = "float8: no linear layer of 'small_llama' is converted";
  ShardingPlan of_narrow = naive(narrow), of_experts = naive(experts);
  of_narrow.float8 = of_experts.float8 = {Float8Recipe::rowwise};
  check_has(refusal(of_narrow, narrow), none);
  check_has(refusal(of_experts, experts), "a mixture of experts");
  std::string text = to_json_text(plan);
  text.replace(text.find("tensorwise"), 10, "columnwise");
  check_has(
      message([&] { (void)parse_plan(text, "plan.json"); }),
      "float8.recipe: unknown float8 recipe 'columnwise'; use one of: none, tensorwise, rowwise, rowwise_with_gw_hp");
}

TEST_CASE("sizes that overflow are refused") {
  ShardingPlan plan;
  plan.mesh = {{"replicate", std::int64_t{1} << 40}, {"shard", std::int64_t{1} << 40}};
  CHECK_THROWS_AS((void)plan.ranks(), InputError);
  plan.mesh.clear();
  plan.micro_batches = {std::numeric_limits<std::int64_t>::max(), 1};
  CHECK_THROWS_AS((void)plan.sequences_per_rank(), InputError);
}

TEST_CASE("experts: with more ranks than experts their second dimension is sharded") {
  const ModelGraph model = load_model("mixtral-8x7b");  // gate_up_proj [8, 28672, 4096], down_proj [8, 4096, 14336]
  CHECK(expert_shard_dims(model, Dialect::fsdp2, 8).empty());
  CHECK(expert_shard_dims(model, Dialect::fsdp2, 24).empty());  // divides neither
  CHECK(expert_shard_dims(model, Dialect::fsdp1, 64).empty());
  CHECK(expert_shard_dims(model, Dialect::ddp, 64).empty());
  CHECK(expert_shard_dims(load_model("llama3-8b"), Dialect::fsdp2, 64).empty());
  const std::vector<ShardDim> dims = expert_shard_dims(model, Dialect::fsdp2, 64);
  REQUIRE(dims.size() == 64);
  CHECK(dims[0] == ShardDim{"model.layers.0.mlp.experts.gate_up_proj", 1});
  CHECK(dims[63] == ShardDim{"model.layers.31.mlp.experts.down_proj", 1});
  const ShardingPlan plan = naive_plan(model, {.ranks = 64, .seq_len = 4096});
  CHECK(plan.shard_dims == dims);
  CHECK_NOTHROW(check(plan, model));
  CHECK(parse_plan(to_json_text(plan), "plan.json") == plan);
  std::int64_t padded = 0;
  for (const UnitLayout& l : unit_layouts(plan, model)) padded += l.shard_elements * l.shards;
  CHECK(padded == model.parameter_count() + 32 * (64 - 8) * 4096);  // the routers, a row per expert
  ShardingPlan first = plan;
  first.shard_dims.clear();
  padded = 0;
  for (const UnitLayout& l : unit_layouts(first, model)) padded += l.shard_elements * l.shards;
  CHECK(padded > 7 * model.parameter_count());  // 64 ranks with room for an expert each, of 8
}
