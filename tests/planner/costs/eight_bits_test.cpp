// Products in 8 bits: which run at their rate, the casts by their bytes, what backward keeps.
#include <doctest/doctest.h>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/costs/kernels.h"
#include "planner/tensor/local_model.h"
#include "tests/planner/costs/priced.h"
#include "tests/support/relative.h"

using namespace priced;

namespace {

// One sequence of 8192 tokens in bf16, on GPUs that are alike, with that many 8-bit operations per second.
Setup in_8_bits(double fp8) {
  Setup s;
  s.plan.param_dtype = DType::bf16;
  s.plan.seq_len = 8192;
  s.plan.micro_batches = {1};
  s.cluster.gpu.fp8 = FlopsPerSecond(fp8);
  s.costs = default_costs(s.cluster);
  s.costs.gpu_spread = 0;
  return s;
}

}  // namespace

TEST_CASE("float8 linear layers: products at the 8-bit rate, casts by their bytes, the others as before") {
  Setup s = in_8_bits(1979e12);
  Op linear;
  linear.kind = OpKind::linear;
  linear.shape.in = 4096;
  linear.shape.out = 16384;
  const Implementation& titan = find_implementation("torchtitan", true, "test");
  const auto seconds = [&](Float8Recipe recipe, Direction direction, bool gathered = false) {
    Op op = linear;
    op.shape.float8 = recipe;
    op.shape.float8_weight = gathered;
    return kernel_demand(op, direction, 1, {s.model, s.plan, titan, s.cluster, s.costs}).alone.count();
  };
  using enum Float8Recipe;
  // 32 * 128 tiles of 256 x 128 on 132 SMs are 32 waves; k = 4096 and, at twice the rate, twice the 256 of a tile's
  // fixed time (1979 over 989). Casts: 3 bytes of 8192 x 4096 inputs and 5 of 4096 x 16384 weights, or none of weights
  // that come in 8 bits. Launches of 2 us.
  const double wave = 65536 * (4096 + 256 * 1979.0 / 989) / (0.7 * 1979e12 / 132), input = 3.0 * 8192 * 4096,
               weight = 5.0 * 4096 * 16384, memory = 0.85 * 3.35e12;
  CHECK(seconds(tensorwise, Direction::forward) == relative(32 * wave + (input + weight) / memory + 6 * 2e-6));
  CHECK(seconds(tensorwise, Direction::forward, true) == relative(32 * wave + input / memory + 3 * 2e-6));
  const double faster = seconds(none, Direction::backward) / seconds(tensorwise, Direction::backward);
  CHECK(faster > 1.2);  // torchtitan publishes steps 1.3 to 1.5 times as fast, other kernels included
  CHECK(faster < 2.2);
  // Scales by row: more casts in backward; the gradient of the weight in 16 bits costs more than they do.
  CHECK(seconds(rowwise, Direction::backward) > seconds(tensorwise, Direction::backward));
  CHECK(seconds(rowwise_with_gw_hp, Direction::backward) > seconds(rowwise, Direction::backward));
  CHECK(seconds(rowwise_with_gw_hp, Direction::backward) < seconds(none, Direction::backward));
  s.cluster.gpu.fp8 = FlopsPerSecond(0);
  CHECK_THROWS_WITH_AS((void)seconds(tensorwise, Direction::forward), doctest::Contains("multiplies no 8-bit numbers"),
                       InputError);
  CHECK(seconds(none, Direction::forward) > 0);
}

// torchao's MXFP8Linear: two casts in forward, four in backward, each 2 + 1 + 1/32 bytes per element at 5.7 TB/s where
// memory-bound kernels are taken for 6.8; a cast, and one copy of its scales, beside each factor of each product.
TEST_CASE("mxfp8: three products at one rate, six casts, on Blackwell alone") {
  Setup s = in_8_bits(5000e12);
  s.cluster.gpu.compute_capability = 100;
  Op linear;
  linear.kind = OpKind::linear;
  linear.shape = {.in = 4096, .out = 16384};
  linear.shape.float8 = Float8Recipe::mxfp8;
  const Implementation& titan = find_implementation("torchtitan", true, "test");
  const auto seconds = [&](Direction direction) {
    return kernel_demand(linear, direction, 1, {s.model, s.plan, titan, s.cluster, s.costs}).alone.count();
  };
  const double x = 8192.0 * 4096, y = 8192.0 * 16384, w = 4096.0 * 16384;
  const double byte = (2 + 1 + 1.0 / 32) * 6.8 / 5.7 / (0.85 * 3.35e12), launch = 2e-6;
  const double products = seconds(Direction::forward) - (x + w) * byte - 5 * launch;
  const double rate = 2 * x * 16384 / products;
  CHECK(rate < s.costs.fp8_matmul_efficiency * 5000e12 * 2850 / 3433);
  CHECK(rate > 0.7 * s.costs.fp8_matmul_efficiency * 5000e12 * 2850 / 3433);  // tiles and waves
  // The same by one scale: casts of 3 bytes per input and 5 per weight, and six launches.
  linear.shape.float8 = Float8Recipe::tensorwise;
  const double by_tensor = seconds(Direction::forward) - (3 * x + 5 * w) / (0.85 * 3.35e12) - 6 * launch;
  linear.shape.float8 = Float8Recipe::mxfp8;
  CHECK(products / by_tensor == doctest::Approx(3433.0 / 2850).epsilon(0.01));
  const double both = seconds(Direction::backward) - (2 * y + x + w) * byte - 10 * launch;
  CHECK(both > 1.6 * products);  // longer sums spread a tile's fixed time
  CHECK(both < 2.2 * products);
  // What a cast leaves: 8 bits, and scales in two orders. Backward at its worst: the weight's gradient, its two
  // factors.
  const OpFacts f = facts(titan, linear, {1, 8192, 2, 1});
  const auto scaled = [](double elements) { return static_cast<std::int64_t>(elements * 17 / 16); };
  CHECK(f.saved_inputs == 0b1);
  CHECK(f.saved_extra_bytes == 0);
  CHECK(f.forward_scratch_bytes == scaled(x) + scaled(w));
  CHECK(f.backward_scratch_bytes == scaled(y) + scaled(x));
  const OpFacts eager = facts(find_implementation("torchtitan", false, "test"), linear, {1, 8192, 2, 1});
  CHECK(eager.backward_scratch_bytes == 2 * scaled(y) + scaled(x) + scaled(w));
  CHECK(eager.forward_launches == 7);
  CHECK(eager.backward_launches == 14);
  s.cluster.gpu.compute_capability = 90;
  CHECK_THROWS_WITH_AS((void)seconds(Direction::forward), doctest::Contains("mxfp8 needs a Blackwell GPU"), InputError);
}

// TransformerEngine's te.Linear, as its sources say: a cast reads 2 bytes and writes 1 by rows and 1 by columns; of the
// input and the weight before the first product, of the gradient before the other two, which accumulate in fp32.
TEST_CASE("linear layers of TransformerEngine: one pass per cast, and 8 bits kept for backward, of the weight, too") {
  Setup s = in_8_bits(1979e12);
  Op op;
  op.kind = OpKind::linear;
  op.shape.in = 4096;
  op.shape.out = 16384;
  op.shape.float8 = Float8Recipe::delayed;
  const Implementation& foundry = find_implementation("foundry", false, "test");
  const Workload work{1, 8192, 2, 1};
  const double x = 8192.0 * 4096, w = 4096.0 * 16384, y = 8192.0 * 16384;
  const OpFacts f = facts(foundry, op, work);
  CHECK(f.saved_inputs == 0);
  CHECK(f.saved_extra_bytes == static_cast<std::int64_t>(x + w));
  CHECK(f.forward_scratch_bytes == static_cast<std::int64_t>(x + w));
  CHECK(f.backward_scratch_bytes == static_cast<std::int64_t>(2 * y));
  const auto seconds = [&](Direction direction) {
    return kernel_demand(op, direction, 1, {s.model, s.plan, foundry, s.cluster, s.costs}).alone.count();
  };
  // Waves as in the test before, of 16384 x 8192, 8192 x 4096 and 16384 x 4096.
  const double rate = 0.7 * 1979e12 / 132, memory = 0.85 * 3.35e12, fixed = 256 * 1979.0 / 989;
  CHECK(seconds(Direction::forward) == relative(32 * 65536 * (4096 + fixed) / rate + 4 * (x + w) / memory + 8 * 2e-6));
  CHECK(seconds(Direction::backward) ==
        relative(1.15 * 65536 * (8 * (16384 + fixed) + 16 * (8192 + fixed)) / rate + 4 * y / memory + 7 * 2e-6));
}

// Composer computes two metrics beside the loss, under the same autocast as the model: te.fp8_autocast casts nothing.
TEST_CASE("metrics of llm-foundry read bf16 logits where te.fp8_autocast stands in the place of torch.autocast") {
  const Implementation& foundry = find_implementation("foundry", false, "test");
  const Workload work{2, 512, 2, 1};
  Op op;
  op.kind = OpKind::cross_entropy;
  op.shape.vocab = 50368;
  const std::int64_t cast = facts(foundry, op, work).after_backward.traffic_bytes;
  op.shape.float8 = Float8Recipe::delayed;
  const std::int64_t n = 1024 * 50368, without = facts(foundry, op, work).after_backward.traffic_bytes;
  // Each: a log-softmax that reads three times and writes once, of 2 bytes, and under torch.autocast a cast of its
  // result, 2 + 4.
  CHECK(without == 2 * n * 4 * 2);
  CHECK(cast - without == 2 * n * 6);
  ModelGraph model = load_model("mpt-125m-bench");
  ShardingPlan plan;
  plan.float8.recipe = Float8Recipe::delayed;
  model = local_model(model, plan);
  for (const Op& each : model.ops)
    CHECK((each.shape.float8 == Float8Recipe::delayed) ==
          (each.kind == OpKind::cross_entropy || (each.kind == OpKind::linear && each.shape.out != 50368)));
}
