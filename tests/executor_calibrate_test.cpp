// Calibration yields costs that every plan of a known family can be predicted with, and that survive the disk. Times are not
// tested.
#include "executor/calibrate.h"
#include "executor_run_support.h"
#include "models/error.h"
#include "simulator/prediction.h"
#include "small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("costs of this machine: complete, positive, ordered, and equal after the disk") {
  int said = 0;
  const Costs costs =
      calibrate_host({.ranks = 2, .seconds_budget = 1, .type = DType::f32, .progress = [&](const std::string&) { ++said; }});
  CHECK(said > 50);
  CHECK(costs.platform == "host");
  CHECK(costs.collective_ranks == 2);
  CHECK(parse_costs(to_json_text(costs), "costs.json") == costs);
  for (const auto& curve : costs.matmul_curve) CHECK(curve.back().seconds > curve.front().seconds);
  for (const auto* curve : {&costs.all_gather, &costs.reduce_scatter, &costs.all_reduce}) {
    REQUIRE(curve->size() == 8);
    CHECK(curve->back().seconds > 10 * curve->front().seconds);  // 64 MiB against 4 KiB
  }
  CHECK(costs.kernel_overhead.count() > 0);
  CHECK(costs.kernel_overhead.count() < 1e-2);
  for (const KernelRate* r : {&costs.copy, &costs.cast, &costs.optimizer, &costs.norm}) CHECK(r->byte_rate.count() > 1e7);
  for (int k = 0; k < kOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    CAPTURE(name(kind));
    const KernelRate& forward = costs.kernels.at(static_cast<std::size_t>(2 * k));
    const bool priced = forward.byte_rate.count() > 0 || forward.flops_rate.count() > 0;
    CHECK(priced == (kind != OpKind::linear && kind != OpKind::expert_linear && kind != OpKind::opaque));
  }

  const ModelGraph gpt2 =
      model_from_config(R"({"model_type": "gpt2", "vocab_size": 37, "n_positions": 11, "n_embd": 30, "n_layer": 2, "n_head": 5,
      "n_inner": 47, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"})",
                        "gpt2", 7);
  for (const ModelGraph& model : {small_llama(), gpt2, load_model("tiny-mixtral")}) {
    const ShardingPlan plan = make_plan(model, {.shard = 2, .checkpointing = "full", .micro_batches = {1, 1}, .clip_norm = 1.0});
    const Program program = lower(model, plan, native_implementation());
    const ClusterSpec cluster = load_cluster("host", 2);
    const Prediction p = predict(program, {model, plan, native_implementation(), cluster, costs});
    CHECK(p.step_time.count() > 0);
    CHECK(std::isfinite(p.step_time.count()));
  }
}

TEST_CASE("one rank, other types, and what is refused") {
  const Costs one = calibrate_host({.ranks = 1, .seconds_budget = 0.3, .type = DType::bf16, .progress = {}});
  CHECK(one.all_gather.empty());
  CHECK(one.matmul_curve[0].size() == 6);
  CHECK_THROWS_AS(calibrate_host({.ranks = 2, .seconds_budget = 1, .type = DType::f16, .progress = {}}), InputError);
  CHECK_THROWS_AS(calibrate_host({.ranks = 0, .seconds_budget = 1, .type = DType::f32, .progress = {}}), InputError);
  CHECK_THROWS_AS(calibrate_host({.ranks = 2, .seconds_budget = 0, .type = DType::f32, .progress = {}}), InputError);
}
