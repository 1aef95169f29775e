// Products run at the clock of the slowest GPU of a job: order statistics against closed forms and tables, and which
// kernels of a step grow with the ranks.
#include "planner/costs/slowest.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <numbers>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/costs/kernels.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

// What an op of a step on `ranks` ranks demands, one sequence of 4,096 tokens each.
Demand demand_on(std::int64_t ranks, const Op& op, const ClusterSpec& cluster, const Costs& costs,
                 const ModelGraph& model = {}) {
  ShardingPlan plan;
  plan.param_dtype = DType::bf16, plan.seq_len = 4096, plan.mesh = {{"shard", ranks}};
  const CostContext context{model, plan, find_implementation("torchtitan-2024", false, "test"), cluster, costs};
  return kernel_demand(op, Direction::forward, 1, context);
}
double seconds_on(std::int64_t ranks, const Op& op, const ClusterSpec& cluster, const Costs& costs,
                  const ModelGraph& model = {}) {
  return demand_on(ranks, op, cluster, costs, model).alone.count();
}

Op product() {
  Op op;
  op.kind = OpKind::linear;
  op.shape.in = op.shape.out = 8192;
  return op;
}

Op norm() {
  Op op;
  op.kind = OpKind::layer_norm;
  op.shape.in = op.shape.out = 8192;
  return op;
}

}  // namespace

TEST_CASE("maximum of n normals: closed forms up to 3, published means above") {
  CHECK(std::abs(maximum_mean(1)) < 1e-12);
  CHECK(maximum_mean(2) == relative(1 / std::sqrt(std::numbers::pi)).epsilon(1e-9));
  CHECK(maximum_mean(3) == relative(1.5 / std::sqrt(std::numbers::pi)).epsilon(1e-9));
  // Order statistics of normal samples (Harter 1961; Tippett 1925).
  CHECK(maximum_mean(8) == relative(1.42360).epsilon(1e-5));
  CHECK(maximum_mean(10) == relative(1.53875).epsilon(1e-5));
  CHECK(maximum_mean(100) == relative(2.50759).epsilon(1e-5));
  CHECK(maximum_mean(1000) == relative(3.24144).epsilon(1e-5));
  // The usual bound: mu + sigma sqrt(2 ln n), from above.
  for (const double n : {2.0, 64.0, 4096.0, 1e7}) CHECK(maximum_mean(n) < std::sqrt(2 * std::log(n)));
  CHECK(std::abs(maximum_quantile(1, 0.5)) < 1e-12);
  CHECK(maximum_quantile(1, 0.975) == relative(1.959964).epsilon(1e-6));
  CHECK(maximum_quantile(2, 0.25) == relative(0).epsilon(1e-9).scale(1));                     // (1/2)^2
  CHECK(maximum_quantile(1e6, std::pow(1 - 1e-9, 1e6)) == relative(5.997807).epsilon(1e-5));  // Q(5.9978) = 1e-9
}

TEST_CASE("products take as long as on the slowest of the ranks; what memory bounds does not") {
  const ClusterSpec cluster = load_cluster("dgx-h100");
  Costs costs = default_costs(cluster);
  costs.gpu_spread = 0.02;
  costs.kernel_overhead = {};
  const double one = seconds_on(1, product(), cluster, costs);
  CHECK(seconds_on(8, product(), cluster, costs) == relative(one * (1 + 0.02 * 1.42360)).epsilon(1e-4));
  CHECK(seconds_on(1000, product(), cluster, costs) == relative(one * (1 + 0.02 * 3.24144)).epsilon(1e-4));
  CHECK(seconds_on(1, norm(), cluster, costs) > 0);
  CHECK(seconds_on(1000, norm(), cluster, costs) == seconds_on(1, norm(), cluster, costs));
  // 8-bit products, too; of tensor ranks each counts.
  Op eight = product();
  eight.shape.float8 = Float8Recipe::tensorwise;
  CHECK(seconds_on(64, eight, cluster, costs) >
        1.01 * seconds_on(1, eight, cluster, costs));  // and casts, which do not
  ShardingPlan plan;
  plan.mesh = {{"shard", 8}, {"tensor", 8}};
  const ModelGraph model;
  CHECK(CostContext(model, plan, find_implementation("native", false, "test"), cluster, costs).slowest ==
        slowest_clock(64, costs));
  costs.gpu_spread = 0;
  CHECK(seconds_on(1000, product(), cluster, costs) == one);
}

TEST_CASE("traced products do so, too, and of a second round the part that runs at the chip's own clock does not") {
  const ClusterSpec cluster = load_cluster("dgx-h100");
  Costs costs = default_costs(cluster);
  costs.kernel_overhead = {};
  ModelGraph model;
  model.trace.kinds.resize(1);
  model.trace.kinds[0].forward.work.products = {{.m = 8192, .n = 8192, .k = 8192, .count = 1}};
  Op traced;
  traced.kind = OpKind::opaque, traced.shape.traced = 0;
  const double one = seconds_on(1, traced, cluster, costs, model);
  CHECK(seconds_on(64, traced, cluster, costs, model) == relative(one / slowest_clock(64, costs)).epsilon(1e-6));
  for (const auto& [op, fewest] : {std::pair{product(), 7.0 / 8}, std::pair{traced, 15.0 / 16}}) {
    const Demand alike = demand_on(1, op, cluster, costs, model), slow = demand_on(64, op, cluster, costs, model);
    // CTAs with a tile less than the most wait: until others like them end, on this GPU; then at the chip's clock.
    const double later = slow.alone.count() - alike.alone.count();
    CHECK((1 + slow.second_round) * slow.alone.count() - (1 + alike.second_round) * alike.alone.count() ==
          relative(fewest * later).epsilon(1e-6));
    CHECK(slow.second_round < alike.second_round);
  }
}

TEST_CASE("products that were measured wait for the slowest GPU, too; CPU ranks have a measure of their own") {
  ClusterSpec cluster = load_cluster("dgx-h100");
  Costs costs = default_costs(cluster);
  costs.kernel_overhead = {};
  costs.matmul_curve[0] = {{1e3, 1e-6}, {1e12, 2e-3}};
  const double one = seconds_on(1, product(), cluster, costs);
  CHECK(seconds_on(64, product(), cluster, costs) == relative(one / slowest_clock(64, costs)).epsilon(1e-9));
  CHECK(slowest_clock(64, costs) < 0.97);
  cluster.host = true;
  CHECK(seconds_on(64, product(), cluster, costs) == seconds_on(1, product(), cluster, costs));
}
