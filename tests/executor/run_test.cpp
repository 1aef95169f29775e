// Sharded training is training: against PyTorch's recorded runs (tests/golden/tiny_models.json) and against one rank,
// on rank counts that divide neither dimensions nor each other.
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/input/error.h"
#include "tests/support/run_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

nlohmann::json goldens() {
  std::ifstream file(FSDP_TESTS_DIR "/golden/tiny_models.json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

struct Recorded {
  std::string title;
  ModelGraph model;
  nlohmann::json values;
};
std::vector<Recorded> recorded_models() {
  const nlohmann::json all = goldens();
  std::vector<Recorded> result;
  for (const auto& m : all["models"])
    result.push_back({m["name"], model_from_config(m["config"].get<std::string>(), "config.json", all["seq_len"]), m});
  REQUIRE(result.size() == 5);
  return result;
}

PlanWords in_double(PlanWords w) {
  w.compute = w.reduce = w.master = DType::f64;
  return w;
}

// The recorded runs have 24 sequences in a step. fp64: sums in another order differ by some 1e-15; 1e-10 is what a run
// must keep.
void check_equals_pytorch(const Recorded& r, const ShardingPlan& plan) {
  CAPTURE(r.title);
  const RunResult result = execute(r.model, plan, five_steps());
  const auto losses = r.values["losses"].get<std::vector<double>>();
  CHECK(distance(result.measurement.losses, losses) <= 1e-10);
  for (const NamedTensor& g : result.first_gradients) {
    CAPTURE(g.name);
    CHECK(norm(g.values) == doctest::Approx(r.values["first_gradient_norms"][g.name].get<double>()).epsilon(1e-10));
    if (r.values["first_gradients"].contains(g.name))
      CHECK(distance(g.values, r.values["first_gradients"][g.name].get<std::vector<double>>()) <= 1e-10);
  }
  for (const NamedTensor& p : result.parameters) {
    CAPTURE(p.name);
    CHECK(norm(p.values) == doctest::Approx(r.values["final_norms"][p.name].get<double>()).epsilon(1e-10));
    if (r.values["final_values"].contains(p.name))
      CHECK(distance(p.values, r.values["final_values"][p.name].get<std::vector<double>>()) <= 1e-10);
  }
}

void check_equals_pytorch(const Recorded& r, const PlanWords& words) {
  CAPTURE(words.shard);
  CAPTURE(words.replicate);
  CAPTURE(words.wrap);
  check_equals_pytorch(r, make_plan(r.model, in_double(words)));
}

}  // namespace

TEST_CASE("five steps on 1, 2, 3, 4 and 8 ranks equal PyTorch's five steps on one") {
  for (const Recorded& r : recorded_models())
    for (const std::int64_t ranks : {1, 2, 3, 4, 8})
      check_equals_pytorch(r, {.shard = ranks, .micro_batches = {24 / ranks}});
}

TEST_CASE("five steps of SGD with momentum equal PyTorch's on any ranks, under fsdp2 and ddp") {
  for (const Recorded& r : recorded_models()) {
    CAPTURE(r.title);
    const nlohmann::json& theirs = r.values["sgd_momentum"];
    for (const PlanWords& words :
         {PlanWords{.micro_batches = {24}}, PlanWords{.shard = 3, .micro_batches = {5, 3}},
          PlanWords{.shard = 8, .micro_batches = {3}}, PlanWords{.shard = 2, .replicate = 2, .micro_batches = {6}},
          PlanWords{.replicate = 3, .micro_batches = {8}, .dialect = Dialect::ddp}}) {
      CAPTURE(words.shard);
      ShardingPlan plan = make_plan(r.model, in_double(words));
      plan.optimizer.kind = OptimizerKind::sgd;
      plan.optimizer.lr = 0.05, plan.optimizer.momentum = 0.9, plan.optimizer.weight_decay = 0.1;
      const RunResult result = execute(r.model, plan, five_steps());
      CHECK(distance(result.measurement.losses, theirs["losses"].get<std::vector<double>>()) <= 1e-10);
      for (const NamedTensor& p : result.parameters)
        CHECK(norm(p.values) == doctest::Approx(theirs["final_norms"][p.name].get<double>()).epsilon(1e-10));
    }
  }
}

TEST_CASE("every way to run the same step equals PyTorch's") {
  for (const Recorded& r : recorded_models()) {
    check_equals_pytorch(r, {.shard = 3, .wrap = "root", .micro_batches = {8}});
    check_equals_pytorch(r, {.shard = 2, .wrap = "block:2", .reshard = Reshard::no, .micro_batches = {12}});
    check_equals_pytorch(r, {.shard = 2, .checkpointing = "full", .reshard = Reshard::yes, .micro_batches = {12}});
    check_equals_pytorch(
        r,
        {.shard = 3, .checkpointing = "every-2", .micro_batches = {8}, .forward_prefetch = 1, .backward_prefetch = 2});
    check_equals_pytorch(r, {.shard = 2, .micro_batches = {3, 8, 1}});  // weighted by tokens
    check_equals_pytorch(r, {.shard = 2, .micro_batches = {5, 5, 2}, .grad_sync = GradSync::last});
    check_equals_pytorch(r, {.shard = 2, .replicate = 2, .micro_batches = {6}});
    check_equals_pytorch(
        r, {.shard = 3, .replicate = 2, .micro_batches = {1, 3}, .grad_sync = GradSync::reduce_scatter_only});
    check_equals_pytorch(r, {.shard = 2, .replicate = 3, .micro_batches = {1, 3}, .grad_sync = GradSync::last});
    check_equals_pytorch(r, {.replicate = 3, .micro_batches = {8}, .dialect = Dialect::ddp});
    check_equals_pytorch(r, {.replicate = 2,
                             .checkpointing = "full",
                             .micro_batches = {4, 8},
                             .grad_sync = GradSync::last,
                             .dialect = Dialect::ddp});
  }
}

TEST_CASE("fsdp2's run-time switches change the order of work, not the result") {
  for (const Recorded& r : recorded_models()) {
    const ShardingPlan plan = make_plan(
        r.model, in_double({.shard = 2, .replicate = 2, .reshard = Reshard::yes, .micro_batches = {3, 2, 1}}));
    const auto with = [&](auto change) {
      ShardingPlan p = plan;
      change(p);
      check_equals_pytorch(r, p);
    };
    const std::string first = plan.units.front().modules.front(), second = plan.units[1].modules.front();
    with([](ShardingPlan& p) { p.reduce_scatter_buffers = 3; });
    with([](ShardingPlan& p) { p.force_sum_reduction = true; });
    with([](ShardingPlan& p) {
      for (Unit& u : p.units) u.reshard_after_backward = false;
    });
    with([](ShardingPlan& p) {
      for (Unit& u : p.units) u.reshard_after_forward = Reshard::no, u.reshard_after_backward = false;
      p.grad_sync = GradSync::last;
    });
    with([](ShardingPlan& p) {
      p.units[0].grad_sync = GradSync::last;
      p.units[1].grad_sync = GradSync::reduce_scatter_only;
    });
    with([&](ShardingPlan& p) {
      p.units.back().forward_prefetch = {second, first};
      p.units.front().forward_prefetch = {first, second};
      p.units[1].backward_prefetch = {second, first};
      p.units.front().backward_prefetch = {second};  // in vain: its backward is over
    });
    with([](ShardingPlan& p) { p.torch = {2, 7}; });
  }
}

TEST_CASE(
    "gradients that are narrowed while they are copied in (PyTorch before 2.15) equal those narrowed one by one") {
  const Recorded r = recorded_models()[0];
  ShardingPlan plan = make_plan(r.model, {.shard = 2, .micro_batches = {3}});
  plan.param_dtype = plan.master_dtype = DType::f32;
  plan.reduce_dtype = DType::bf16;
  const RunResult now = execute(r.model, plan, five_steps());
  plan.torch = {2, 11};
  const RunResult before = execute(r.model, plan, five_steps());
  REQUIRE(now.parameters.size() == before.parameters.size());
  for (std::size_t i = 0; i < now.parameters.size(); ++i)
    CHECK(now.parameters[i].values == before.parameters[i].values);
}

// Without a recording: clipping binds (the limit is a tenth of the norm), sgd, every family's oddities, against one
// rank in fp64.
TEST_CASE("clipping and sgd on several ranks equal one rank") {
  for (const Recorded& r : recorded_models())
    for (const OptimizerKind optimizer : {OptimizerKind::adamw, OptimizerKind::sgd}) {
      const RunResult one = execute(
          r.model, make_plan(r.model, in_double({.micro_batches = {6}, .clip_norm = 0.05, .optimizer = optimizer})),
          five_steps());
      const RunResult free =
          execute(r.model, make_plan(r.model, in_double({.micro_batches = {6}, .optimizer = optimizer})), five_steps());
      if (optimizer == OptimizerKind::sgd)
        CHECK(distance(one.parameters[0].values, free.parameters[0].values) > 1e-6);  // it did bind
      for (const PlanWords& words :
           {PlanWords{.shard = 3, .micro_batches = {2}}, PlanWords{.shard = 2, .replicate = 3, .micro_batches = {1}},
            PlanWords{.replicate = 2, .micro_batches = {3}, .dialect = Dialect::ddp}}) {
        PlanWords w = in_double(words);
        w.clip_norm = 0.05;
        w.optimizer = optimizer;
        const RunResult many = execute(r.model, make_plan(r.model, w), five_steps());
        CHECK(distance(many.measurement.losses, one.measurement.losses) <= 1e-10);
        for (std::size_t i = 0; i < one.parameters.size(); ++i)
          CHECK(distance(many.parameters[i].values, one.parameters[i].values) <= 1e-10);
      }
    }
}

// A key's bias shifts all scores of a query alike, so its gradient is zero by structure: compared with the scale of its
// layer.
TEST_CASE("fp32: losses and first gradients of several ranks equal one rank's to 1e-5") {
  std::vector<ModelGraph> models;
  for (const Recorded& r : recorded_models()) models.push_back(r.model);
  models.push_back(model_from_config(
      R"({"model_type": "qwen2", "vocab_size": 53, "hidden_size": 30, "intermediate_size": 41, "num_hidden_layers": 2,
      "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1000.0,
      "hidden_act": "silu", "tie_word_embeddings": true})",
      "qwen2", 7));
  for (const ModelGraph& model : models) {
    CAPTURE(model.family);
    const RunResult one = execute(model, make_plan(model, {.micro_batches = {24}}), five_steps());
    for (const std::int64_t ranks : {2, 3, 4, 8}) {
      CAPTURE(ranks);
      const RunResult many =
          execute(model, make_plan(model, {.shard = ranks, .micro_batches = {24 / ranks}}), five_steps());
      CHECK(distance(many.measurement.losses, one.measurement.losses) <= 1e-5);
      for (std::size_t i = 0; i < one.first_gradients.size(); ++i) {
        const std::string& name = one.first_gradients[i].name;
        CAPTURE(name);
        double floor = 0;
        if (name.ends_with("k_proj.bias"))
          floor = norm(named(one.first_gradients, name.substr(0, name.size() - 11) + "v_proj.bias"));
        CHECK(distance(many.first_gradients[i].values, one.first_gradients[i].values, floor) <= 1e-5);
      }
    }
  }
}

// bf16 keeps 8 bits: a sanity bound, and the mixed plan (fp32 master and reduction) must learn what fp32 learns.
TEST_CASE("bf16 compute stays near fp32") {
  const Recorded r = recorded_models()[0];
  const RunResult full = execute(r.model, make_plan(r.model, {.micro_batches = {12}}), five_steps());
  const RunResult mixed =
      execute(r.model, make_plan(r.model, {.shard = 3, .micro_batches = {1, 3}, .compute = DType::bf16}), five_steps());
  CHECK(distance(mixed.measurement.losses, full.measurement.losses) <= 5e-3);
  CHECK(mixed.measurement.losses.back() < mixed.measurement.losses.front() + 0.05);
  const RunResult reduced = execute(
      r.model,
      make_plan(r.model,
                {.shard = 2, .replicate = 2, .micro_batches = {3}, .compute = DType::bf16, .reduce = DType::bf16}),
      five_steps());
  CHECK(distance(reduced.measurement.losses, full.measurement.losses) <= 1e-2);
}

TEST_CASE("two runs are equal to the last bit") {
  const Recorded r = recorded_models()[1];
  const ShardingPlan plan = make_plan(r.model, {.shard = 3, .micro_batches = {2, 1}, .clip_norm = 1.0});
  const RunResult a = execute(r.model, plan, five_steps()), b = execute(r.model, plan, five_steps());
  CHECK(a.measurement.losses == b.measurement.losses);
  for (std::size_t i = 0; i < a.parameters.size(); ++i) CHECK(a.parameters[i].values == b.parameters[i].values);
}

TEST_CASE("what cannot run is refused in one sentence") {
  const Recorded r = recorded_models()[0];
  const auto refusal = [&](const ModelGraph& model, const ShardingPlan& plan, MeshShape mesh,
                           const RunOptions& options) -> std::string {
    try {
      const auto backend = make_host_backend(mesh, {30});
      static_cast<void>(run(model, plan, load_cluster("host", plan.ranks()), *backend, options));
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const ShardingPlan plan = make_plan(r.model, {.shard = 2});
  CHECK(refusal(r.model, plan, {1, 3}, five_steps()).find("1 x 2 ranks cannot run on a backend of 1 x 3") !=
        std::string::npos);
  CHECK(refusal(r.model, plan, {2, 1}, five_steps()).find("cannot run on a backend") != std::string::npos);
  RunOptions none = five_steps();
  none.steps = 0;
  CHECK(refusal(r.model, plan, {1, 2}, none).find("must be at least 1") != std::string::npos);
  ModelGraph opaque = r.model;
  opaque.ops[3].kind = OpKind::opaque;
  ShardingPlan of_opaque = plan;
  of_opaque.model_digest = opaque.digest();
  CHECK(refusal(opaque, of_opaque, {1, 2}, five_steps()).find("opaque") != std::string::npos);
}
