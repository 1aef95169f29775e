// Costs that were measured: the host's, curves of products, what is read back from a file and what is refused there.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/costs/curve.h"
#include "planner/costs/kernels.h"
#include "planner/lower.h"
#include "tests/planner/costs/priced.h"
#include "tests/support/relative.h"

using namespace priced;

namespace {

constexpr double kGiB = 1073741824.0;

}  // namespace

TEST_CASE("on the host everything takes the rank's one core, and nothing is priced without calibration") {
  Setup s;
  s.cluster = host_cluster();
  CHECK_THROWS_WITH_AS(
      default_costs(s.cluster),
      doctest::Contains("run `fsdp-plan calibrate --backend host -o costs.json` and pass --costs costs.json"),
      InputError);
  s.costs = host_costs();
  const Program program = lower(s.model, s.plan, s.impl);
  const Demands demands = demands_of(program.steady_step, program, s.context());
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const Operation& op = program.steady_step.ops[i];
    if (op.host_only || op.action == Action::read_loss) continue;
    CAPTURE(i);
    CHECK(demands[i].alone.count() > 0);
    CHECK(demands[i].use == std::array<double, kResources>{1, 0, 0, 0, 0});
    CHECK_FALSE(demands[i].holds_compute);
  }
  s.costs.kernels.clear();
  CHECK_THROWS_WITH_AS((void)demands_of(program.steady_step, program, s.context()),
                       doctest::Contains("no entry for 'forward embedding'"), InputError);
  s.costs = host_costs();
  s.costs.all_gather.clear();
  CHECK_THROWS_AS((void)demands_of(program.steady_step, program, s.context()), InputError);
  s.costs = default_costs(h100(2));
  CHECK_THROWS_WITH_AS((void)demands_of(program.steady_step, program, s.context()),
                       doctest::Contains("of platform 'test-gpu'"), InputError);
}

TEST_CASE("ranks that share cores take turns; ranks with several cores overlap; threads have delays") {
  Setup s;
  s.cluster = host_cluster();
  s.costs = host_costs();
  const Program program = lower(s.model, s.plan, s.impl);
  const Demands before = demands_of(program.steady_step, program, s.context());
  s.costs.collective_ranks = 2;
  s.costs.threads = HostThreads{.cores = 2,
                                .wake = Seconds(1e-5),
                                .wake_beside = Seconds(2e-5),
                                .collective_beside = Seconds(3e-5),
                                .skew = Seconds(4e-5),
                                .skew_most = Seconds(5e-5),
                                .skew_share = 0.25};
  const auto check = [&](std::int64_t ranks, double slower, double use) {
    s.cluster.gpus = ranks;
    CAPTURE(ranks);
    const Demands after = demands_of(program.steady_step, program, s.context());
    for (std::size_t i = 0; i < after.size(); ++i) {
      const Operation& op = program.steady_step.ops[i];
      if (op.host_only || op.action == Action::read_loss) continue;
      const bool collective = is_collective(op.action);
      // A collective's curve is of that many ranks, too.
      if (!collective || s.costs.collective_ranks == 2)
        CHECK(after[i].alone.count() == relative(before[i].alone.count() * slower));
      CHECK(after[i].host.count() == relative(before[i].host.count() * slower));
      CHECK(after[i].use[0] == relative(use));
      CHECK(after[i].wake.count() == 1e-5);
      CHECK(after[i].wake_beside.count() == (collective ? 3e-5 : 2e-5));
      CHECK(after[i].skew_most.count() == (collective ? 5e-5 : 0));
      CHECK(after[i].skew_share == (collective ? 0.25 : 0));
    }
  };
  check(2, 1, 1);              // measured so
  check(4, 2, 1);              // two ranks on each core
  s.costs.threads->cores = 8;  // four for each of the two ranks: four threads run side by side
  check(2, 1, 0.25);
  s.costs.threads->cores = 1;  // measured with two ranks on one core
  check(4, 2, 1);
  s.costs.threads->cores = 8;
  s.costs.collective_ranks = 16;  // measured with two on each core, used with one
  check(8, 0.5, 1);
  CHECK(parse_costs(to_json_text(s.costs), "costs.json") == s.costs);
}

TEST_CASE("calibrated curves are interpolated, extended and never fall") {
  const std::vector<CurvePoint> line = {{1e6, 1e-3}, {1e9, 1.0}};  // slope 1: proportional, inside and outside
  CHECK(interpolate(line, 1e8) == relative(0.1));
  CHECK(interpolate(line, 1e12) == relative(1e3));
  CHECK(interpolate(line, 1e3) == relative(1e-6));
  const std::vector<CurvePoint> bent = {{1, 1}, {10, 1}, {1000, 100}};  // flat, then slope 1
  CHECK(interpolate(bent, 0.01) == relative(1));
  CHECK(interpolate(bent, 100) == relative(10));
  const std::vector<CurvePoint> noisy = {
      {1, 2}, {10, 1}, {100, 4}};  // the dip is lifted to 2: from (10, 2) to (100, 4)
  CHECK(interpolate(noisy, 5) == relative(2));
  CHECK(interpolate(noisy, 31.622776601683793) == relative(2 * std::sqrt(2.0)));
  CHECK(interpolate(std::vector<CurvePoint>{{4, 8}}, 1) == relative(2));
  CHECK(interpolate(line, 0) == 0);
  for (double x = 0.5, last = 0; x < 1000; x *= 1.1) {  // never falls
    CHECK(interpolate(noisy, x) >= last);
    last = interpolate(noisy, x);
  }
  CHECK_THROWS_AS(check_curve(std::vector<CurvePoint>{{1, 1}, {1, 2}}, "x"), InputError);
  CHECK_THROWS_AS(check_curve(std::vector<CurvePoint>{{1, 0}}, "x"), InputError);

  // A collective's curve of 2 ranks on 4: (3/4) / (1/2) = 1.5 times the bytes on the wire.
  Costs costs = host_costs();
  const Demand two = collective_demand({CollectiveKind::all_gather, Bytes(1000000), 2, 2}, host_cluster(), costs);
  const Demand four = collective_demand({CollectiveKind::all_gather, Bytes(1000000), 4, 4}, host_cluster(), costs);
  CHECK(two.alone.count() == relative(1e-3));
  CHECK(four.alone.count() == relative(1.5e-3));
}

TEST_CASE("on GPUs, products and attention measured in one dtype say nothing of another") {
  Setup s;
  const auto of = [&](bool measured, DType plan) {
    s.costs = default_costs(s.cluster);
    if (measured) {
      for (auto& curve : s.costs.matmul_curve) curve = {{1e6, 1e-6}, {1e9, 1e-3}};
      s.costs.kernels.assign(2 * kOpKinds, {});
      for (const bool backward : {false, true})  // attention, whose rate is the dtype's, and gelu, which moves bytes
        for (const OpKind kind : {OpKind::attention, OpKind::gelu})
          s.costs.kernels[2 * static_cast<std::size_t>(kind) + (backward ? 1 : 0)] = {
              Seconds(1e-3), FlopsPerSecond(1e12), BytesPerSecond(1e12)};
      s.costs.measured_dtype = DType::bf16;
    }
    s.plan.param_dtype = plan;
    const Program program = lower(s.model, s.plan, s.impl);
    return std::pair{program.steady_step, demands_of(program.steady_step, program, s.context())};
  };
  for (const DType plan : {DType::bf16, DType::f32}) {
    const auto [step, measured] = of(true, plan);
    const auto [same, formula] = of(false, plan);
    int kinds = 0;
    for (std::size_t i = 0; i < step.ops.size(); ++i) {
      if (step.ops[i].graph_op < 0 || !is_kernel(step.ops[i].action)) continue;
      const OpKind kind = s.model.ops[static_cast<std::size_t>(step.ops[i].graph_op)].kind;
      const bool products = kind == OpKind::linear || kind == OpKind::attention;
      if (!products && kind != OpKind::gelu) continue;
      kinds |= products ? 1 : 2;
      CAPTURE(i);
      CHECK((measured[i].alone == formula[i].alone) == (products && plan == DType::f32));
    }
    CHECK(kinds == 3);
  }
  CHECK(parse_costs(to_json_text(s.costs), "a file") == s.costs);
  s.costs.measured_dtype = DType::bf16;
  CHECK(parse_costs(to_json_text(s.costs), "a file").measured_dtype == DType::bf16);
  s.costs.measured_dtype = DType::i64;
  CHECK_THROWS_AS(parse_costs(to_json_text(s.costs), "a file"), InputError);
}

TEST_CASE("measured products say nothing of products in 8 bits, which not every GPU has") {
  Setup s;
  Op op;
  op.kind = OpKind::linear;
  op.shape.in = op.shape.out = 4096;
  op.shape.float8 = Float8Recipe::tensorwise;
  s.plan.param_dtype = DType::bf16;
  s.cluster = load_cluster("dgx-h100", 2);
  s.costs = default_costs(s.cluster);
  const Implementation& titan = find_implementation("torchtitan", true, "test");
  const auto takes = [&](Direction direction) {
    return kernel_demand(op, direction, 2, {s.model, s.plan, titan, s.cluster, s.costs}).alone.count();
  };
  const double forward = takes(Direction::forward), backward = takes(Direction::backward);
  for (auto& curve : s.costs.matmul_curve) curve = {{1e6, 1e-6}, {1e9, 1e-3}};
  for (const auto measured : {std::optional<DType>(), std::optional(DType::bf16)}) {
    s.costs.measured_dtype = measured;
    CHECK(takes(Direction::forward) == forward);
    CHECK(takes(Direction::backward) == backward);
  }
  s.cluster = load_cluster("dgx-a100-80", 2);
  s.costs.platform = s.cluster.gpu.name;
  CHECK_THROWS_AS(takes(Direction::forward), InputError);
}

TEST_CASE("a product that moves more than a cube of as many flops takes longer") {
  Setup s;
  s.cluster = host_cluster();
  s.costs = host_costs();
  const Program program = lower(s.model, s.plan, s.impl);
  const Demands before = demands_of(program.steady_step, program, s.context());
  s.costs.matmul_beyond_cube[0] = BytesPerSecond(1e6);
  s.costs.matmul_beyond_cube[1] = BytesPerSecond(2e6);
  s.costs.matmul_beyond_cube[2] = BytesPerSecond(4e6);
  const Demands after = demands_of(program.steady_step, program, s.context());
  int products = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const Operation& op = program.steady_step.ops[i];
    if (op.graph_op < 0 || op.action == Action::add_gradient ||
        s.model.ops[static_cast<std::size_t>(op.graph_op)].kind != OpKind::linear) {
      CHECK(after[i].alone.count() == before[i].alone.count());
      continue;
    }
    ++products;
    const OpShape& shape = s.model.ops[static_cast<std::size_t>(op.graph_op)].shape;
    const double rows = 2 * 5, in = static_cast<double>(shape.in),
                 out = static_cast<double>(shape.out);  // 2 sequences of 5 tokens
    const double beyond =
        4 * (rows * in + in * out + rows * out - 3 * std::cbrt(rows * in * out) * std::cbrt(rows * in * out));
    CHECK(beyond >= 0);
    const double rates = op.action == Action::backward ? 1 / 2e6 + 1 / 4e6 : 1 / 1e6;
    CHECK(after[i].alone.count() - before[i].alone.count() == relative(beyond * rates));
  }
  CHECK(products == 2 * 7);  // two of each of 3 blocks and the head, forward and backward
  CHECK(parse_costs(to_json_text(s.costs), "costs.json") == s.costs);
}

TEST_CASE("costs written to disk read back equal") {
  for (Costs c : {default_costs(h100(8)), host_costs()}) {
    c.source = "with \"quotes\" and \xc3\xbc";
    c.kernel_overhead = Seconds(0.1 + 0.2);  // every bit comes back
    const std::string text = to_json_text(c);
    CHECK(parse_costs(text, "costs.json") == c);
    CHECK(digest(parse_costs(text, "costs.json")) == digest(c));
    for (std::size_t cut = 0; cut + 2 < text.size(); cut += 7)
      CHECK_THROWS_AS((void)parse_costs(text.substr(0, cut), "costs.json"), InputError);
  }
  const std::string text = to_json_text(host_costs());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    return changed.replace(at, from.size(), to);
  };
  const auto refused = [&](const std::string& from, const std::string& to, const char* words) {
    CHECK_THROWS_WITH_AS((void)parse_costs(with(from, to), "costs.json"), doctest::Contains(words), InputError);
  };
  refused("\"platform\"", "\"plattform\"", "platform");
  refused("costs/1", "costs/2", "costs/2");
  refused("\"collective_ranks\": 2", "\"collective_ranks\": -2", "collective_ranks");
  refused("\"collective_ranks\": 2", "\"collective_ranks\": 0", "at least 2");
  refused("\"memory_efficiency\": 0.85", "\"memory_efficiency\": 1.5", "memory_efficiency");
  refused("\"embedding\"", "\"embeding\"", "is no kind of op");
  refused("\"backward\"", "\"forward\"", "occur twice");
  refused("1000000.0", "1.0", "sizes must increase");
}

TEST_CASE("costs that no machine has are refused with file and field, when they are read") {
  const auto refused = [](const Costs& costs, const char* words) {
    CHECK_THROWS_WITH_AS((void)parse_costs(to_json_text(costs), "costs.json"), doctest::Contains(words), InputError);
  };
  const Costs host = host_costs(), gpu = default_costs(h100(8));
  for (const double slow : {1e-300, 1e-9, 999.0}) {
    Costs c = host;
    c.copy.byte_rate = BytesPerSecond(slow);
    refused(c, "costs.json: copy.bytes_per_s: ");
    c = host;
    c.kernels[2 * static_cast<std::size_t>(OpKind::embedding)].flops_rate = FlopsPerSecond(slow);
    refused(c, ".flops_per_s: ");
    c = host;
    c.matmul_beyond_cube[1] = BytesPerSecond(slow);
    refused(c, "costs.json: matmul.beyond_cube_bytes_per_s.backward_input: ");
  }
  Costs c = gpu;
  c.matmul_efficiency = 1e-300;
  refused(c, "costs.json: matmul_efficiency: ");
  c = gpu;
  c.memory_efficiency = -0.5;
  refused(c, "costs.json: memory_efficiency: ");
  c = host;
  c.matmul_curve[0].back().seconds = 1e7;
  refused(c, "costs.json: matmul.forward[");
}

TEST_CASE("a curve that says of larger sizes what no number holds is refused before it is simulated") {
  Setup s;
  const Program program = lower(s.model, s.plan, s.impl);
  const auto refused = [&](const char* words) {
    CHECK_THROWS_WITH_AS((void)demands_of(program.steady_step, program, s.context()), doctest::Contains(words),
                         InputError);
  };
  s.costs.matmul_curve[0] = {{1, 1e-6}, {1.0000001, 1}};
  refused("costs: operation ");
  s.cluster.gpu.memory_bandwidth = BytesPerSecond(1e-300);
  s.costs = default_costs(s.cluster);
  refused("cluster: operation ");
}
