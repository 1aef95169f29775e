// What `plan` says of the compiled variant is what the other commands say of that plan.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/json_answer.h"
#include "tests/cli/program.h"

using namespace fsdp::testing;
using nlohmann::json;

namespace {

const std::string kTarget = "--model tiny-llama --cluster dgx-h100 --gpus 8 --seq-len 64 --micro-batch 2 --tensor 1 ";

}  // namespace

TEST_CASE("the plan of the answer, compiled, is what simulate says of it with --compile") {
  const Program program;
  const Answer told = program.run("fsdp-plan plan " + kTarget + "-o plan.json");
  REQUIRE(told.code == 0);
  CHECK_MESSAGE(says(told.out, "\nCompiled (--compile): step "), told.out);
  const json answer = parsed(program.run("fsdp-plan plan " + kTarget + "--json=brief"));
  const json& compiled = answer["compiled"];
  CHECK(compiled["implementation"] == "torchtitan+compile");
  const json simulated = parsed(
      program.run("fsdp-plan simulate --plan plan.json --model tiny-llama --cluster dgx-h100 --compile --json=brief"));
  CHECK(compiled["same"]["step_time_s"].get<double>() == doctest::Approx(simulated["step_time_s"].get<double>()));
  CHECK(compiled["same"]["peak_total_bytes"] == simulated["peak_total_bytes"]);
  CHECK(compiled["best"]["tokens_per_s"].get<double>() >= compiled["same"]["tokens_per_s"].get<double>());
  const json alone = parsed(program.run("fsdp-plan plan " + kTarget + "--search uniform --json=brief"))["compiled"];
  CHECK(alone["plan"] == "same");
  CHECK(alone["simulated"] == 1);
}

TEST_CASE("who decided about compilation hears nothing of the other way") {
  const Program program;
  for (const std::string flag : {"--compile ", "--no-compile "}) {
    const Answer told = program.run("fsdp-plan plan " + kTarget + flag);
    CHECK(told.code == 0);
    CHECK_FALSE(says(told.out, "Compiled (--compile)"));
    CHECK_FALSE(parsed(program.run("fsdp-plan plan " + kTarget + flag + "--json=brief")).contains("compiled"));
  }
  const Answer both = program.run("fsdp-plan plan " + kTarget + "--compile --no-compile");
  CHECK(both.code == 2);
  CHECK_MESSAGE(says(both.err, "--no-compile: contradicts --compile"), both.err);
}

TEST_CASE("a target's file is the plan, as far as the search decides, and what it cannot say is refused") {
  const Program program;
  const std::string titan = kTarget + "--clip-norm 1 ";
  const Answer emitted =
      program.run("fsdp-plan plan " + titan + "--target torchtitan --emit torchtitan --emit-to titan.toml");
  CHECK_MESSAGE(emitted.code == 0, emitted.err);
  CHECK_MESSAGE(says(emitted.out, "Target: only plans that torchtitan can say."), emitted.out);
  const Answer refused = program.run("fsdp-plan plan " + titan + "--target torchtitan --loss-chunks 4");
  CHECK(refused.code == 2);
  CHECK_MESSAGE(says(refused.err, "--target: torchtitan cannot say loss_chunks: "), refused.err);
  const Answer unknown = program.run("fsdp-plan plan " + titan + "--target titan");
  CHECK(unknown.code == 2);
  CHECK_MESSAGE(says(unknown.err, "--target: 'titan' is no target"), unknown.err);
  const Answer dialect = program.run("fsdp-plan plan " + kTarget + "--dialect fsdp1 --target torchtitan");
  CHECK(dialect.code == 2);
  CHECK_MESSAGE(says(dialect.err, "--target: 'torchtitan' writes fully_shard (fsdp2) or DDP"), dialect.err);
  // With --emit alone what flags fix is kept, and said to be lost.
  const Answer lost = program.run("fsdp-plan plan " + titan + "--emit torchtitan --loss-chunks 4");
  CHECK(lost.code == 1);
  CHECK_MESSAGE(says(lost.err, "torchtitan cannot express loss_chunks"), lost.err);
}

TEST_CASE(
    "a target of transformers' tools gets transformers' models, unless the model is exported or flags say another") {
  const Program program;
  const std::string question = "fsdp-plan plan " + kTarget + "--search uniform --json=brief --target transformers ";
  const Answer usual = program.run(question);
  CHECK(usual.code == 0);
  CHECK_MESSAGE(says(usual.err, "note: transformers runs models of transformers"), usual.err);
  CHECK(parsed(usual)["prediction"]["provenance"]["implementation"] == "hf");
  const Answer named = program.run(question + "--implementation torchtitan");
  CHECK_FALSE(says(named.err, "note: transformers runs"));
  CHECK(parsed(named)["prediction"]["provenance"]["implementation"] == "torchtitan");
  std::ifstream recorded(std::string(FSDP_TESTS_DIR) + "/golden/exported/family_llama.json");
  std::ofstream(program.work() / "exported.json") << json::parse(recorded)["model"];
  const Answer exported = program.run(
      "fsdp-plan plan --model exported.json --cluster dgx-h100 --gpus 8 --search uniform --target transformers");
  CHECK_MESSAGE(exported.code == 0, exported.err);
  CHECK_FALSE(says(exported.err, "note: transformers runs"));
}
