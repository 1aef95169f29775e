// Learning rates against PyTorch's schedulers (tests/golden/hf_models.json, "schedules").
#include "executor/training/learning_rate.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/refusal.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("every step's rate is that of PyTorch's schedulers") {
  std::ifstream file(FSDP_TESTS_DIR "/golden/hf_models.json");
  int rates = 0;
  const auto golden = nlohmann::json::parse(file);
  for (const auto& c : golden["schedules"]) {
    const LearningRate rate{parse_decay(c["kind"].get<std::string>(), "t"), c["lr"], c["min"], c["warmup"], c["total"]};
    CAPTURE(rate.describe());
    std::int64_t step = 0;
    for (const double lr : c["lrs"]) {
      CAPTURE(step);
      CHECK(std::abs(rate(step++) - lr) <= 1e-14 * rate.peak);  // PyTorch multiplies from step to step
      ++rates;
    }
    CHECK(step == rate.total);
  }
  CHECK(rates == 3 * (7 + 10 + 2 + 6));
}

TEST_CASE("a schedule rises, falls and stays at its end") {
  for (const Decay kind : {Decay::constant, Decay::cosine, Decay::linear}) {
    const LearningRate rate{kind, 1.0, 0.1, 5, 20};
    CHECK(rate(0) > 0);
    for (std::int64_t s = 1; s <= 5; ++s) CHECK(rate(s) > rate(s - 1));
    CHECK(rate(5) == 1.0);
    for (std::int64_t s = 6; s < 20; ++s) CHECK((kind == Decay::constant ? rate(s) == 1.0 : rate(s) < rate(s - 1)));
    for (const std::int64_t s : {20, 21, 1'000'000})
      CHECK(rate(s) == doctest::Approx(kind == Decay::constant ? 1.0 : 0.1).epsilon(1e-15));
  }
  CHECK(LearningRate{Decay::linear, 1.0, 0.0, 0, 4}(2) == 0.5);
  CHECK(LearningRate{Decay::cosine, 1.0, 0.0, 0, 4}(2) == doctest::Approx(0.5).epsilon(1e-15));
}

TEST_CASE("names go both ways, and a schedule says what it is") {
  for (const Decay kind : {Decay::constant, Decay::cosine, Decay::linear}) CHECK(parse_decay(name(kind), "t") == kind);
  CHECK(holds(refusal([] { return parse_decay("cosin", "--lr-schedule"); }),
              "--lr-schedule: 'cosin' is not a schedule; give constant, cosine or linear"));
  CHECK(LearningRate{Decay::constant, 3e-4, 0, 0, 9}.describe() == "0.0003");
  CHECK(LearningRate{Decay::cosine, 0.004, 0.0002, 3, 8}.describe() ==
        "0.004, 3 steps of warm-up, then cosine to 0.0002 after step 8");
  CHECK(LearningRate{Decay::linear, 0.004, 0, 0, 8}.describe() == "0.004, linear to 0 after step 8");
}
