// The search against brute force, its laws, and the words it finds for losers.
#include "planner/search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/search/candidates.h"
#include "planner/search/design.h"
#include "planner/search/memory_floor.h"
#include "planner/search/rivals.h"
#include "planner/wrap.h"
#include "simulator/engine/memory.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

const Implementation& native() { return find_implementation("native", false, "test"); }

ClusterSpec cluster(std::int64_t gpus, std::int64_t per_node) {
  ClusterSpec c;
  c.name = "test";
  c.gpus = gpus;
  c.gpus_per_node = per_node;
  return c;
}

SearchOptions options_for(const ModelGraph& model, std::int64_t ranks) {
  SearchOptions o;
  o.base = toy::plan(model, ranks);
  o.ranks = ranks;
  o.memory_limit = Bytes(std::int64_t{1} << 40);
  return o;
}

std::uint64_t hash_of(const ShardingPlan& p, std::uint64_t seed, bool with_batch) {
  std::uint64_t h = seed * 0x9e3779b97f4a7c15ULL + 1;
  const auto mix = [&](std::uint64_t v) {
    h = (h ^ v) * 0x100000001b3ULL;
    h ^= h >> 29;
  };
  mix(p.units.size());
  mix(static_cast<std::uint64_t>(p.units.front().reshard_after_forward.ranks + 1));
  mix(static_cast<std::uint64_t>(p.replicate()));
  if (with_batch) mix(static_cast<std::uint64_t>(p.micro_batches.front()));
  else mix(p.checkpointed.size());
  return h;
}

// A landscape without structure but for what the search relies on: more recomputation takes longer, a larger
// micro-batch needs more.
Score score_of(const ShardingPlan& p, std::uint64_t seed) {
  const double t = (1.0 + static_cast<double>(hash_of(p, seed, true) % 100000) / 1e4) *
                   (1.0 + 0.01 * static_cast<double>(p.checkpointed.size()));
  const std::int64_t room = (std::int64_t{1} << hash_of(p, seed + 1, false) % 6) / 2;  // 0, 1, 2, 4, 8 or 16 sequences
  const bool fits = p.micro_batches.front() <= room;
  return {Seconds(t * static_cast<double>(p.sequences_per_rank())),
          Bytes(fits ? 10 : 99),
          fits ? Verdict::fits : Verdict::does_not_fit,
          {}};
}

}  // namespace

TEST_CASE("the best of all combinations, by brute force") {
  const ModelGraph model = toy::model({.blocks = 4});
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    SearchOptions o = options_for(model, 8);
    o.global_batch = 64;  // 8 sequences per GPU: micro-batches 1, 2, 4, 8
    const PlanResult r =
        search(model, cluster(8, 4), native(), o, [&](const ShardingPlan& p) { return score_of(p, seed); });
    double best = std::numeric_limits<double>::infinity();
    for (const char* policy : {"block", "block:2", "block:4", "titan", "root"})
      for (const Reshard reshard : {Reshard::automatic, Reshard::no, Reshard::yes})
        for (const char* checkpointing : {"none", "every-2", "full"})
          for (const std::int64_t micro : {1, 2, 4, 8})
            for (const std::int64_t replicate : {1, 2}) {
              ShardingPlan p = o.base;
              p.units = wrap(model, policy, "test");
              if (p.units.size() == 1 && reshard == Reshard::no) continue;
              set_reshard(p, reshard);
              p.checkpointed = checkpointed_modules(model, checkpointing, "test");
              p.micro_batches.assign(static_cast<std::size_t>(8 / micro), micro);
              p.mesh = {{"replicate", replicate}, {"shard", 8 / replicate}};
              const Score s = score_of(p, seed);
              if (s.verdict == Verdict::fits) best = std::min(best, s.step.count());
            }
    REQUIRE(r.best);
    CHECK(r.best->score.step.count() >= best);
    CHECK(r.best->score.step.count() <= best * 1.001);     // equally fast: the smaller one
    CHECK(r.considered == 5 * 3 * 4 * 2 * 3 - 3 * 4 * 2);  // a lone root stays gathered anyway
    CHECK(r.considered == r.pruned + r.scored);
  }
}

TEST_CASE("asked for any plan that fits, the search finds one where there is one, and ends with it") {
  const ModelGraph model = toy::model({.blocks = 4});
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    SearchOptions o = options_for(model, 8);
    o.global_batch = 64;
    // In every second landscape only one kind of plan in some hundred fits, or none.
    int asked = 0;
    const ScoreFunction score = [&](const ShardingPlan& p) {
      ++asked;
      Score s = score_of(p, seed);
      if (seed % 2 == 1 && hash_of(p, seed + 2, false) % 100 != 0) s.verdict = Verdict::does_not_fit;
      return s;
    };
    const auto fits = [](const PlanResult& r) { return r.best && r.best->score.verdict == Verdict::fits; };
    const bool some = fits(search(model, cluster(8, 4), native(), o, score));
    const int all = std::exchange(asked, 0);
    o.any_that_fits = true;
    CHECK(fits(search(model, cluster(8, 4), native(), o, score)) == some);
    CHECK(asked <= all);
    if (some && seed % 2 == 0) CHECK(asked < all / 2);
  }
}

TEST_CASE("never worse than the naive plan, which is always scored") {
  const ModelGraph model = toy::model({.blocks = 2});
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    SearchOptions o = options_for(model, 4);
    o.micro_batch = 2;
    const PlanResult r =
        search(model, cluster(4, 4), native(), o, [&](const ShardingPlan& p) { return score_of(p, seed); });
    const ShardingPlan naive = naive_plan(model, {.ranks = 4, .seq_len = 5, .micro_batches = {2}});
    CHECK(r.naive.naive);
    CHECK(r.naive.plan.units == naive.units);
    CHECK(r.naive.plan.checkpointed.empty());
    CHECK(r.naive.plan.micro_batches == naive.micro_batches);
    CHECK(r.naive.plan.shard() == 4);
    CHECK(r.naive.score.step == score_of(r.naive.plan, seed).step);
    if (r.naive.score.verdict == Verdict::fits) {
      REQUIRE(r.best);
      CHECK(r.best->score.step <= r.naive.score.step);
    }
  }
}

TEST_CASE("what the user fixed stays fixed; every candidate passes check") {
  const ModelGraph model = toy::model({.blocks = 4});
  SearchOptions o = options_for(model, 4);
  o.wrap = "block:2";
  o.checkpointing = "first-1";
  o.reshard = Reshard::yes;
  o.replicate = 2;
  o.micro_batch = 3;
  o.grad_accum = 2;
  int calls = 0;
  const PlanResult r = search(model, cluster(4, 2), native(), o, [&](const ShardingPlan& p) {
    CHECK_NOTHROW(check(p, model));
    CHECK(p.micro_batches == std::vector<std::int64_t>{3, 3});
    CHECK(p.replicate() == 2);
    if (++calls == 1) {
      CHECK(p.units.size() == 3);
      CHECK(p.units[0].reshard_after_forward == Reshard::yes);
      CHECK(p.checkpointed == std::vector<std::string>{"layers.0"});
    }
    return Score{Seconds(calls == 1 ? 2 : 1), Bytes(1), Verdict::fits, {}};
  });
  REQUIRE(r.best);
  CHECK(calls == 2);  // the one plan, and the naive one beside it, which may not win
  CHECK(r.best->plan.wrap == "block:2");
  CHECK(r.naive.plan.wrap == "block");
  CHECK(r.searched == "nothing for the shortest step");
  CHECK(r.best->label == "block:2, reshard all, checkpoint first-1, micro-batch 3 x 2, replicate 2");
}

TEST_CASE("selective recomputation per op is tried where the implementation has it") {
  const ModelGraph model = toy::model({.blocks = 2});
  SearchOptions o = options_for(model, 4);
  o.wrap = "block";
  o.micro_batch = 1;
  int selective = 0;
  const auto score = [&](const ShardingPlan& p) {
    selective += p.checkpoint_policy == CheckpointPolicy::selective_op ? 1 : 0;
    CHECK((p.checkpoint_policy == CheckpointPolicy::full || p.checkpointed.size() == 2));
    const bool part = p.checkpoint_policy == CheckpointPolicy::selective_op;
    return Score{Seconds(part ? 1 : 2), Bytes(1), p.checkpointed.empty() ? Verdict::does_not_fit : Verdict::fits, {}};
  };
  CHECK(search(model, cluster(4, 4), native(), o, score).best->plan.checkpoint_policy == CheckpointPolicy::full);
  CHECK(selective == 0);
  o.selective_op = true;
  const PlanResult r = search(model, cluster(4, 4), native(), o, score);
  CHECK(selective > 0);
  CHECK(r.best->plan.checkpoint_policy == CheckpointPolicy::selective_op);
  CHECK(r.best->label.find("checkpoint selective-op") != std::string::npos);
}

TEST_CASE("what may be recomputed is there, where some blocks have no experts") {
  const ModelGraph model = model_from_config(R"({"model_type": "glm4_moe", "vocab_size": 64, "hidden_size": 32,
      "intermediate_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 6, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
      "first_k_dense_replace": 3})",
                                             "config.json");
  std::set<std::string> rungs;
  for (const auto& ladder : space_of(model, cluster(4, 4), options_for(model, 4)).ladders)
    rungs.insert(ladder.begin(), ladder.end());
  CHECK(rungs.count("class:Glm4MoeMoE:first-2") == 1);
  CHECK(rungs.count("class:Glm4MoeAttention:first-5") == 1);
  for (const std::string& rung : rungs) CHECK_NOTHROW((void)checkpointed_modules(model, rung, {"test", ""}));
}

TEST_CASE("automatic resharding is the wrap policy's own choice") {
  const ModelGraph model = toy::model({.blocks = 2});
  SearchOptions o = options_for(model, 4);
  o.wrap = "titan";
  o.micro_batch = 1;
  o.checkpointing = "none";
  std::set<std::vector<Reshard>> seen;
  const auto score = [&](const ShardingPlan& p) {
    std::vector<Reshard> choices;
    for (const Unit& u : p.units) choices.push_back(u.reshard_after_forward);
    seen.insert(choices);
    return Score{Seconds(1), Bytes(1), Verdict::fits, {}};
  };
  const auto searched = [&] {
    seen.clear();
    (void)search(model, cluster(4, 4), native(), o, score);
    return seen;
  };
  const std::vector<Reshard> naive(3, Reshard::automatic), kept(5, Reshard::no), freed(5, Reshard::yes),
      automatic(5, Reshard::automatic);
  std::vector<Reshard> titan = automatic;
  titan[3] = Reshard::no;  // embedding, two blocks, the head, the root: backward needs the head at once
  CHECK(searched() == std::set{naive, titan, kept, freed});
  o.reshard = Reshard::automatic;
  CHECK(searched() == std::set{naive, titan});
  o.reshard = Reshard::yes;
  CHECK(searched() == std::set{naive, freed});
  o.reshard.reset();
  o.base.dialect = Dialect::ddp;
  o.base.reduce_dtype = o.base.param_dtype = o.base.master_dtype;
  CHECK(searched() == std::set{naive, automatic});  // ddp reshards nothing
}

TEST_CASE("illegal sizes are refused, never overflowed") {
  const ModelGraph model = toy::model();
  SearchOptions o = options_for(model, 8);
  o.micro_batch = std::int64_t{1} << 62;
  const auto any = [](const ShardingPlan&) { return Score{Seconds(1), Bytes(1), Verdict::fits, {}}; };
  CHECK_THROWS_AS((void)search(model, cluster(8, 8), native(), o, any), InputError);
  o = options_for(model, 8);
  o.wrap = "clas:Foo";
  CHECK_THROWS_AS((void)search(model, cluster(8, 8), native(), o, any), InputError);
  o = options_for(model, 0);
  CHECK_THROWS_AS((void)search(model, cluster(8, 8), native(), o, any), InputError);
  o = options_for(model, 8);
  o.replicate = 3;
  CHECK_THROWS_AS((void)search(model, cluster(8, 8), native(), o, any), InputError);
}

TEST_CASE("the memory floor is below the replayed peak of every schedule") {
  int plans = 0;
  for (const bool tied : {false, true}) {
    const ModelGraph model = toy::model({.blocks = 4, .vocab = 50, .width = 16, .hidden = 40, .tied = tied});
    for (const char* implementation : {"native", "torchtitan"})
      for (const std::int64_t shard : {1, 3, 4})
        for (const std::int64_t replicate : {1, 2})
          for (const char* policy : {"block", "block:2", "titan", "root"})
            for (const char* checkpointing : {"none", "every-2", "full"})
              for (const GradSync sync : {GradSync::every, GradSync::last, GradSync::reduce_scatter_only}) {
                ShardingPlan p = toy::plan(model, shard, replicate);
                p.units = wrap(model, policy, "test");
                if (plans % 2)
                  for (Unit& u : p.units) u.reshard_after_forward = Reshard::no;
                p.checkpointed = checkpointed_modules(model, checkpointing, "test");
                p.grad_sync = sync;
                p.micro_batches = std::array<std::vector<std::int64_t>, 4>{{{2, 2}, {4}, {9, 1}, {1, 6}}}[plans % 4];
                p.param_dtype = plans % 5 ? DType::bf16 : DType::f32;
                p.reduce_dtype = plans % 7 ? DType::f32 : DType::bf16;
                ++plans;
                CAPTURE(plans);
                const Implementation& impl = find_implementation(implementation, false, "test");
                try {
                  check(p, model);
                } catch (const InputError&) {
                  continue;
                }
                const Bytes floor = memory_lower_bound(model, p, impl);
                const std::int64_t peak = replay_memory(lower(model, p, impl)).peak;
                CHECK(floor.count() <= peak);
                CHECK(floor.count() * 3 > peak);  // and of use
              }
  }
  const ModelGraph model = toy::model({.blocks = 4});
  ShardingPlan ddp = toy::plan(model, 1, 4);
  ddp.dialect = Dialect::ddp;
  CHECK(memory_lower_bound(model, ddp, native()).count() <= replay_memory(lower(model, ddp, native())).peak);
}

TEST_CASE("memory floor: a unit's own gradient sync decides what waits of it") {
  const ModelGraph model = toy::model({.blocks = 4});
  ShardingPlan every = toy::plan(model, 4);
  every.micro_batches = {1, 1};
  every.reduce_dtype = DType::f32;
  ShardingPlan unit_by_unit = every;
  unit_by_unit.grad_sync = GradSync::last;
  const std::int64_t whole = memory_floor(model, unit_by_unit, native()).waiting_gradients;
  for (Unit& u : unit_by_unit.units) u.grad_sync = GradSync::every;
  const std::int64_t shards = memory_floor(model, every, native()).waiting_gradients;
  CHECK(shards > 0);
  CHECK(whole > 2 * shards);  // of 4 ranks, less padding
  CHECK(memory_floor(model, unit_by_unit, native()).waiting_gradients == shards);
}

TEST_CASE("nothing fits: the least that anything needed, and what drives it") {
  const ModelGraph model = toy::model();
  SearchOptions o = options_for(model, 2);
  o.memory_limit = Bytes(64);
  std::int64_t calls = 0;
  const PlanResult r = search(model, cluster(2, 2), native(), o, [&](const ShardingPlan&) {
    ++calls;
    return Score{Seconds(1), Bytes(5000), Verdict::does_not_fit, {}};
  });
  CHECK_FALSE(r.best);
  CHECK(calls >= 2);  // the naive plan; floors rule out the rest, of which the least are simulated to name a plan
  CHECK(calls <= 9);
  REQUIRE(r.least);
  CHECK(r.least->score.peak_total == Bytes(5000));
  CHECK(r.least_bound <= Bytes(5000));
  CHECK(r.why_none.starts_with("nothing fits in " + human(o.memory_limit) + ": the least that any of "));
  CHECK(r.why_none.find("parameter and optimizer shards") != std::string::npos);
  CHECK(r.rivals.empty());
}

TEST_CASE("nothing fits: a larger micro-batch never needs less than the smaller one that was scored") {
  const ModelGraph model = toy::model();
  SearchOptions o = options_for(model, 2);
  o.wrap = "block";
  o.checkpointing = "none";
  o.memory_limit = Bytes(1 << 20);  // above every floor of few sequences
  const PlanResult r = search(model, cluster(2, 2), native(), o, [&](const ShardingPlan& p) {
    return Score{Seconds(1), Bytes((2 << 20) + p.micro_batches[0]), Verdict::does_not_fit, {}};
  });
  CHECK_FALSE(r.best);
  CHECK(r.why_none.find("micro-batch 1,") != std::string::npos);
  CHECK(r.why_none.find(" reserves is 2.00 MiB (") != std::string::npos);
}

TEST_CASE("nothing fits: the least plan is one that was simulated, and a bound is called one") {
  const ModelGraph model = toy::model();
  SearchOptions o = options_for(model, 2);
  o.memory_limit = Bytes(64);
  const auto search_with = [&](std::int64_t peak_of_one, std::int64_t peak_of_more) {
    return search(model, cluster(2, 2), native(), o, [=](const ShardingPlan& p) {
      return Score{Seconds(1), Bytes(p.micro_batches[0] == 1 ? peak_of_one : peak_of_more), Verdict::does_not_fit, {}};
    });
  };
  const PlanResult far = search_with(5'000'000, 6'000'000);  // far above every floor
  REQUIRE(far.least);
  CHECK(far.least->score.peak_total == Bytes(5'000'000));
  CHECK(far.least_bound < Bytes(5'000'000));
  CHECK(far.why_none.find("simulated plans reserves is " + human(Bytes(5'000'000))) != std::string::npos);
  CHECK(far.why_none.find("a lower bound for all") != std::string::npos);
  CHECK(far.why_none.find("is " + human(far.least_bound)) != std::string::npos);
  const PlanResult exact = search_with(100, 200);  // below every floor: no plan can need less
  REQUIRE(exact.least);
  CHECK(exact.least->score.peak_total == exact.least_bound);
  CHECK(exact.why_none.find("bound") == std::string::npos);
}

TEST_CASE("what a floor is made of are the parts of one moment") {
  MemoryFloor floor;
  floor.states = 100 << 20;
  floor.gradients = 40 << 20;
  floor.largest_unit = 10 << 20;
  floor.saved = 30 << 20;
  floor.gathered = 5 << 20;
  CHECK(describe(floor) == "100 MiB of parameter and optimizer shards, 40.0 MiB of sharded gradients");
  floor.largest_unit = 60 << 20;
  CHECK(describe(floor) == "100 MiB of parameter and optimizer shards, 60.0 MiB of the largest unit gathered");
  floor.waiting_gradients = 120 << 20;
  CHECK(describe(floor) ==
        "120 MiB of gradients of earlier micro-batches, 100 MiB of parameter and optimizer shards, 30.0 MiB of saved "
        "activations, "
        "5.00 MiB of units kept gathered");
}

TEST_CASE("a smaller micro-batch that did not fit rules the larger ones out") {
  const ModelGraph model = toy::model();
  SearchOptions o = options_for(model, 2);
  o.wrap = "block";
  o.checkpointing = "none";
  o.reshard = Reshard::automatic;
  std::vector<std::int64_t> tried;
  const PlanResult r = search(model, cluster(2, 2), native(), o, [&](const ShardingPlan& p) {
    tried.push_back(p.micro_batches[0]);
    return Score{
        Seconds(1), Bytes(p.micro_batches[0]), p.micro_batches[0] <= 4 ? Verdict::fits : Verdict::does_not_fit, {}};
  });
  CHECK(tried.front() == 1);
  CHECK(std::count(tried.begin(), tried.end(), 16) == 0);
  REQUIRE(r.best);
  CHECK(r.best->plan.micro_batches[0] == 4);  // equal steps: the most sequences
  REQUIRE(r.rivals.size() == 2);
  CHECK(r.rivals[0].naive);
  CHECK(r.rivals[0].why_lost.text().starts_with("300.0% slower"));
  CHECK(r.rivals[1].plan.micro_batches[0] == 8);
  CHECK(r.rivals[1].why_lost.text() == "does not fit: needs 8.00 B of 1.00 TiB");
}

TEST_CASE("of equally fast plans the smallest wins, unless the naive one is faster") {
  const ModelGraph model = toy::model({.blocks = 2});
  SearchOptions o = options_for(model, 2);
  o.micro_batch = 1;
  o.checkpointing = "none";
  double naive_seconds = 1.0005;
  const auto score = [&](const ShardingPlan& p) {
    if (p.units.size() == 1)
      return Score{Seconds(1.0009), Bytes(5), Verdict::fits, {}};  // root: slightly slower, smallest
    const bool naive = p.units.size() == 3 && p.units[0].reshard_after_forward == Reshard::automatic;
    return Score{Seconds(naive ? naive_seconds : 1.0), Bytes(10), Verdict::fits, {}};
  };
  PlanResult r = search(model, cluster(2, 2), native(), o, score);
  REQUIRE(r.best);
  CHECK(r.best->score.step.count() == 1.0);  // the root is slower than naive
  naive_seconds = 1.1;
  r = search(model, cluster(2, 2), native(), o, score);
  REQUIRE(r.best);
  CHECK(r.best->plan.units.size() == 1);
}

TEST_CASE("many micro-batches cost no more than few: the rest is extrapolated, the answer is exact") {
  const ModelGraph model = toy::model({.blocks = 2});
  SearchOptions o = options_for(model, 2);
  o.global_batch = 2 * 1000;  // 1000 sequences per GPU, no more than 64 at once
  std::int64_t long_steps = 0;
  // A first micro-batch of 5 s, then 2 s each (3 s where everything is gathered again): linear from the second on.
  const PlanResult r = search(model, cluster(2, 2), native(), o, [&](const ShardingPlan& p) {
    const auto n = static_cast<double>(p.micro_batches.size());
    if (p.micro_batches.size() > 4) ++long_steps;
    const bool kept = p.units.size() > 1 && p.units[0].reshard_after_forward == Reshard::no;
    Score s{Seconds(5 + (n - 1) * (kept ? 2 : 3)),
            Bytes(1),
            p.micro_batches[0] == 1 ? Verdict::fits : Verdict::does_not_fit,
            {}};
    s.where.compute = s.step;
    return s;
  });
  REQUIRE(r.best);
  CHECK(r.best->plan.micro_batches.size() == 1000);
  CHECK(r.best->score.step.count() == 5 + 999 * 2);
  CHECK(r.naive.score.step.count() == 5 + 999 * 3);
  CHECK(long_steps == 2);  // best and naive
  for (const Candidate& c : r.rivals)
    if (c.label.starts_with("block, reshard, checkpoint none, micro-batch 1 x 1000"))
      CHECK(c.score.where.compute.count() == doctest::Approx(5 + 999 * 3));
}

TEST_CASE("a plan that recomputes for nothing is not scored") {
  const ModelGraph model = toy::model({.blocks = 2});
  SearchOptions o = options_for(model, 2);
  o.micro_batch = 1;
  o.wrap = "block";
  int recomputing = 0;
  const PlanResult r = search(model, cluster(2, 2), native(), o, [&](const ShardingPlan& p) {
    recomputing += p.checkpointed.empty() ? 0 : 1;
    const bool fits = p.units[0].reshard_after_forward != Reshard::no;
    return Score{Seconds(p.checkpointed.empty() ? 1 : 2),
                 Bytes(1),
                 fits || !p.checkpointed.empty() ? Verdict::fits : Verdict::does_not_fit,
                 {}};
  });
  REQUIRE(r.best);
  CHECK(r.best->plan.checkpointed.empty());
  CHECK(recomputing ==
        2);  // every-2 of the kept-gathered kind, whose plain one does not fit; and one to show as a rival
}

TEST_CASE("why a rival lost, in words") {
  const auto judged = [](double step, std::int64_t peak, Verdict v, std::int64_t micro = 1) {
    Judged j;
    j.option.batch = {micro, 1};
    j.score = Score{Seconds(step), Bytes(peak), v, {}};
    return j;
  };
  const Bytes limit(100LL << 30);
  Judged best = judged(1.0, 50LL << 30, Verdict::fits), slower = judged(1.08, 40LL << 30, Verdict::fits);
  best.score->where.compute = Seconds(0.9);
  slower.score->where.compute = Seconds(0.86);
  slower.score->where.exposed_all_gather = Seconds(0.12);
  CHECK(why_lost(slower, best, limit).text() == "8.0% slower: 120 ms more exposed all-gather");
  CHECK(why_lost(judged(0.5, 120LL << 30, Verdict::does_not_fit), best, limit).text() ==
        "does not fit: needs 120 GiB of 100 GiB");
  CHECK(why_lost(judged(0.5, 101LL << 30, Verdict::tight), best, limit).text().starts_with("tight: 101 GiB"));
  CHECK(why_lost(judged(1.0, 60LL << 30, Verdict::fits), best, limit).text() == "as fast, but needs 10.0 GiB more");
  // Half the sequences in 0.6 of the time: 20% slower for equal work, and the all-gather of 0.1 s counts twice.
  Judged half = judged(0.6, 1, Verdict::fits, 1);
  best.option.batch.micro_batch = 2;
  half.score->where.compute = Seconds(0.45);
  half.score->where.exposed_all_gather = Seconds(0.1);
  CHECK(why_lost(half, best, limit).text() == "20.0% slower: 200 ms more exposed all-gather per step of equal size");
  CHECK(better(best, half));
  CHECK(better(half, judged(0.1, 1, Verdict::tight)));
  CHECK(better(judged(0.1, 1, Verdict::tight), judged(0.01, 1, Verdict::does_not_fit)));
}

TEST_CASE("rivals: at most five, all different, none the best") {
  const ModelGraph model = toy::model({.blocks = 4});
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SearchOptions o = options_for(model, 8);
    std::int64_t steps = 0, total = 0;
    o.progress = [&](std::int64_t done, std::int64_t of) {
      CHECK(done == ++steps);
      total = of;
    };
    const PlanResult r =
        search(model, cluster(8, 4), native(), o, [&](const ShardingPlan& p) { return score_of(p, seed); });
    CHECK(steps == total);
    CHECK(r.rivals.size() <= 5);
    CHECK(r.rivals.size() >= 3);
    REQUIRE(r.best);
    std::set<std::string> labels = {r.best->label};
    for (const Candidate& c : r.rivals) {
      CHECK(!c.why_lost.clause.empty());
      CHECK(labels.insert(c.label).second);
    }
    CHECK(r.searched ==
          "wrap, reshard, checkpointing, micro-batch and mesh for the most tokens per second (the global batch was "
          "left free)");
  }
}
