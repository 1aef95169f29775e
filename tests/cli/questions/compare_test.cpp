// plan --compare: the other plan is what plan and simulate say of it, and each choice alone is the chosen plan with it.
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
const std::string kCall = "fsdp-plan plan " + kTarget + "--gpus 8 --seq-len 8k --search uniform ";

json simulated(const Program& program, const json& plan) {
  (void)program.run("cat > simulated.json <<'END'\n" + plan.dump() + "\nEND");
  return parsed(program.run("fsdp-plan simulate --plan simulated.json " + kTarget + "--json=brief"));
}

const json& choice(const json& compared, const std::string& name) {
  const json& alone = compared["alone"];
  const auto found = std::find_if(alone.begin(), alone.end(), [&](const json& a) { return a["choice"] == name; });
  REQUIRE_MESSAGE(found != alone.end(), alone.dump());
  return *found;
}

void check_same(const json& row, const json& prediction) {
  CHECK(row["step_time_s"].get<double>() == doctest::Approx(prediction["step_time_s"].get<double>()).epsilon(1e-9));
  CHECK(row["peak_total_bytes"] == prediction["peak_total_bytes"]);
  CHECK(row["verdict"] == prediction["verdict"]);
}

}  // namespace

TEST_CASE("why not block:2: the best plan with it, and what each of its choices alone would do") {
  const Program program;
  const json answer = parsed(program.run(kCall + "--compare block:2 --compare micro-batch=2 --json"));
  REQUIRE(answer["compared"].size() == 2);
  const json &block = answer["compared"][0], &two = answer["compared"][1];
  CHECK(block["asked"] == "block:2");
  const json alone = parsed(program.run(kCall + "--wrap block:2 --json=brief"));
  CHECK(block["plan"] == alone["plan"]);
  check_same(block["candidate"], alone["prediction"]);
  CHECK(two["plan"] == parsed(program.run(kCall + "--micro-batch 2 --json=brief"))["plan"]);
  // The chosen plan with the micro-batch of the other, and nothing else.
  json changed = answer["plan"];
  changed["micro_batches"] = {2};
  const json& batch = choice(two, "micro-batch");
  CHECK(batch["chosen"] == "1");
  CHECK(batch["other"] == "2");
  check_same(batch, simulated(program, changed));
  // With its units.
  changed = answer["plan"];
  changed["units"] = block["plan"]["units"];
  for (json& unit : changed["units"]) unit["reshard_after_forward"] = "auto";  // as both policies say
  check_same(choice(block, "wrap"), simulated(program, changed));
}

TEST_CASE("a plan that somebody brings is compared as it is") {
  const Program program;
  REQUIRE(program
              .run(kCall + "--wrap block --activation-checkpointing full --micro-batch 2 --reshard-after-forward false "
                           "-o theirs.json")
              .code == 0);
  const Answer text = program.run(kCall + "--compare theirs.json --compare naive");
  CHECK_MESSAGE(text.code == 0, text.err);
  CHECK(says(text.out, "\nThe chosen plan with each choice of theirs.json alone:\n"));
  CHECK(says(text.out, "bounded by"));
  CHECK(says(text.out, "slower: "));
  const json answer = parsed(program.run(kCall + "--compare theirs.json --json=brief"));
  const json& theirs = answer["compared"][0];
  const json file = json::parse(program.text_of("theirs.json"));
  CHECK(theirs["plan"] == file);
  check_same(theirs["candidate"], simulated(program, file));
  CHECK(choice(theirs, "activation checkpointing")["other"] == "full");
  // The chosen plan itself.
  REQUIRE(program.run(kCall + "-o same.json").code == 0);
  const Answer same = program.run(kCall + "--compare same.json");
  CHECK_MESSAGE(says(same.out, "\nsame.json is the chosen plan.\n"), same.out);
  // Two releases of PyTorch side by side.
  const json dialect = parsed(program.run(kCall + "--compare dialect=fsdp2@2.6 --json=brief"))["compared"][0];
  CHECK(choice(dialect, "dialect")["other"] == "fsdp2@2.6");
}

TEST_CASE("plans of another question, and words that are none, are refused") {
  const Program program;
  const std::string small = "fsdp-plan plan --model tiny-llama --cluster dgx-h100 --search uniform --seq-len 64 ";
  REQUIRE(program.run(small + "--gpus 4 -o four.json").code == 0);
  for (const auto& [flags, said] :
       {std::pair<std::string, std::string>{"--gpus 8 --compare four.json",
                                            "four.json: mesh: is for 4 GPUs, but the question is about 8"},
        {"--gpus 4 --seq-len 128 --compare four.json", ""},
        {"--gpus 4 --compare absent.json", "absent.json"},
        {"--gpus 4 --compare blok", "--compare: 'blok' is no file and no FLAG=VALUE, and as a wrap policy: unknown"},
        {"--gpus 4 --compare micro-batch=x", "--compare micro-batch=x: "},
        {"--gpus 4 --compare seq-len=32",
         "--compare: 'seq-len=32' is another question: compared plans share --seq-len; ask it by itself, with "
         "--seq-len 32"},
        {"--gpus 4 --compare gpus=2", "--compare: 'gpus=2' is another question: compared plans share --gpus"},
        {"--gpus 4 --compare cluster=p4d", "--compare: 'cluster=p4d' is another question"},
        {"--gpus 4,8 --compare block", "--compare: is of one plan"},
        {"--gpus 4 --pareto --compare block", "--compare: is of one plan"}}) {
    CAPTURE(flags);
    const Answer answer = program.run(small + flags);
    CHECK(answer.code == 2);
    CHECK_MESSAGE(says(answer.err, said), answer.err);
  }
  const Answer length = program.run(
      "fsdp-plan plan --model tiny-llama --cluster dgx-h100 --search uniform --seq-len 128 --gpus 4 --compare "
      "four.json");
  CHECK_MESSAGE(says(length.err, "four.json: seq_len: is 64 tokens, but the question is about 128"), length.err);
  CHECK(program
            .run("fsdp-plan plan --model gpt2 --cluster dgx-h100 --search uniform --gpus 4 --seq-len 64 --compare "
                 "four.json")
            .code == 2);
}
