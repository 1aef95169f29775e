// Tensor parallelism beside fully_shard: the plan, what one rank computes of a model, what is refused, and what of a
// step changes. The order of PyTorch's collectives is in torch/tensor_test.cpp.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "planner/job.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/tensor/families.h"
#include "planner/tensor/split.h"

using namespace fsdp;

namespace {

ModelGraph small(const std::string& type = "llama", int heads = 8, int kv_heads = 4, int vocab = 160, bool tied = false,
                 bool bias = false) {
  return model_from_config(
      fmt::format(R"({{"model_type": "{}", "vocab_size": {}, "hidden_size": 64, "intermediate_size": 128,
                       "num_hidden_layers": 2, "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": 8,
                       "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                       "attention_bias": {}, "hidden_act": "silu", "tie_word_embeddings": {}}})",
                  type, vocab, heads, kv_heads, bias, tied),
      "test");
}

ShardingPlan plan_for(const ModelGraph& model, std::int64_t tensor = 2, std::int64_t shard = 4) {
  PlanOptions options;
  options.ranks = shard * tensor, options.tensor = tensor, options.seq_len = 16, options.micro_batches = {2};
  return naive_plan(model, options);
}

std::vector<std::int64_t> shape_of(const ModelGraph& model, const std::string& name) {
  for (const Parameter& p : model.parameters)
    if (p.name == name) return p.shape;
  FAIL(name);
  return {};
}

// The refusal's text; empty: there is none.
std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

std::string refused(const ShardingPlan& plan, const ModelGraph& model) {
  return refused([&] { check(plan, model, "plan.json"); });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the family's tensor plan names every module with parameters once") {
  const ModelGraph model = load_model("llama3-8b");
  const TensorPlan plan = family_tensor_plan(model);
  std::map<std::string, TensorStyle> styles;
  for (const ModuleStyle& m : plan.modules) CHECK(styles.emplace(m.module, m.style).second);
  CHECK(styles.size() == 12);
  CHECK(styles.at("model.embed_tokens") == TensorStyle::rowwise);
  CHECK(styles.at("model.layers.*.self_attn.q_proj") == TensorStyle::colwise);
  CHECK(styles.at("model.layers.*.mlp.down_proj") == TensorStyle::rowwise);
  CHECK(styles.at("model.layers.*.input_layernorm") == TensorStyle::sequence);
  CHECK(styles.at("lm_head") == TensorStyle::colwise);
  CHECK(plan.loss_parallel);
  CHECK(family_tensor_plan(load_model("qwen3-8b")).modules.size() == 14);  // with q_norm and k_norm
}

TEST_CASE("a rank's part of a model: shapes, redistributions and which gradients are sums") {
  const ModelGraph whole = small("qwen3");
  const ModelGraph local = split_over_tensor(whole, plan_for(whole));
  CHECK(local.tensor_ranks == 2);
  CHECK_NOTHROW(check_graph(local, "test"));
  const std::string block = "model.layers.0.";
  using Shape = std::vector<std::int64_t>;
  CHECK(shape_of(local, "model.embed_tokens.weight") == Shape{80, 64});
  CHECK(shape_of(local, block + "self_attn.q_proj.weight") == Shape{32, 64});
  CHECK(shape_of(local, block + "self_attn.k_proj.weight") == Shape{16, 64});
  CHECK(shape_of(local, block + "self_attn.o_proj.weight") == Shape{64, 32});
  CHECK(shape_of(local, block + "mlp.down_proj.weight") == Shape{64, 64});
  CHECK(shape_of(local, block + "input_layernorm.weight") == Shape{64});
  CHECK(shape_of(local, "lm_head.weight") == Shape{80, 64});
  std::int64_t parts = 0;
  for (std::size_t p = 0; p < local.parameters.size(); ++p) {
    const Parameter& l = local.parameters[p];
    const bool norm = contains(l.name, "norm");
    CHECK((l.tensor_gradient == TensorGradient::partial) == norm);
    CHECK((l.tensor_gradient == TensorGradient::whole) == contains(l.name, "embed"));
    parts += norm ? l.numel() : 2 * l.numel();
  }
  CHECK(parts == whole.parameter_count());
  std::map<Redistribution, int> count;
  for (const Op& op : local.ops) ++count[op.shape.redistribution];
  CHECK(count[Redistribution::gather] == 5);   // two in each of two blocks, one before the head
  CHECK(count[Redistribution::scatter] == 5);  // two in each, one behind the embedding
  CHECK(count[Redistribution::gather_columns] == 0);
  // Tensors are parts, too: all of a step's flops are those of the whole model, over the ranks.
  const Workload work{2, 16, 2};
  CHECK(model_flops_per_token(local, 16) == doctest::Approx(model_flops_per_token(whole, 16) / 2));
  double flops[2] = {0, 0};
  for (const Op& op : whole.ops) flops[0] += forward_flops(op, work);
  for (const Op& op : local.ops) flops[1] += forward_flops(op, work);
  CHECK(flops[1] == doctest::Approx(flops[0] / 2));
}

TEST_CASE("logits that are gathered before the loss") {
  const ModelGraph whole = small();
  ShardingPlan plan = plan_for(whole);
  plan.tensor_plan.loss_parallel = false;
  const ModelGraph local = split_over_tensor(whole, plan);
  const Op& gather = local.ops[local.ops.size() - 2];
  CHECK(gather.shape.redistribution == Redistribution::gather_columns);
  CHECK(local.ops.back().shape.vocab == 160);
  CHECK(local.ops.back().shape.vocab_parts == 1);
  const ModelGraph split = split_over_tensor(whole, plan_for(whole));
  CHECK(split.ops.back().shape.vocab == 80);
  CHECK(split.ops.back().shape.vocab_parts == 2);
}

TEST_CASE("a plan's file holds the tensor plan; without a tensor dimension nothing of it is written") {
  const ModelGraph model = small();
  const ShardingPlan plan = plan_for(model);
  CHECK(parse_plan(to_json_text(plan), "test") == plan);
  CHECK(contains(to_json_text(plan), "\"style\": \"rowwise\""));
  const ShardingPlan alone = plan_for(model, 1, 8);
  CHECK(!contains(to_json_text(alone), "tensor"));
  ShardingPlan written = alone;
  written.mesh.push_back({"tensor", 1});
  CHECK(written.digest() == alone.digest());
  CHECK(plan.digest() != alone.digest());
  ShardingPlan gathered = plan;
  gathered.tensor_plan.loss_parallel = false;
  CHECK(gathered.digest() != plan.digest());
  CHECK(parse_plan(to_json_text(gathered), "test") == gathered);
}

TEST_CASE("ranks, places and tokens of a mesh with tensor ranks") {
  const ModelGraph model = small();
  ShardingPlan plan = plan_for(model, 2, 4);
  plan.mesh = {{"replicate", 3}, {"shard", 4}, {"tensor", 2}};
  CHECK(plan.ranks() == 24);
  CHECK(plan.data_ranks() == 12);
  CHECK(plan.tokens_per_step() == 2 * 16 * 12);
  CHECK(plan.shard_index(0) == 0);
  CHECK(plan.shard_index(1) == 0);
  CHECK(plan.shard_index(7) == 3);
  CHECK(plan.shard_index(8) == 0);
  CHECK(plan.shard_index(23) == 3);
}

TEST_CASE("what is refused, with field and remedy") {
  const ModelGraph model = small();
  const auto changed = [&](const std::function<void(ShardingPlan&)>& change) {
    ShardingPlan plan = plan_for(model);
    change(plan);
    return refused(plan, model);
  };
  CHECK(changed([](ShardingPlan&) {}).empty());
  const auto says = [&](const std::string& problem, const std::function<void(ShardingPlan&)>& change) {
    const std::string text = changed(change);
    CHECK_MESSAGE(contains(text, problem), text);
    CHECK_MESSAGE(contains(text, "plan.json"), text);
  };
  says("mesh: dimension 'shard' is repeated or out of order", [](ShardingPlan& p) { std::swap(p.mesh[1], p.mesh[2]); });
  says("there is no dimension 'pipeline'", [](ShardingPlan& p) { p.mesh.push_back({"pipeline", 2}); });
  says("tensor_plan: is missing", [](ShardingPlan& p) { p.tensor_plan.modules.clear(); });
  says("tensor_plan: says how modules are split, but the mesh has no tensor dimension",
       [](ShardingPlan& p) { p.mesh.pop_back(); });
  says("no module is named 'model.layers.*.mlp.gate'", [](ShardingPlan& p) {
    p.tensor_plan.modules.push_back({"model.layers.*.mlp.gate", TensorStyle::colwise});
  });
  says("splits 'model.layers.1.mlp.up_proj' rowwise, which an entry before it splits colwise", [](ShardingPlan& p) {
    p.tensor_plan.modules.push_back({"model.layers.1.mlp.up_proj", TensorStyle::rowwise});
  });
  says("says nothing of 'lm_head'", [](ShardingPlan& p) { p.tensor_plan.modules.pop_back(); });
  const auto restyle = [](ShardingPlan& p, const std::string& module, TensorStyle style) {
    for (ModuleStyle& m : p.tensor_plan.modules)
      if (m.module == module) m.style = style;
  };
  says("is an embedding, and colwise",
       [&](ShardingPlan& p) { restyle(p, "model.embed_tokens", TensorStyle::colwise); });
  says("is a norm, and rowwise", [&](ShardingPlan& p) { restyle(p, "model.norm", TensorStyle::rowwise); });
  says("is colwise and reads what is split by columns",
       [&](ShardingPlan& p) { restyle(p, "model.layers.*.self_attn.o_proj", TensorStyle::colwise); });
  says("is rowwise, and what it reads is not split by columns",
       [&](ShardingPlan& p) { restyle(p, "model.layers.*.mlp.gate_proj", TensorStyle::rowwise); });
  says("is a linear layer, and sequence", [&](ShardingPlan& p) { restyle(p, "lm_head", TensorStyle::sequence); });
  says("beside ddp is not modelled", [](ShardingPlan& p) {
    p.dialect = Dialect::ddp;
    p.mesh = {{"replicate", 4}, {"tensor", 2}};
    p.param_dtype = p.reduce_dtype = p.master_dtype;
    for (Unit& u : p.units) u.reshard_after_forward = Reshard::automatic;
  });
  says("beside fsdp1 is not modelled", [](ShardingPlan& p) { p.dialect = Dialect::fsdp1; });
  says("PyTorch 2.15 only", [](ShardingPlan& p) { p.torch = {2, 9}; });
  says("15 tokens cannot be split over 2 tensor ranks", [](ShardingPlan& p) { p.seq_len = 15; });
  says("keeping shards in host memory", [](ShardingPlan& p) { p.offload = true; });
  says("a loss in parts", [](ShardingPlan& p) { p.loss_chunks = 2; });
  says("does not keep a unit over a part of the ranks",
       [](ShardingPlan& p) { p.units[0].reshard_after_forward = {2}; });
}

TEST_CASE("models and sizes that cannot be split are refused by name") {
  const auto of = [](const ModelGraph& model, std::int64_t tensor) {
    return refused([&] { check(plan_for(model, tensor), model, "plan.json"); });
  };
  CHECK(contains(of(small("llama", 8, 4), 8), "the 4 kv heads of 'model.layers.0.self_attn' cannot be split over 8"));
  CHECK(contains(of(small("llama", 6, 2), 4), "heads of 'model.layers.0.self_attn' cannot be split over 4"));
  CHECK(contains(of(small("llama", 8, 4, 163), 2), "the 163 rows of 'model.embed_tokens.weight' cannot be split"));
  CHECK(contains(of(small("llama", 8, 4, 160, true), 2), "is tied"));
  CHECK(contains(of(small("llama", 8, 4, 160, false, true), 2), "is rowwise and has a bias"));
  CHECK(contains(of(load_model("gpt2"), 2), "no tensor plan is known for 'gpt2', of family gpt2"));
  CHECK(contains(of(load_model("mixtral-8x7b"), 2), "no tensor plan is known"));
  const ModelGraph adapted = add_lora(small(), {.rank = 4}, setting("lora"));
  CHECK(contains(of(adapted, 2), "is frozen"));
  CHECK(contains(refused([] { (void)naive_plan(small(), {.ranks = 6, .tensor = 4, .seq_len = 16}); }),
                 "4 tensor ranks do not divide 6 GPUs"));
  const ModelGraph model = small();
  ShardingPlan in_float8 = plan_for(model);
  in_float8.float8.recipe = Float8Recipe::tensorwise;
  CHECK(contains(refused([&] { check(in_float8, model, "plan"); }), "layers split over tensor ranks"));
}

TEST_CASE("lowering takes one rank's part only; a plan without tensor ranks lowers as it did") {
  const ModelGraph whole = small();
  CHECK_THROWS_AS((void)lower(whole, plan_for(whole), torchtitan_implementation(false)), InternalError);
  const ShardingPlan alone = plan_for(whole, 1, 4);
  const Program program = lower(whole, alone, torchtitan_implementation(false));
  CHECK(streams_of(program.steady_step) == kStreams - 1);
  CHECK(lower(split_over_tensor(whole, alone), alone, torchtitan_implementation(false)) == program);
  const Job job = resolve(whole, plan_for(whole), torchtitan_implementation(false), {});
  CHECK(streams_of(lower(job.model, job.plan, job.ids, job.implementation, 0).steady_step) == kStreams);
}
