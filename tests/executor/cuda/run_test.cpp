// Training on a GPU is training: sharded on virtual ranks of one GPU it ends where one rank of the host ends, with the
// order and the memory of its program on every rank (which `run` itself compares), and its losses fall. Needs a GPU.
#include "tests/gpu_check/gpu_main.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

RunResult on_gpu(const ModelGraph& model, const ShardingPlan& plan, const RunOptions& options) {
  CudaOptions cuda;
  cuda.virtual_ranks = plan.ranks() > 1;
  const auto backend = make_cuda_backend({plan.replicate(), plan.shard()}, cuda);
  return run(model, plan, load_cluster("host", plan.ranks()), *backend, options);
}

struct Case {
  const char* name;
  PlanWords words;
};

// The host on one rank takes the same global batch.
PlanWords unsharded(PlanWords w) {
  std::int64_t sequences = 0;
  for (const std::int64_t m : w.micro_batches) sequences += m;
  PlanWords one;
  one.seq_len = w.seq_len;
  one.compute = w.compute, one.reduce = w.reduce, one.master = w.master;
  one.clip_norm = w.clip_norm;
  one.optimizer = w.optimizer;
  one.micro_batches = {sequences * w.shard * w.replicate};
  return one;
}

}  // namespace

TEST_CASE("plans of FSDP on virtual ranks: parameters after five steps are those of one rank on the host") {
  const ModelGraph models[] = {small_llama(),
                               small_llama({.layers = 3, .vocab = 64, .hidden = 32, .inner = 48, .tied = true})};
  const Case cases[] = {
      {"one rank", {}},
      {"2 shards, reshard", {.shard = 2, .reshard = Reshard::yes}},
      {"3 shards, uneven, keep gathered", {.shard = 3, .reshard = Reshard::no}},
      {"4 shards, two units a block, full checkpointing, accumulation",
       {.shard = 4, .wrap = "block:2", .checkpointing = "full", .micro_batches = {1, 2}}},
      {"2 x 2, clipping", {.shard = 2, .replicate = 2, .clip_norm = 0.5}},
      {"no gradient sync before the last", {.shard = 2, .micro_batches = {1, 1}, .grad_sync = GradSync::last}},
      {"prefetch 2 and 2", {.shard = 2, .forward_prefetch = 2, .backward_prefetch = 2}},
      {"ddp", {.replicate = 2, .dialect = Dialect::ddp}},
  };
  for (const ModelGraph& model : models)
    for (const Case& c : cases) {
      CAPTURE(model.name);
      CAPTURE(c.name);
      const RunResult gpu = on_gpu(model, make_plan(model, c.words), five_steps());
      const RunResult host = execute(model, make_plan(model, unsharded(c.words)), five_steps());
      REQUIRE(gpu.measurement.losses.size() == 5);
      for (std::size_t s = 0; s < 5; ++s)
        CHECK(gpu.measurement.losses[s] == doctest::Approx(host.measurement.losses[s]).epsilon(2e-5));
      // fp32 on both sides, summed in another order: 1e-7 per sum of some 100 terms, five steps of Adam, whose first
      // steps amplify it.
      for (const NamedTensor& g : host.first_gradients)
        CHECK(distance(named(gpu.first_gradients, g.name), g.values, 1e-4) < 2e-5);
      for (const NamedTensor& p : host.parameters)
        CHECK(distance(named(gpu.parameters, p.name), p.values, 1e-2) < 1e-3);
    }
}

TEST_CASE("bf16 on virtual ranks follows bf16 on the host") {
  const ModelGraph model = small_llama({.layers = 2, .vocab = 64, .hidden = 64, .inner = 96});
  const PlanWords words{.shard = 2, .compute = DType::bf16};
  const RunResult gpu = on_gpu(model, make_plan(model, words), five_steps()),
                  host = execute(model, make_plan(model, words), five_steps());
  for (std::size_t s = 0; s < 5; ++s)
    CHECK(gpu.measurement.losses[s] == doctest::Approx(host.measurement.losses[s]).epsilon(5e-3));  // 2^-8 per value
}

TEST_CASE("two runs of one plan on a GPU give the same bits") {
  const ModelGraph model = small_llama();
  const ShardingPlan plan = make_plan(model, {.shard = 2, .compute = DType::bf16, .clip_norm = 1.0});
  const RunResult a = on_gpu(model, plan, five_steps()), b = on_gpu(model, plan, five_steps());
  for (const NamedTensor& p : a.parameters) CHECK(named(b.parameters, p.name) == p.values);
}
