// What PyTorch's test_fully_shard_comm.py, and its tests of mixed precision and clipping, demand, run. tests/PARITY.md
// says which test case stands for which of its tests.
#include <cmath>
#include <functional>
#include <set>

#include "executor/arithmetic/element.h"
#include "executor/data/synthetic.h"
#include "tests/support/mlp_model.h"
#include "tests/support/parity_support.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph blocks(int n = 3) {
  return mlp({.blocks = std::vector<std::vector<std::int64_t>>(static_cast<std::size_t>(n), {6, 9, 6}), .vocab = 11});
}
ShardingPlan double_plan(const ModelGraph& model, const PlanWords& words) { return make_plan(model, in_double(words)); }

void check_counts(const RunResult& r, int gathers, int scatters, int reduces) {
  for (const RankMeasurement& rank : r.measurement.ranks) {
    CHECK(executed(rank, Action::all_gather) == gathers);
    CHECK(executed(rank, Action::reduce_scatter) == scatters);
    CHECK(executed(rank, Action::all_reduce) == reduces);
  }
}

// Rounded as a buffer of this type rounds.
double rounded(DType type, double x) {
  return with_type(type, [&](auto element) {
    store(element, static_cast<Math<decltype(element)>>(x));
    return static_cast<double>(load(element));
  });
}

// Sequences [first, first + 1), [first + stride, ...) of the data: what one rank of several sees, given to a rank
// alone.
RunOptions one_sequence(const ModelGraph& model, const ShardingPlan& plan, std::int64_t first, std::int64_t stride) {
  RunOptions o = five_steps();
  o.training.tokens = [vocab = model.vocab, seed = plan.seed, first, stride](std::int64_t sequence, std::int64_t length,
                                                                             std::int64_t* ids, std::int64_t* targets) {
    for (std::int64_t p = 0; p < length; ++p) {
      ids[p] = synthetic_token(seed, first + sequence * stride, p, vocab);
      targets[p] = synthetic_token(seed, first + sequence * stride, p + 1, vocab);
    }
  };
  return o;
}

// First gradients of each rank by itself, in the compute dtype: what the ranks of `plan` bring to the first reduction.
std::vector<RunResult> gradients_by_rank(const ModelGraph& model, const ShardingPlan& plan) {
  std::vector<RunResult> all;
  for (std::int64_t r = 0; r < plan.ranks(); ++r) {
    ShardingPlan alone = make_plan(model, {.seq_len = plan.seq_len, .compute = plan.param_dtype});
    alone.seed = plan.seed;
    all.push_back(execute(model, alone, one_sequence(model, plan, r, plan.ranks())));
  }
  return all;
}

}  // namespace

TEST_CASE("test_fully_shard_communication_count: collectives of a step that ran") {
  const int B = 3;
  const ModelGraph model = blocks(B);
  for (const std::int64_t replicate : {1, 2}) {
    const int reduces = replicate > 1 ? B + 1 : 0;
    const PlanWords words{.shard = 4 / replicate, .replicate = replicate};
    const auto run_with = [&](Reshard r) {
      PlanWords w = words;
      w.reshard = r;
      return check_parity(model, double_plan(model, w));
    };
    check_counts(run_with(Reshard::automatic), 2 * B + 1, B + 1, reduces);
    check_counts(run_with(Reshard::yes), 2 * B + 2, B + 1, reduces);
    if (replicate == 1) check_counts(run_with(Reshard{2}), 2 * B + 2, B + 1, reduces);
    check_counts(run_with(Reshard::no), B + 1, B + 1, reduces);
  }
}

TEST_CASE("test_set_reshard_after_forward: of the root alone, of all but the root") {
  const ModelGraph model = blocks(3);
  ShardingPlan plan = double_plan(model, {.shard = 2, .reshard = Reshard::no});
  plan.units.back().reshard_after_forward = Reshard::yes;
  check_counts(check_parity(model, plan), 4 + 1, 4, 0);
  plan = double_plan(model, {.shard = 2, .reshard = Reshard::yes});
  plan.units.back().reshard_after_forward = Reshard::no;
  check_counts(check_parity(model, plan), 4 + 3, 4, 0);
}

TEST_CASE(
    "test_set_reduce_scatter_divide_factor: W and 2 W, of one unit and not of those inside it, on a 1-D and a 2-D "
    "mesh") {
  const ModelGraph model = blocks(2);
  for (const std::int64_t replicate : {1, 2})
    for (const double times : {1.0, 2.0})
      for (const DType reduce : {DType::f64, DType::f32}) {  // f64 divides by itself, f32 in the reduction
        ShardingPlan plan = double_plan(model, {.shard = 4 / replicate, .replicate = replicate});
        plan.reduce_dtype = reduce;
        const double factor = times * static_cast<double>(plan.shard()), mean = static_cast<double>(plan.ranks());
        plan.units.front().gradient_divide_factor = factor;
        const RunResult result = execute(model, plan, five_steps());
        check_as_predicted(model, plan, result.measurement);
        const RunResult& one = reference(model, plan);
        for (std::size_t i = 0; i < model.parameters.size(); ++i) {
          const std::string& name = model.parameters[i].name;
          CAPTURE(name);
          std::vector<double> expected = one.first_gradients[i].values;
          if (name.starts_with("layers.0."))
            for (double& g : expected) g *= mean / factor;
          CHECK(distance(result.first_gradients[i].values, expected) <= (reduce == DType::f64 ? 1e-12 : 1e-6));
        }
      }
}

TEST_CASE("TestFullyShardForceSumReduction: sums that are divided afterwards, and their number") {
  const ModelGraph model = blocks(2);
  for (const std::int64_t replicate : {1, 2}) {
    ShardingPlan plan = double_plan(model, {.shard = 4 / replicate, .replicate = replicate, .reduce = DType::f32});
    plan.reduce_dtype = DType::f32;
    const Program averaged = lower(model, plan, native_implementation());
    plan.force_sum_reduction = true;
    const Program summed = lower(model, plan, native_implementation());
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      CHECK(averaged.layouts[u].scale.reduce_scatter == ReduceOp::average);
      CHECK(summed.layouts[u].scale.reduce_scatter == ReduceOp::sum);
      CHECK(summed.layouts[u].scale.all_reduce == ReduceOp::sum);
    }
    const RunResult result = execute(model, plan, five_steps());
    check_equal(result, reference(model, plan), 1e-5);
    check_as_predicted(model, plan, result.measurement);
    check_counts(result, 2 * 3 - 1, 3, replicate > 1 ? 3 : 0);
    CHECK(count(model, plan, Action::divide_gradient) == 3);
  }
}

TEST_CASE("test_set_reduce_scatter_max_input_buffers: 1, 2 and 3 give the same bits, and so much more memory") {
  const ModelGraph model = blocks(5);
  ShardingPlan plan = double_plan(model, {.shard = 3, .reshard = Reshard::yes});
  std::vector<RunResult> results;
  std::vector<std::int64_t> most;  // reduce-scatter inputs of the blocks alive at once
  for (const int k : {1, 2, 3}) {
    plan.reduce_scatter_buffers = k;
    results.push_back(check_parity(model, plan));
    const Program program = lower(model, plan, native_implementation());
    std::int64_t live = 0, peak = 0;
    const auto input = [&](std::int32_t b) {
      return program.buffers[static_cast<std::size_t>(b)].kind == BufferKind::reduce_input ? 1 : 0;
    };
    for (const Operation& op : program.steady_step.ops)
      memory_events(
          program.steady_step, op, [&](std::int32_t b) { peak = std::max(peak, live += input(b)); },
          [&](std::int32_t b) { live -= input(b); });
    most.push_back(peak);
  }
  CHECK(equal_bits(results[0], results[1]));
  CHECK(equal_bits(results[0], results[2]));
  CHECK(most == std::vector<std::int64_t>{1, 2, 3});
  plan.reduce_scatter_buffers = 0;
  CHECK(refusal([&] { static_cast<void>(execute(model, plan, five_steps())); }).find("reduce_scatter_buffers") !=
        std::string::npos);
}

TEST_CASE("test_set_separate_reduce_scatter_group: a communicator for reduce-scatters gives the same bits") {
  const ModelGraph model = blocks(4);
  for (const std::int64_t replicate : {1, 2}) {
    ShardingPlan plan = double_plan(
        model, {.shard = 4 / replicate, .replicate = replicate, .reshard = Reshard::yes, .micro_batches = {1, 1}});
    const RunResult one = check_parity(model, plan);
    plan.separate_reduce_scatter = true;
    CHECK(equal_bits(check_parity(model, plan), one));
  }
}

TEST_CASE(
    "test_fully_shard_multi_module_backward_prefetch: groups of two layers, embeddings, and norm with head that stays "
    "whole") {
  const ModelGraph model =
      small_llama({.layers = 4, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  ShardingPlan plan = double_plan(model, {.shard = 4});
  plan.units = {{{"model.embed_tokens"}},
                {{"model.layers.0", "model.layers.1"}},
                {{"model.layers.2", "model.layers.3"}},
                {{"model.norm", "lm_head"}},
                {{""}}};
  plan.units[3].reshard_after_forward = Reshard::no;
  check_counts(check_parity(model, plan), 4 + 3, 4, 0);
}

TEST_CASE("test_backward_misprefetch: gathering what is not needed next changes no bit") {
  const ModelGraph model = blocks(4);
  ShardingPlan plan = double_plan(model, {.shard = 3, .reshard = Reshard::yes});
  const RunResult plain = check_parity(model, plan);
  plan.units[3].backward_prefetch = {"layers.0"};
  plan.units[0].backward_prefetch = {"layers.3", "layers.2"};
  plan.units[1].forward_prefetch = {"layers.3", "layers.0"};
  CHECK(equal_bits(check_parity(model, plan), plain));
}

TEST_CASE(
    "test_set_modules_to_backward_prefetch_inside_ac: a block with a unit inside it, recomputed, prefetched by name") {
  const ModelGraph model =
      small_llama({.layers = 3, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  ShardingPlan plan = double_plan(model, {.shard = 2});
  plan.units.clear();
  for (int i = 0; i < 3; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    plan.units.push_back({{layer + ".mlp"}});
    plan.units.push_back({{layer}});
  }
  plan.units.push_back({{""}});
  plan.checkpointed = checkpointed_modules(model, "full", "test");
  const RunResult plain = check_parity(model, plan);
  for (std::size_t i = 1; i < 3; ++i) {
    const std::string before = "model.layers." + std::to_string(i - 1);
    plan.units[2 * i + 1].backward_prefetch = {before, before + ".mlp"};
  }
  CHECK(equal_bits(check_parity(model, plan), plain));
}

TEST_CASE(
    "test_singleton_copy_division, test_size1_reduceop: one shard divides by what it is told, and by nothing else") {
  const ModelGraph model = blocks(2);
  for (const std::int64_t replicate : {1, 2}) {
    ShardingPlan plan = double_plan(model, {.replicate = replicate});
    plan.param_dtype = plan.reduce_dtype = plan.master_dtype = DType::f32;
    const RunResult plain = execute(model, plan, five_steps());
    check_equal(plain, reference(model, plan), 1e-5);
    plan.units.front().gradient_divide_factor = 4;
    const RunResult divided = execute(model, plan, five_steps());
    check_as_predicted(model, plan, divided.measurement);
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      std::vector<double> expected = plain.first_gradients[i].values;
      if (model.parameters[i].name.starts_with("layers.0."))
        for (double& g : expected) g *= static_cast<double>(replicate) / 4;  // summed over replicas, not averaged
      CHECK(distance(divided.first_gradients[i].values, expected) <= 1e-6);
    }
  }
}

// --- mixed precision ---

namespace {

// Norms keep its gradients within the range of fp16.
ModelGraph llama() {
  return small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
}

}  // namespace

TEST_CASE(
    "test_compute_dtype, test_reduce_dtype: what is reduced are the ranks' gradients, rounded once to the reduce "
    "dtype") {
  const ModelGraph model = llama();
  for (const DType compute : {DType::bf16, DType::f16, DType::f32})
    for (const DType reduce : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(name(compute));
      CAPTURE(name(reduce));
      const ShardingPlan plan = make_plan(model, {.shard = 2, .seq_len = 8, .compute = compute, .reduce = reduce});
      const RunResult result = execute(model, plan, five_steps());
      check_as_predicted(model, plan, result.measurement);
      const std::vector<RunResult> ranks = gradients_by_rank(model, plan);
      const GradientScale scale = gradient_scale(2, 1, reduce, std::nullopt, false);
      for (std::size_t i = 0; i < model.parameters.size(); ++i) {
        CAPTURE(model.parameters[i].name);
        const std::vector<double>& got = result.first_gradients[i].values;
        std::vector<double> expected(got.size());
        for (std::size_t e = 0; e < got.size(); ++e) {
          double sum = 0;
          for (const RunResult& r : ranks)
            sum += rounded(reduce, rounded(reduce, r.first_gradients[i].values[e]) / scale.divide_before);
          const double after = scale.reduce_scatter == ReduceOp::average ? 2 : scale.divide_after;
          expected[e] = rounded(reduce, rounded(reduce, sum) / after);
        }
        if (scale.reduce_scatter == ReduceOp::average)
          CHECK(distance(got, expected) <= (reduce == DType::bf16 ? 4e-3 : 1e-6));
        else CHECK(got == expected);
      }
    }
}

TEST_CASE("test_reduce_dtype: bf16 and fp16 compute with fp32 reduction learn what fp32 learns; and the reverse") {
  const ModelGraph model = llama();
  for (const PlanWords& words :
       {PlanWords{.shard = 2, .compute = DType::bf16},
        PlanWords{.shard = 4, .compute = DType::f16, .reduce = DType::f32},
        PlanWords{.shard = 2, .replicate = 2, .reduce = DType::bf16}, PlanWords{.shard = 3, .reduce = DType::f16},
        PlanWords{.shard = 2, .compute = DType::bf16, .reduce = DType::bf16},
        PlanWords{.shard = 2, .replicate = 2, .compute = DType::f16, .reduce = DType::f16}}) {
    const ShardingPlan plan = make_plan(model, words);
    const RunResult mixed = execute(model, plan, five_steps());
    check_as_predicted(model, plan, mixed.measurement);
    const RunResult& full = reference(model, plan);
    CHECK(distance(mixed.measurement.losses, full.measurement.losses) <= 5e-3);
    for (std::size_t i = 0; i < full.first_gradients.size(); ++i)
      CHECK(distance(mixed.first_gradients[i].values, full.first_gradients[i].values) <= 3e-2);
  }
}

TEST_CASE(
    "test_grad_acc_with_reduce_dtype: gradients that wait are kept in the reduce dtype, not in the compute dtype") {
  const ModelGraph model = blocks(2);
  // Two ranks with a micro-batch each, and one rank with both micro-batches: bf16 gradients, the same ones, added in
  // fp32.
  const RunResult two = execute(model, make_plan(model, {.shard = 2, .compute = DType::bf16}), five_steps());
  ShardingPlan alone = make_plan(model, {.micro_batches = {1, 1}, .compute = DType::bf16, .grad_sync = GradSync::last});
  const RunResult one = execute(model, alone, five_steps());
  for (std::size_t i = 0; i < two.first_gradients.size(); ++i)
    CHECK(two.first_gradients[i].values == one.first_gradients[i].values);
  const Program program = lower(model, alone, native_implementation());
  bool any = false;
  for (const Buffer& b : program.buffers) {
    if (b.kind != BufferKind::gradient_accumulator) continue;
    any = true;
    CHECK(b.dtype == DType::f32);
  }
  CHECK(any);
  check_as_predicted(model, alone, one.measurement);
}

// --- clipping ---

TEST_CASE("test_clip_grad_norm_1d, _2d: norms 1, 2, 3 and inf over the mesh, one all-reduce over the shards") {
  const ModelGraph model = mlp({.blocks = {{7, 15, 3}}});
  const double infinity = std::numeric_limits<double>::infinity();
  for (const PlanWords& words :
       {PlanWords{.shard = 1}, PlanWords{.shard = 3}, PlanWords{.shard = 2, .replicate = 2}, PlanWords{.shard = 8}})
    for (const double type : {1.0, 2.0, 3.0, infinity})
      for (const double limit : {0.01, 1e6}) {
        CAPTURE(type);
        CAPTURE(limit);
        PlanWords w = in_double(words);
        w.optimizer = OptimizerKind::sgd;
        ShardingPlan plan = make_plan(model, w);
        plan.clip_norm = limit;
        plan.clip_norm_type = type;
        plan.optimizer.weight_decay = 0;
        RunOptions o = five_steps();
        o.training.learning_rate = [](std::int64_t step) {
          return step == 0 ? 0.5 : 0.0;
        };  // one step shows what was clipped
        const RunResult result = execute(model, plan, o);
        check_as_predicted(model, plan, result.measurement);
        double norm = 0;
        for (const NamedTensor& g : result.first_gradients)
          for (const double x : g.values)
            norm = std::isinf(type) ? std::max(norm, std::abs(x)) : norm + std::pow(std::abs(x), type);
        if (!std::isinf(type)) norm = std::pow(norm, 1 / type);
        const double factor = std::min(1.0, limit / (norm + 1e-6));
        CHECK((factor < 1) == (limit < 1));
        for (std::size_t i = 0; i < model.parameters.size(); ++i) {
          std::vector<double> expected = result.first_gradients[i].values;
          for (std::size_t e = 0; e < expected.size(); ++e)
            expected[e] = initial_value(plan.seed, model.parameters[i], static_cast<std::int64_t>(e)) -
                          0.5 * factor * expected[e];
          CHECK(distance(result.parameters[i].values, expected, 1e-6) <= 1e-12);
        }
        CHECK(count(model, plan, Action::clip_reduce) == 1);
        int reduces = 0;
        for (const OrderedOperation& ordered : result.measurement.ranks[0].order)
          reduces += ordered.action == Action::clip_reduce ? 1 : 0;
        CHECK(reduces == 1);
      }
}

TEST_CASE("clipping of several ranks equals one rank's, for every norm") {
  const ModelGraph model = blocks(2);
  for (const double type : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()})
    for (const PlanWords& words : {PlanWords{.shard = 3}, PlanWords{.shard = 2, .replicate = 2},
                                   PlanWords{.replicate = 3, .dialect = Dialect::ddp}}) {
      ShardingPlan plan = double_plan(model, words);
      plan.clip_norm = 1e-3;
      plan.clip_norm_type = type;
      ShardingPlan one = unsharded(model, plan);
      check_equal(execute(model, plan, five_steps()), execute(model, one, five_steps()), 1e-10);
    }
}
