// Calibration yields costs that every plan of a known family can be predicted with, and that survive the disk. Times
// are not tested.
#include "executor/calibrate.h"

#include <cmath>
#include <map>

#include "models/host.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "simulator/predict.h"
#include "simulator/records/prediction.h"
#include "tests/support/predict_support.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// A clock that goes by what the instruments saw: a collective takes 10 us and a nanosecond per byte sent, a product 0.1
// ns per flop of its name, and any other kernel 10 us when it is asked about first (the small size) and 100 us after
// that (the large one).
class InstrumentClock {
 public:
  double operator()(const std::string& what, const std::vector<std::vector<OperationRecord>>& ranks) {
    const int before = asked_[what]++;
    if (ranks.empty()) return what == "skew_share" ? 0.125 : what == "wake" ? 0.5e-6 : 3e-6;
    CHECK(ranks.size() == 2);
    for (const auto& records : ranks) CHECK(records.size() == (is_collective(what) ? 2 : 1));
    std::int64_t sent = 0;
    for (const OperationRecord& r : ranks[1]) sent += r.sent_bytes;
    CHECK((sent > 0) == is_collective(what));
    if (is_collective(what)) return 1e-5 + 1e-9 * static_cast<double>(sent);
    if (what == "empty kernel") return 1e-6;
    if (what.starts_with("linear"))
      return 2e-10 * std::pow(std::stod(what.substr(what.rfind(' '))), 3) *
             (what.find("weight") == std::string::npos ? 1 : 3);
    return before == 0 ? 1e-5 : 1e-4;
  }

 private:
  static bool is_collective(const std::string& what) {
    return what.starts_with("all_gather") || what.starts_with("reduce_scatter") || what.starts_with("all_reduce");
  }
  std::map<std::string, int> asked_;
};

double seconds(const KernelRate& r, double bytes) { return r.overhead.count() + bytes / r.byte_rate.count(); }

}  // namespace

TEST_CASE("benchmarks run what they are named after, and every number comes to its place") {
  const Costs costs =
      calibrate_host({.ranks = 2, .seconds_budget = 1, .type = DType::f32, .progress = {}, .clock = InstrumentClock()});
  for (std::size_t p = 0; p < 3; ++p) {
    REQUIRE(costs.matmul_curve[p].size() == 6);
    for (const CurvePoint& point : costs.matmul_curve[p])  // size is in flops
      CHECK(point.seconds == doctest::Approx(1e-10 * point.size * (p == 2 ? 3 : 1)).epsilon(1e-9));
    CHECK(costs.matmul_curve[p].back().size == doctest::Approx(2e9));
  }
  // 64 x 1024 x 1024: by the clock as slow as 1024 cubed, by the curve 2^27 flops.
  const double flops = 2.0 * 64 * 1024 * 1024,
               bytes = 4 * (2.0 * 64 * 1024 + 1024.0 * 1024 - 3 * std::pow(flops / 2, 2.0 / 3));
  for (std::size_t p = 0; p < 3; ++p)
    CHECK(costs.matmul_beyond_cube[p].value().count() ==
          doctest::Approx(bytes / ((2e-10 * 1024 * 1024 * 1024 - 1e-10 * flops) * (p == 2 ? 3 : 1))).epsilon(1e-9));
  // Sent by each of two ranks: half of the tensor, for all-reduce all of it. A round is an empty kernel beside.
  const auto check_curve = [](const std::vector<CurvePoint>& curve, double sent) {
    REQUIRE(curve.size() == 8);
    CHECK(curve.front().size == 4096);
    CHECK(curve.back().size == 64 << 20);
    for (const CurvePoint& p : curve)
      CHECK(p.seconds == doctest::Approx(1e-5 + 1e-9 * sent * p.size - 1e-6).epsilon(1e-9));
  };
  check_curve(costs.all_gather, 0.5);
  check_curve(costs.reduce_scatter, 0.5);
  check_curve(costs.all_reduce, 1);
  // 2^15 and 2^19 elements of 4 bytes; copies touch them twice, AdamW seven times.
  for (const double n : {32768.0, 524288.0}) {
    CHECK(seconds(costs.copy, 2 * 4 * n) == doctest::Approx(n < 1e5 ? 1e-5 : 1e-4).epsilon(1e-9));
    CHECK(seconds(costs.optimizer, 7 * 4 * n) == doctest::Approx(n < 1e5 ? 1e-5 : 1e-4).epsilon(1e-9));
  }
  CHECK(costs.kernel_overhead.count() == 1e-6);
  CHECK(costs.host_per_operation.count() == 1e-6);  // 3 us said, but never more than an empty kernel takes
  CHECK(costs.threads->wake.count() == 0.5e-6);
  CHECK(costs.threads->wake_beside.count() == 3e-6);
  CHECK(costs.threads->collective_beside.count() == 3e-6);
  CHECK(costs.threads->skew.count() == 3e-6);
  CHECK(costs.threads->skew_share == 0.125);
  CHECK(costs.threads->skew_most.count() == 3e-6);
  CHECK(costs.threads->cores == load_cluster("host").gpus);
}

TEST_CASE("costs of this machine: complete, positive, ordered, and equal after the disk") {
  int said = 0;
  const Costs costs = calibrate_host({.ranks = 2,
                                      .seconds_budget = 1,
                                      .type = DType::f32,
                                      .progress = [&](const std::string&) { ++said; },
                                      .clock = {}});
  CHECK(said > 50);
  CHECK(costs.platform == "host");
  CHECK(costs.collective_ranks == 2);
  CHECK(parse_costs(to_json_text(costs), "costs.json") == costs);
  CHECK(costs.threads->wake.count() > 0);
  CHECK(costs.threads->wake_beside >= costs.threads->wake);
  CHECK(costs.threads->cores >= 1);
  for (const auto* curve : {&costs.all_gather, &costs.reduce_scatter, &costs.all_reduce}) {
    REQUIRE(curve->size() == 8);
    for (const CurvePoint& p : *curve) CHECK(p.seconds > 0);
  }
  CHECK(costs.kernel_overhead.count() > 0);
  for (const KernelRate* r : {&costs.copy, &costs.cast, &costs.optimizer, &costs.norm}) CHECK(r->byte_rate.count() > 0);
  for (int k = 0; k < kOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    CAPTURE(name(kind));
    const KernelRate& forward = costs.kernels.at(static_cast<std::size_t>(2 * k));
    const bool priced = forward.byte_rate.count() > 0 || forward.flops_rate.count() > 0;
    const bool ours = native_implementation().rules[static_cast<std::size_t>(k)] != nullptr;
    CHECK(priced == (ours && kind != OpKind::linear && kind != OpKind::expert_linear && kind != OpKind::opaque &&
                     kind != OpKind::redistribute));
  }

  const ModelGraph gpt2 = model_from_config(
      R"({"model_type": "gpt2", "vocab_size": 37, "n_positions": 11, "n_embd": 30, "n_layer": 2, "n_head": 5,
      "n_inner": 47, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"})",
      "gpt2", 7);
  for (const ModelGraph& model : {small_llama(), gpt2, load_model("tiny-mixtral")}) {
    const ShardingPlan plan =
        make_plan(model, {.shard = 2, .checkpointing = "full", .micro_batches = {1, 1}, .clip_norm = 1.0});
    const ClusterSpec cluster = load_cluster("host", 2);
    const Prediction p = predict({model, plan, native_implementation(), cluster, costs});
    CHECK(p.step_time.count() > 0);
    CHECK(std::isfinite(p.step_time.count()));
  }
}

TEST_CASE("one rank, other types, and what is refused") {
  const Costs one =
      calibrate_host({.ranks = 1, .seconds_budget = 0.3, .type = DType::bf16, .progress = {}, .clock = {}});
  CHECK(one.all_gather.empty());
  CHECK(one.matmul_curve[0].size() == 6);
  CHECK_THROWS_AS(calibrate_host({.ranks = 2, .seconds_budget = 1, .type = DType::f16, .progress = {}, .clock = {}}),
                  InputError);
  CHECK_THROWS_AS(calibrate_host({.ranks = 0, .seconds_budget = 1, .type = DType::f32, .progress = {}, .clock = {}}),
                  InputError);
  // More than 8 ranks per core.
  CHECK_THROWS_AS(
      calibrate_host(
          {.ranks = 8 * usable_cores() + 1, .seconds_budget = 1, .type = DType::f32, .progress = {}, .clock = {}}),
      InputError);
  CHECK_THROWS_AS(calibrate_host({.ranks = 2, .seconds_budget = 0, .type = DType::f32, .progress = {}, .clock = {}}),
                  InputError);
}
