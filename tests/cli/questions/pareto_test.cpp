// plan --pareto: each point is a plan that takes what it says, and no search under its memory finds a faster one.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/json_answer.h"

using fsdp::testing::Answer;
using fsdp::testing::parsed;
using fsdp::testing::Program;
using fsdp::testing::says;
using nlohmann::json;

namespace {

const std::string kTarget = "--model llama3-8b --cluster dgx-h100 ";
const std::string kCall = "fsdp-plan plan " + kTarget + "--gpus 8 --seq-len 8k --search uniform --tensor 1 ";
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace

TEST_CASE("points of the front are plans that take what it says, and less memory is never faster") {
  const Program program;
  const json front = parsed(program.run(kCall + "--pareto 6GiB --json"));
  CHECK(front["schema"] == "fsdp-plan/front/1");
  const double limit = front["memory_limit_bytes"];
  CHECK(limit == doctest::Approx(0.95 * front["usable_memory_bytes"].get<double>()));
  const json& points = front["points"];
  REQUIRE(points.size() >= 4);
  CHECK(points.front()["next_gib_buys"] == nullptr);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const json& p = points[i];
    CAPTURE(p["label"]);
    const double peak = p["peak_total_bytes"], speed = p["tokens_per_s"];
    CHECK(p["within_limit"] == (peak <= limit));
    // Simulated by itself.
    (void)program.run("cat > plan.json <<'END'\n" + p["plan"].dump() + "\nEND");
    const json alone = parsed(program.run("fsdp-plan simulate --plan plan.json " + kTarget + "--json=brief"));
    CHECK(alone["peak_total_bytes"] == p["peak_total_bytes"]);
    CHECK(alone["step_time_s"].get<double>() == doctest::Approx(p["step_time_s"].get<double>()).epsilon(1e-9));
    CHECK(alone["tokens_per_s"].get<double>() == doctest::Approx(speed).epsilon(1e-9));
    // A search under its memory alone finds nothing that is faster by what predictions resolve.
    if (peak <= limit) {
      const json found = parsed(program.run(kCall + "--memory-limit " +
                                            std::to_string(p["peak_total_bytes"].get<long>()) + "B --json=brief"));
      if (found["verdict"] == "fits") CHECK(found["prediction"]["tokens_per_s"].get<double>() <= 1.0011 * speed);
    }
    if (i == 0) continue;
    const double more = points[i - 1]["peak_total_bytes"], faster = points[i - 1]["tokens_per_s"];
    CHECK(more > peak);
    CHECK(faster > speed);
    CHECK(p["next_gib_buys"].get<double>() == doctest::Approx((faster / speed - 1) / ((more - peak) / kGiB)));
  }
  // The first within the limit is what plan chooses, or as fast.
  const json chosen = parsed(program.run(kCall + "--json=brief"))["prediction"];
  const auto within =
      std::find_if(points.begin(), points.end(), [](const json& p) { return p["within_limit"].get<bool>(); });
  REQUIRE(within != points.end());
  CHECK((*within)["tokens_per_s"].get<double>() ==
        doctest::Approx(chosen["tokens_per_s"].get<double>()).epsilon(0.0011));
}

TEST_CASE("where no plan fits in the limit the front says how much one needs, and the answer is no") {
  const Program program;
  const Answer beyond = program.run(kCall + "--memory-limit 32GiB --pareto");
  CHECK(beyond.code == 1);
  CHECK_MESSAGE(says(beyond.out, "Does not fit in 32.0 GiB: "), beyond.out);
  const Answer never = program.run(kCall + "--memory-limit 4GiB --pareto");
  CHECK(never.code == 1);
  CHECK_MESSAGE(says(never.out, "Does not fit: nothing fits in 4.50 GiB"), never.out);
}

TEST_CASE("steps that are none, and flags of one plan, are refused") {
  const Program program;
  for (const auto& [flags, said] : {std::pair<std::string, std::string>{"--pareto 8", "--pareto"},
                                    {"--pareto 0GiB", "--pareto: steps of 0GiB"},
                                    {"--pareto 1B", "are more than 64 searches"},
                                    {"--pareto 900GiB", "is more than the limit"},
                                    {"--pareto -o a.json", "-o: is of one plan"},
                                    {"--pareto --emit pytorch", "--emit: is of one plan"},
                                    {"--pareto --max micro-batch", "--max: is of one plan"},
                                    {"--pareto --csv a.csv", "--pareto: is a question about one cluster"},
                                    {"--pareto --gpus 8,16", "--gpus"}}) {
    CAPTURE(flags);
    const Answer answer = program.run(kCall + flags);
    CHECK(answer.code == 2);
    CHECK_MESSAGE(says(answer.err, said), answer.err);
    CHECK(std::count(answer.err.begin(), answer.err.end(), '\n') == 1);
  }
  CHECK(
      says(program.run("fsdp-plan plan " + kTarget + "--gpus 8,16 --pareto").err, "--pareto: is a question about one"));
}
