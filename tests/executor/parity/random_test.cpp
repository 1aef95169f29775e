// Plans with any of fsdp2's choices, run: equal to one rank, and what was predicted. What each choice does by itself is
// in the other executor_parity_*_test.cpp.
#include "executor/data/synthetic.h"
#include "tests/support/any_plan.h"
#include "tests/support/parity_support.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Drawn {
  ModelGraph model;
  ShardingPlan plan;
};

// Small enough for threads of one machine: at most 8 ranks.
Drawn draw(std::mt19937& random) {
  for (;;) {
    const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    toy::Shape shape{
        .blocks = 1 + pick(3), .vocab = 5 + pick(9), .width = 3 + pick(9), .hidden = 4 + pick(9), .tied = pick(3) == 0};
    const bool repeats = shape.blocks > 1 && pick(4) == 0;
    if (repeats) {
      for (int b = 0; b < shape.blocks; ++b) shape.order.push_back(b);
      shape.order.push_back(pick(shape.blocks - 1));
    }
    Drawn d{toy::model(shape), {}};
    d.plan = any_plan(d.model, repeats, random);
    std::vector<std::string> frozen;
    for (const Parameter& p : d.model.parameters)
      if (!p.trainable) frozen.push_back(p.name);
    d.model = freeze(d.model, frozen, "test");
    d.plan.model_digest = d.model.digest();
    if (d.plan.ranks() > 8) continue;
    d.plan.optimizer.lr = 3e-3;
    if (!d.plan.ignored.empty()) d.plan.clip_norm.reset();
    for (Unit& u : d.plan.units)  // by any other factor it would be another training
      if (u.gradient_divide_factor) u.gradient_divide_factor = static_cast<double>(d.plan.ranks());
    return d;
  }
}

// Every rank sees the same sequences: what is ignored, and reduced by nobody, stays equal on all of them.
void same_tokens(RunOptions& o, const ModelGraph& model, const ShardingPlan& plan) {
  o.training.tokens = [vocab = model.vocab, per_rank = plan.sequences_per_rank(), ranks = plan.ranks()](
                          std::int64_t sequence, std::int64_t length, std::int64_t* ids, std::int64_t* targets) {
    const std::int64_t mine = sequence % per_rank + sequence / (per_rank * ranks) * per_rank;
    for (std::int64_t p = 0; p < length; ++p) {
      ids[p] = synthetic_token(7, mine, p, vocab);
      targets[p] = synthetic_token(7, mine, p + 1, vocab);
    }
  };
}

}  // namespace

TEST_CASE("random plans in fp64: five steps equal those of one rank; order, memory and bytes are the predicted ones") {
  const unsigned seed = 20261121;
  std::mt19937 random(seed);
  for (int trial = 0; trial < 150; ++trial) {
    CAPTURE(trial);
    Drawn d = draw(random);
    d.plan.param_dtype = d.plan.reduce_dtype = d.plan.master_dtype = DType::f64;
    CAPTURE(to_json_text(d.plan));
    RunOptions o = five_steps();
    same_tokens(o, d.model, d.plan);
    const RunResult many = execute(d.model, d.plan, o);
    ShardingPlan one = unsharded(d.model, d.plan);
    one.micro_batches = {d.plan.sequences_per_rank()};  // of one rank: all have the same
    RunOptions alone = five_steps();
    same_tokens(alone, d.model, one);
    check_equal(many, execute(d.model, one, alone), 1e-10);
    check_as_predicted(d.model, d.plan, many.measurement);
  }
}

TEST_CASE("random plans in mixed precision: near one rank in fp32; order, memory and bytes are the predicted ones") {
  const unsigned seed = 20261122;
  std::mt19937 random(seed);
  for (int trial = 0; trial < 100; ++trial) {
    CAPTURE(trial);
    Drawn d = draw(random);
    CAPTURE(to_json_text(d.plan));
    RunOptions o = five_steps();
    same_tokens(o, d.model, d.plan);
    const RunResult many = execute(d.model, d.plan, o);
    ShardingPlan one = unsharded(d.model, d.plan);
    one.micro_batches = {d.plan.sequences_per_rank()};
    RunOptions alone = five_steps();
    same_tokens(alone, d.model, one);
    // Weights of 0.02 in bf16, gradients of some 1e-6 that fp16 has few bits for. Bit by bit: comm_test.cpp.
    check_equal(many, execute(d.model, one, alone), d.plan.reduce_dtype == DType::f16 ? 0.3 : 0.1);
    check_as_predicted(d.model, d.plan, many.measurement);
  }
}

TEST_CASE("random plans of units with dtypes of their own: near one rank in fp32; order, memory, bytes as predicted") {
  const unsigned seed = 20261125;
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int run = 0, several = 0;
  for (int trial = 0; trial < 1000 && run < 60; ++trial) {
    CAPTURE(trial);
    Drawn d = draw(random);
    d.plan.torch = {};
    const DType own = pick(2) ? DType::f32 : DType::bf16;
    for (Unit& u : d.plan.units) {
      if (pick(3) == 0) u.param_dtype = own;
      if (pick(3) == 0) u.reduce_dtype = pick(2) ? DType::f32 : DType::bf16;
      if (pick(2) == 0 && u.modules.front() != "") u.output_dtype = d.plan.param_dtype;
    }
    if (!refusal([&] { check(d.plan, d.model); }).empty()) continue;  // an op reads two dtypes, and the like
    ++run;
    several += d.plan.several_dtypes() ? 1 : 0;
    CAPTURE(to_json_text(d.plan));
    RunOptions o = five_steps();
    same_tokens(o, d.model, d.plan);
    const RunResult many = execute(d.model, d.plan, o);
    ShardingPlan one = unsharded(d.model, d.plan);
    one.micro_batches = {d.plan.sequences_per_rank()};
    RunOptions alone = five_steps();
    same_tokens(alone, d.model, one);
    check_equal(many, execute(d.model, one, alone), d.plan.reduce_dtype == DType::f16 ? 0.3 : 0.1);
    check_as_predicted(d.model, d.plan, many.measurement);
  }
  CHECK(run == 60);
  CHECK(several >= 30);
}
