// What training costs, computed again from the numbers that are printed beside it; and not a byte where no price is
// known.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.h"

using fsdp::testing::Answer;
using fsdp::testing::Program;
using fsdp::testing::says;
using nlohmann::json;

namespace {

const std::string kLlama = " --model llama3-8b --cluster dgx-h100 --gpus 16 --seq-len 8192";
const std::string kLong = kLlama + " --activation-checkpointing full --mtbf 20000h --storage-bandwidth 20GB/s";

json object_of(const Answer& answer) {
  CHECK_MESSAGE(answer.code == 0, answer.err);
  json document = json::parse(answer.out, nullptr, false);
  REQUIRE_MESSAGE(document.is_object(), answer.err);
  return document;
}

// GPU hours of 10^9 tokens, from the step alone.
void check_cost(const json& cost, double price, double gpus, double seconds_of_billion) {
  CHECK(cost["per_1e9_tokens"].get<double>() ==
        doctest::Approx(price * gpus * seconds_of_billion / 3600).epsilon(1e-12));
  CHECK(cost["per_day"].get<double>() == doctest::Approx(price * gpus * 24).epsilon(1e-12));
  CHECK(cost["price_per_gpu_hour"] == price);
  CHECK(cost["gpus"] == gpus);
}
double seconds_of_billion(const json& prediction) {
  return 1e9 / prediction["tokens_per_step"].get<double>() * prediction["step_time_s"].get<double>();
}

}  // namespace

TEST_CASE("the cost follows from the step that is printed beside it") {
  const Program program;
  const json simulated =
      object_of(program.run("fsdp-plan simulate" + kLlama + " --activation-checkpointing full --price 2.1USD --json"));
  check_cost(simulated["cost"], 2.1, 16, seconds_of_billion(simulated));
  CHECK(simulated["cost"]["currency"] == "USD");
  const json planned = object_of(program.run("fsdp-plan plan" + kLlama + " --price 3 --json"))["prediction"];
  check_cost(planned["cost"], 3, 16, seconds_of_billion(planned));
  CHECK(planned["cost"]["currency"] == "");
  const json brief = object_of(
      program.run("fsdp-plan simulate" + kLlama + " --activation-checkpointing full --price 2.1 --json=brief"));
  check_cost(brief["cost"], 2.1, 16, seconds_of_billion(brief));
}

TEST_CASE(
    "in a long run the tokens that stay trained bear the cost, that of the time in which nothing trains as well") {
  const Program program;
  const json answer = object_of(program.run("fsdp-plan simulate" + kLong + " --price 2.1 --json"));
  CHECK(answer["goodput"].get<double>() < 0.999);
  check_cost(answer["cost"], 2.1, 16, 86'400e9 / answer["tokens_per_day"].get<double>());
  const Answer text = program.run("fsdp-plan simulate" + kLong + " --price '2.1 EUR' --spares 1 --repair-time 24h");
  for (const char* words : {"Cost: ", "Cost of the long run: ", "806 EUR a day", "spares are not counted"})
    CHECK_MESSAGE(says(text.out, words), text.out);
}

TEST_CASE("tokens that are not trained have no cost, and the rest of the answer stays") {
  Program program;
  const Answer lost = program.run("fsdp-plan simulate" + kLlama +
                                  " --activation-checkpointing full --mtbf 1h --storage-bandwidth 1MB/s --price 2.1");
  CHECK(says(lost.out, "Long run: 0"));
  CHECK_FALSE(says(lost.out, "Cost of the long run"));
  CHECK(says(lost.out, "cost: no tokens stay trained"));
  const Answer large = program.run("fsdp-plan simulate --model llama3-70b --cluster dgx-h100 --gpus 8 --price 2");
  CHECK(says(large.out, "Does not fit"));
  CHECK_FALSE(says(large.out, "Cost"));
}

TEST_CASE("a price in the cluster's file holds unless the flag says another") {
  const Program program;
  REQUIRE(program.run("fsdp-plan show cluster dgx-h100 --file | sed '1 a \"price\": \"2.1 USD\",' > mine.json").code ==
          0);
  CHECK(says(program.run("fsdp-plan show cluster mine.json").out, "2.1 USD"));
  CHECK(object_of(program.run("fsdp-plan show cluster mine.json --json"))["price"]["per_gpu_hour"] == 2.1);
  const std::string call = "fsdp-plan simulate --model tiny-llama --cluster mine.json --seq-len 64";
  CHECK(says(program.run(call).out, "403 USD a day for 8 GPUs at 2.1 USD per GPU hour."));
  // A number alone is in the file's currency.
  CHECK(says(program.run(call + " --price 1").out, "192 USD a day for 8 GPUs at 1 USD per GPU hour."));
  CHECK(says(program.run(call + " --price 1EUR").out, "192 EUR a day for 8 GPUs at 1 EUR per GPU hour."));
}

TEST_CASE("a prediction with a cost is read back") {
  const Program program;
  REQUIRE(
      program.run("fsdp-plan simulate --model tiny-llama --cluster dgx-h100 --seq-len 64 --price 2.1 -o priced.json")
          .code == 0);
  const auto refusal = [&] {  // of the second file, once the first has been read
    return program.run("echo '{}' > none.json; fsdp-plan validate priced.json none.json").err;
  };
  CHECK_MESSAGE(says(refusal(), "none.json"), refusal());
  REQUIRE(program.run("sed -i 's/\"per_day\":[0-9.]*/\"per_day\":-1/' priced.json").code == 0);
  CHECK_MESSAGE(says(refusal(), "cost.per_day"), refusal());
}

TEST_CASE("without a price nothing changes, and a price changes nothing but its own lines") {
  const Program program;
  for (const std::string& command : {"plan" + kLlama, "simulate" + kLlama + " --activation-checkpointing full"}) {
    const std::string plain = program.run("fsdp-plan " + command).out;
    std::string priced = program.run("fsdp-plan " + command + " --price 2.1").out;
    CHECK_FALSE(says(plain, "Cost:"));
    const std::size_t begin = priced.find("Cost: ");
    REQUIRE(begin != std::string::npos);
    priced.erase(begin, priced.find('\n', begin) + 1 - begin);
    if (const std::size_t next = priced.find(" --price 2.1"); next != std::string::npos) priced.erase(next, 12);
    CHECK(priced == plain);
  }
  CHECK_FALSE(object_of(program.run("fsdp-plan simulate" + kLong + " --json")).contains("cost"));
}

TEST_CASE("prices that are none, and prices without tokens, are refused") {
  const Program program;
  for (const char* price : {"-1", "nan", "0", "inf", "x", "''", "'2.1 $'"}) {
    const Answer answer = program.run("fsdp-plan simulate" + kLlama + " --price " + price);
    CHECK(answer.code == 2);
    CHECK_MESSAGE(says(answer.err, "--price"), answer.err);
  }
  CHECK(says(program.run("fsdp-plan simulate" + kLlama + " --memory --json --price 2").err, "has no tokens"));
  REQUIRE(program.run("fsdp-plan calibrate --backend host --ranks 2 --budget 1s -o costs.json").code == 0);
  const Answer host = program.run("fsdp-plan plan --model tiny-llama --cluster host --costs costs.json --price 2");
  CHECK(host.code == 2);
  CHECK_MESSAGE(says(host.err, "'host' are no GPUs"), host.err);
}
