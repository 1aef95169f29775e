// `plan --max` and `--min`: the answer fits and the next size does not, as `plan` says of each by itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/json_answer.h"

using fsdp::testing::Answer;
using fsdp::testing::parsed;
using fsdp::testing::Program;
using nlohmann::json;

namespace {

std::string verdict(const Program& program, const std::string& flags) {
  return parsed(program.run("fsdp-plan plan " + flags + " --json=brief"))["verdict"];
}

}  // namespace

TEST_CASE("the answer to --max and --min fits, and the next size does not") {
  const Program program;
  struct Case {
    std::string flags, question, flag;
    std::int64_t step;  // to the next size; 0: another grid
  };
  for (const Case& c :
       {Case{"--model llama3-8b --cluster dgx-h100 --gpus 8 --search uniform", "--max seq-len", "--seq-len", 1024},
        Case{"--model qwen2.5-7b --cluster dgx-h100 --gpus 2 --implementation hf --micro-batch 8", "--max seq-len",
             "--seq-len", 1024},
        Case{"--model llama3-8b --cluster dgx-h100 --seq-len 4k --search uniform", "--max micro-batch", "--micro-batch",
             1},
        Case{"--model llama3-70b --cluster dgx-h100 --seq-len 8k --micro-batch 1 --tensor 1 --search uniform",
             "--min gpus", "--gpus", -8},
        Case{"--model llama3-70b --cluster dgx-h100 --seq-len 8k --global-batch 48 --tensor 1 --search uniform",
             "--min gpus", "--gpus", 0}}) {
    CAPTURE(c.flags);
    const Answer answer = program.run("fsdp-plan plan " + c.flags + " " + c.question + " --json=brief -o plan.json");
    CHECK_MESSAGE(answer.code == 0, answer.err);
    const json result = parsed(answer), size = result["size_question"];
    const auto found = size["answer"].get<std::int64_t>(), next = size["next"].get<std::int64_t>();
    if (c.step != 0) CHECK(next == found + c.step);
    CHECK(result["verdict"] == "fits");
    CHECK(size["searches"].get<int>() <= 24);
    const bool micro_batch = c.flag == "--micro-batch";
    const std::string by_itself = c.flags + (micro_batch ? " --tensor 1 " : " ") + c.flag + " ";
    CHECK(verdict(program, by_itself + std::to_string(found) + " -o alone.json") == "fits");
    CHECK(program.run("cmp plan.json alone.json").code == 0);  // the plan is that of the size
    CHECK(verdict(program, by_itself + std::to_string(next)) == size["why_not_next"]);
    CHECK(size["why_not_next"] != "fits");
    if (!micro_batch) continue;  // the text is the same for all, and each asks again
    const Answer plan = program.run("fsdp-plan plan " + by_itself + std::to_string(found) + " -o alone.json");
    const Answer text = program.run("fsdp-plan plan " + c.flags + " " + c.question);
    CHECK_MESSAGE(text.out.starts_with("Largest: --micro-batch " + std::to_string(found) + " fits, " +
                                       std::to_string(next) + " does not ("),
                  text.out);
    CHECK(text.out.substr(text.out.find('\n') + 1) ==
          plan.out.substr(0, plan.out.find("\nnext: ")) + text.out.substr(text.out.find("\nnext: ")));
  }
}

TEST_CASE("the largest micro-batch is the one that trying all of them finds") {
  const Program program;
  const std::string flags =
      "--model qwen3-0.6b --cluster dgx-a100-40 --gpus 1 --seq-len 8k --wrap block --search uniform ";
  std::int64_t largest = 0;
  for (std::int64_t size = 1; size <= 24; ++size)
    if (verdict(program, flags + "--micro-batch " + std::to_string(size)) == "fits") largest = size;
  REQUIRE(largest > 0);
  REQUIRE(largest < 24);
  CHECK(parsed(program.run("fsdp-plan plan " + flags + "--max micro-batch --json=brief"))["size_question"]["answer"] ==
        largest);
}

TEST_CASE("learned positions end a sequence; where nothing fits, that is the answer") {
  const Program program;
  const json learned = parsed(program.run("fsdp-plan plan --model gpt2 --cluster dgx-h100 --max seq-len --json=brief"));
  CHECK(learned["size_question"]["answer"] == 1024);
  CHECK(learned["size_question"]["why_not_next"] == "2048 tokens, but 'gpt2' has learned positions for 1024");
  const Answer none = program.run(
      "fsdp-plan plan --model llama3.1-405b --cluster dgx-h100 --gpus 8 --tensor 1 --max seq-len "
      "--search uniform");
  CHECK(none.code == 1);
  CHECK_MESSAGE(none.out.starts_with("No --seq-len fits; "), none.out);
  CHECK(none.out.find("Does not fit: ") != std::string::npos);
  CHECK_MESSAGE(none.out.find("nearest: 64.\n") != std::string::npos, none.out);
  // One GPU is enough: nothing else is searched.
  const json one =
      parsed(program.run("fsdp-plan plan --model tiny-llama --cluster dgx-h100 --seq-len 64 --min gpus --json"));
  CHECK(one["size_question"] ==
        json{{"size", "gpus"}, {"answer", 1}, {"next", nullptr}, {"why_not_next", ""}, {"searches", 1}});
  CHECK(one["plan"]["mesh"][1]["size"] == 1);
  // Every number of GPUs below a node, and what the batch's rules leave of the sizes.
  const std::string llama = "fsdp-plan plan --model llama3-8b --cluster dgx-h100 --search uniform ";
  const json three = parsed(program.run(llama + "--seq-len 8k --global-batch 3 --min gpus --json=brief"));
  CHECK(three["size_question"]["answer"] == 3);
  const json two = parsed(
      program.run(llama + "--gpus 8 --seq-len 2k --global-batch 64 --grad-accum 4 --max micro-batch --json=brief"));
  CHECK(two["size_question"]["answer"] == 2);
  CHECK(two["size_question"]["next"] == nullptr);
  // Where GPUs do not help: the plan of the number that comes nearest, with what would make it fit.
  const Answer never = program.run(
      "fsdp-plan plan --model llama3-8b --cluster dgx-h100 --seq-len 128k --tensor 1 --min gpus "
      "--search uniform");
  CHECK(never.code == 1);
  CHECK_MESSAGE(never.out.find("No --gpus fits; ") != std::string::npos, never.out);
  CHECK_MESSAGE(never.out.find("\n  --compile --seq-len ") != std::string::npos, never.out);
  // A tight plan is none that fits: the answer is no, and the first tight one is shown.
  const Answer tight = program.run(
      "fsdp-plan plan --model llama3-8b --cluster dgx-h100 --gpus 8 --wrap block --seq-len 32k --max micro-batch "
      "--search uniform --tensor 1");
  CHECK(tight.code == 1);
  CHECK_MESSAGE(tight.out.starts_with("No --micro-batch fits; 1 search; nearest: 1.\nTight: "), tight.out);
}

TEST_CASE("questions that contradict flags, and sizes that are none, are refused") {
  const Program program;
  const std::string plan = "fsdp-plan plan --model llama3-8b --cluster dgx-h100 ";
  for (const auto& [flags, said] :
       {std::pair{"--max seq-len --seq-len 4k", "--seq-len: is given, and --max asks for it"},
        std::pair{"--min gpus --gpus 8", "--gpus: is given, and --min asks for it"},
        std::pair{"--max seq-len --min gpus", "--min: and --max are two questions"},
        std::pair{"--max gpus", "--max: 'gpus' is no size that can be searched"},
        std::pair{"--min seq-len", "--min: 'seq-len' is no size that can be searched"},
        std::pair{"--max seq-len --wrap nope", "--wrap"},
        std::pair{"--max micro-batch --seq-len 4k --global-batch 4",
                  "--global-batch: 4 sequences do not divide over 8 GPUs"}}) {
    CAPTURE(flags);
    const Answer answer = program.run(plan + flags);
    CHECK(answer.code == 2);
    CHECK_MESSAGE(answer.err.find(said) != std::string::npos, answer.err);
    CHECK(std::count(answer.err.begin(), answer.err.end(), '\n') == 1);
  }
}
