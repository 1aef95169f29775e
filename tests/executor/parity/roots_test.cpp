// Plans without a unit of the whole model, run: roots that share their streams (PyTorch's share_comm_ctx).
#include "tests/support/parity_support.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// The units of the words' wrap, inside of `model`, beside `lm_head`.
ShardingPlan two_roots(const ModelGraph& model, const PlanWords& words) {
  ShardingPlan plan = make_plan(model, in_double(words));
  plan.units.pop_back();
  for (Unit& u : plan.units) std::erase(u.modules, "lm_head");
  plan.units.push_back({{"model"}, words.reshard});
  plan.units.push_back({{"lm_head"}, words.reshard});
  plan.share_comm_context = true;
  return plan;
}

}  // namespace

TEST_CASE("test_share_comm_context: two roots that share their streams, by reshard mode and over replicas") {
  const ModelGraph model = small_llama({.layers = 3});
  for (const Reshard reshard : {Reshard::automatic, Reshard::yes, Reshard::no, Reshard{2}})
    for (const std::int64_t replicate : {1, 2}) {
      const PlanWords words{.shard = 4, .replicate = replicate, .reshard = reshard, .clip_norm = 0.5};
      const RunResult two = check_parity(model, two_roots(model, words));
      for (const RankMeasurement& rank : two.measurement.ranks) {
        CHECK(executed(rank, Action::reduce_scatter) == 3 + 2);
        CHECK(executed(rank, Action::all_reduce) == (replicate > 1 ? 3 + 2 : 0));
      }
    }
}

TEST_CASE("two roots: accumulation, recomputation, prefetch, several reduce-scatter inputs, a frozen root") {
  const ModelGraph model = small_llama({.layers = 3});
  const std::vector<std::int64_t> two = {2, 1};
  const auto check = [&](const PlanWords& words, int buffers = 1) {
    ShardingPlan plan = two_roots(model, words);
    plan.reduce_scatter_buffers = buffers;
    check_parity(model, plan);
  };
  check({.shard = 2, .reshard = Reshard::yes, .micro_batches = two});
  check({.shard = 2, .micro_batches = two, .grad_sync = GradSync::last});
  check({.shard = 2, .replicate = 2, .micro_batches = two, .grad_sync = GradSync::reduce_scatter_only});
  check({.shard = 4, .checkpointing = "full", .reshard = Reshard::yes});
  check({.shard = 4, .reshard = Reshard::yes, .forward_prefetch = 2, .backward_prefetch = 3});
  check({.shard = 4, .reshard = Reshard::yes, .forward_prefetch = 1, .backward_prefetch = 0});
  check({.shard = 4, .wrap = "titan", .micro_batches = two}, 3);
  const ModelGraph part = freeze(small_llama({.layers = 2}), std::vector<std::string>{"lm_head"}, "test");
  check_parity(part, two_roots(part, {.shard = 4, .reshard = Reshard::yes, .micro_batches = two}));
  const ModelGraph other = freeze(small_llama({.layers = 2}), std::vector<std::string>{"model"}, "test");
  CHECK(refusal([&] {
          fsdp::check(two_roots(other, {.shard = 4}), other);
        }).find("no gradient comes back to the root 'model'") != std::string::npos);
}

TEST_CASE("five roots: the embedding, each block, the last norm and the output layer") {
  const ModelGraph model = small_llama({.layers = 2});
  ShardingPlan plan = two_roots(model, {.shard = 4});
  std::erase_if(plan.units, [](const Unit& u) { return u.modules.front() == "model"; });
  plan.units.insert(plan.units.begin(), {{"model.embed_tokens"}});
  plan.units.insert(plan.units.end() - 1, {{"model.norm"}});
  const RunResult apart = check_parity(model, plan);
  CHECK(executed(apart.measurement.ranks[0], Action::all_gather) == 5);  // a root keeps its parameters
}
