// What `plan` says when nothing fits: numbers of plans that were simulated, and changes that really help.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/json_answer.h"

using fsdp::testing::Answer;
using fsdp::testing::parsed;
using fsdp::testing::Program;
using nlohmann::json;

namespace {

// The plans that remedies are of: what fits by itself needs no search of each choice to be found.
const std::string kUniform = "fsdp-plan plan --tensor 1 --search uniform ";

// `flags` with the ones that `change` gives anew left out, and the change.
std::string changed(const std::string& flags, const std::string& change) {
  std::istringstream words(flags);
  std::string result;
  for (std::string flag, value; words >> flag >> value;)
    if ((change + " ").find(flag + " ") == std::string::npos) result += flag + " " + value + " ";
  return result + change;
}

}  // namespace

TEST_CASE("where nothing fits, the least plan was simulated, and a change that is said to fit does") {
  const Program program;
  int fitting = 0;
  for (const char* flags : {"--model llama3-70b --cluster dgx-h100 --gpus 8 --seq-len 8192",
                            "--model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 131072",
                            "--model qwen2.5-7b --cluster dgx-h100 --gpus 1 --seq-len 4096 --implementation hf"}) {
    CAPTURE(flags);
    const Answer answer = program.run(std::string("fsdp-plan plan --tensor 1 ") + flags + " --json");
    CHECK(answer.code == 1);
    const json result = parsed(answer);
    const auto least = result["least"]["peak_total_bytes"].get<std::int64_t>();
    CHECK(result["least"]["verdict"] == "does not fit");
    CHECK(result["least"]["step_time_s"].get<double>() > 0);  // simulated, not a bound
    CHECK(least <= result["naive"]["peak_total_bytes"].get<std::int64_t>());
    CHECK(result["remedies"].size() > 0);
    for (const json& remedy : result["remedies"]) {
      const auto change = remedy["change"].get<std::string>();
      CAPTURE(change);
      CHECK(remedy["peak_total_bytes"].get<std::int64_t>() < least);
      if (remedy["verdict"] != "fits" || !change.starts_with("--") || change.find('"') != std::string::npos) continue;
      ++fitting;
      const Answer again = program.run(kUniform + changed(flags, change) + " --json");
      CHECK_MESSAGE(again.code == 0, again.err);
      CHECK(parsed(again)["verdict"] == "fits");
    }
  }
  CHECK(fitting >= 3);
}

TEST_CASE(
    "where nothing fits, plans over tensor ranks are asked, too, and an offload that needs whole layers is named") {
  const Program program;
  const std::string question = "fsdp-plan plan --search uniform --model llama3-70b --cluster dgx-h100 --seq-len 8192 ";
  const Answer answer = program.run(question + "--gpus 8");
  CHECK(answer.code == 1);
  CHECK_MESSAGE(answer.out.find("8 ranks need least.\n") != std::string::npos, answer.out);
  CHECK_MESSAGE(answer.out.find("\n  --gpus 16: ") != std::string::npos, answer.out);
  CHECK_MESSAGE(answer.out.find("\n  --offload (") != std::string::npos, answer.out);  // of the plan without them
  CHECK(program.run(question + "--gpus 16 --json").code == 0);
  CHECK(program.run(question + "--gpus 8 --offload --json").code == 0);
}

TEST_CASE("changes that the target cannot say are not among the remedies") {
  const Program program;
  const std::string flags = "--model llama3-70b --cluster dgx-h100 --gpus 8 --seq-len 8192 ";
  const std::string target = "--target torchtitan ";
  const auto tried = [&](const std::string& more) {
    const json answer = parsed(program.run(kUniform + flags + more + "--json"));
    std::string changes;
    for (const json& remedy : answer["remedies"]) changes += remedy["change"].get<std::string>() + "\n";
    return changes;
  };
  const std::string any = tried(""), sayable = tried(target);
  CHECK_MESSAGE(any.find("--offload-optimizer\n") != std::string::npos, any);
  CHECK_MESSAGE(sayable.find("--offload-optimizer") == std::string::npos, sayable);
  const Answer refused = program.run(kUniform + flags + target + "--offload-optimizer");
  CHECK_MESSAGE(refused.err.find("torchtitan cannot say") != std::string::npos, refused.err);
  CHECK_MESSAGE(sayable.find("--offload\n") != std::string::npos, sayable);
  CHECK(program.run(kUniform + flags + target + "--offload --json").code == 0);
  const std::string written = tried("--emit torchtitan --emit-to t.py ");  // the file, too, would be without it
  CHECK_MESSAGE(written.find("--offload-optimizer") == std::string::npos, written);
  CHECK_MESSAGE(written.find("--offload\n") != std::string::npos, written);
}

TEST_CASE("where the host's memory alone is short, less is sent there, and only what fits is a remedy") {
  const Program program;
  const std::string cluster = R"(echo '{"schema": "fsdp-plan/cluster/1", "name": "a", "gpu": "h100-sxm-80",)"
                              R"( "gpus_per_node": 8, "host_memory": "120 GiB"}' > a.json; )";
  const std::string question = "--model llama3-8b --cluster a.json --gpus 8 --seq-len 8192 ";
  const Answer answer = program.run(cluster + kUniform + question + "--offload --json");
  CHECK(answer.code == 1);
  std::string changes;
  const json result = parsed(answer);
  for (const json& remedy : result["remedies"]) {
    changes += remedy["change"].get<std::string>() + "\n";
    CHECK(remedy["verdict"] == "fits");
  }
  CHECK_MESSAGE(changes.find("--offload-optimizer in place of --offload\n") != std::string::npos, changes);
  CHECK(program.run(cluster + kUniform + question + "--offload-optimizer --json").code == 0);
  CHECK_MESSAGE(changes.find("without --offload (") != std::string::npos, changes);
  CHECK(program.run(cluster + kUniform + question + "--json").code == 0);
}

TEST_CASE("frozen weights may be kept in bf16 where they do not fit in fp32; trained ones are not told to") {
  const Program program;
  const std::string cluster =
      R"(echo '{"schema": "fsdp-plan/cluster/1", "name": "a", "gpu": "rtx-4090", "gpus_per_node": 1}' > a.json; )";
  const std::string flags = "--cluster a.json --gpus 1 --seq-len 2048 ",
                    narrow = "--master-dtype bf16 --trained-dtype fp32";
  const auto advised = [&](const std::string& model) {
    const json answer = parsed(program.run(cluster + kUniform + flags + model + " --json"));
    std::string changes;
    for (const json& remedy : answer["remedies"])
      if (remedy["verdict"] == "fits") changes += remedy["change"].get<std::string>() + "\n";
    return changes;
  };
  CHECK(advised("--model llama3-8b --lora 16").find(narrow + "\n") != std::string::npos);
  const Answer again = program.run(cluster + kUniform + flags + "--model llama3-8b --lora 16 " + narrow + " --json");
  CHECK_MESSAGE(again.code == 0, again.err);
  CHECK(parsed(again)["verdict"] == "fits");
  CHECK(advised("--model llama3-8b").find(narrow) == std::string::npos);
  // Where that is too little, with the loss in chunks, which is less still.
  const json longer = parsed(
      program.run(cluster + kUniform + "--cluster a.json --gpus 1 --seq-len 4096 --model llama3-8b --lora 16 --json"));
  const auto peak_with = [&](const std::string& change) {
    for (const json& remedy : longer["remedies"])
      if (remedy["change"] == change) return remedy["peak_total_bytes"].get<std::int64_t>();
    FAIL_CHECK(change << " was not tried");
    return std::int64_t{0};
  };
  CHECK(peak_with(narrow + " --loss-chunks 8") < peak_with(narrow));
}

TEST_CASE("remedies with a size are the fewest GPUs, by nodes, and the longest sequence, by 1,024 tokens") {
  const Program program;
  const Answer long_one =
      program.run("fsdp-plan plan --tensor 1 --model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 128k");
  CHECK(long_one.code == 1);
  CHECK_MESSAGE(long_one.out.find("  --seq-len 28672: ") != std::string::npos, long_one.out);
  CHECK_MESSAGE(long_one.out.find("  --compile --seq-len 75776: ") != std::string::npos, long_one.out);
  // 1,024 tokens more do not fit: of the plan that needs least, and so of every plan that was simulated.
  const std::string simulate =
      "fsdp-plan simulate --model llama3-8b --cluster dgx-h100 --gpus 8 --wrap titan --activation-checkpointing full "
      "--reshard-after-forward true --json=brief --seq-len ";
  CHECK(parsed(program.run(simulate + "28672"))["verdict"] == "fits");
  CHECK(parsed(program.run(simulate + "29696"))["verdict"] != "fits");
  CHECK(parsed(program.run(simulate + "75776 --compile"))["verdict"] == "fits");
  CHECK(parsed(program.run(simulate + "76800 --compile"))["verdict"] != "fits");

  const std::string large = kUniform + "--model llama3-70b --cluster dgx-a100-80 --seq-len 8192 --gpus ";
  const Answer few = program.run(large + "8");
  CHECK_MESSAGE(few.out.find("  --gpus 24 (") != std::string::npos, few.out);
  CHECK(program.run(large + "16").code == 1);
  CHECK(program.run(large + "24").code == 0);
}

TEST_CASE("a batch in tokens stays the same batch when the sequence is shortened") {
  const Program program;
  const Answer answer = program.run(
      "fsdp-plan plan --tensor 1 --model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 128k --global-batch-tokens "
      "8M");
  CHECK(answer.code == 1);
  CHECK_MESSAGE(answer.out.find("--global-batch 64 in place of --global-batch-tokens: ") != std::string::npos,
                answer.out);
}

TEST_CASE("a flag that leaves the search too little is named") {
  const Program program;
  const Answer answer =
      program.run(kUniform +
                  "--model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 16384 --activation-checkpointing none "
                  "--micro-batch 2");
  CHECK(answer.code == 1);
  CHECK_MESSAGE(answer.out.find("without --activation-checkpointing --micro-batch (") != std::string::npos, answer.out);
  CHECK_MESSAGE(answer.out.find(": fits\n") != std::string::npos, answer.out);
}

TEST_CASE("what is replicated is told that it could be sharded, and CPU ranks get no advice for GPUs") {
  const Program program;
  const Answer ddp =
      program.run("fsdp-plan plan --tensor 1 --model llama3-8b --cluster dgx-h100 --seq-len 2048 --dialect ddp");
  CHECK(ddp.code == 1);
  CHECK_MESSAGE(ddp.out.find("without --dialect ddp (") != std::string::npos, ddp.out);
  REQUIRE(program.run("fsdp-plan calibrate --backend host --ranks 2 --budget 1s -o costs.json").code == 0);
  const Answer host = program.run(
      "fsdp-plan plan --tensor 1 --model tiny-llama --cluster host --gpus 2 --costs costs.json --seq-len 64 "
      "--memory-limit 1MiB");
  CHECK(host.code == 1);
  CHECK_MESSAGE(host.out.find("the least that any of ") != std::string::npos, host.out);
  CHECK(host.out.find("--gpus") == std::string::npos);
  CHECK(host.out.find("--compile") == std::string::npos);
}

TEST_CASE("a tight plan that gives memory back in each step stands beside the fastest that does not") {
  const Program program;
  const std::string flags =
      "--model llama3-8b --cluster dgx-h100 --implementation torchtitan-2025-12 --gpus 8 --seq-len 32768";
  const Answer tight = program.run(kUniform + flags);
  CHECK_MESSAGE(tight.out.find("unless the allocator gives memory back, twice a step.") != std::string::npos,
                tight.out);
  CHECK_MESSAGE(tight.out.find("Hint: with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, ") != std::string::npos,
                tight.out);
  const json result = parsed(program.run(kUniform + flags + " --json=brief"));
  const json& calm = result["without_retries"];
  CHECK(result["prediction"]["alloc_retries"] == 2);
  CHECK(calm["step_time_s"].get<double>() < 1.01 * result["prediction"]["step_time_s"].get<double>());
  // What the hint names is such a plan: its label begins with the wrap policy.
  const auto label = calm["label"].get<std::string>();
  const json simulated = parsed(program.run("fsdp-plan simulate " + flags + " --activation-checkpointing full --wrap " +
                                            label.substr(0, label.find(',')) + " --json=brief"));
  CHECK(simulated["verdict"] == "tight");
  CHECK(simulated["alloc_retries"] == 0);
}

TEST_CASE("below a tight plan stand the changes with which it fits, and each of them holds") {
  const Program program;
  REQUIRE(program.run("fsdp-plan show cluster rtx-4090 --file > rtx.json").code == 0);
  struct Case {
    const char* target;
    const char* flags;
    std::vector<std::string> expected;
  };
  for (const Case& c : {Case{"--model llama3-8b --cluster dgx-h100",
                             " --gpus 8 --seq-len 32768",
                             {"--compile", "--offload-optimizer", "--gpus 16", "--seq-len 28672"}},
                        Case{"--model llama3-8b --cluster rtx.json",
                             " --gpus 8 --seq-len 2048",
                             {"--compile (", "--offload", "--optimizer adamw-8bit (", "--gpus 16"}}}) {
    CAPTURE(c.target);
    const std::string flags = c.target + std::string(c.flags);
    const Answer tight = program.run(kUniform + flags + " -o plan.json");
    CHECK(tight.code == 0);
    CHECK(tight.out.rfind("Tight: ", 0) == 0);
    const std::size_t table = tight.out.find("\nWhat would make it fit, each simulated:\n");
    REQUIRE_MESSAGE(table != std::string::npos, tight.out);
    for (const std::string& change : c.expected)
      CHECK_MESSAGE(tight.out.find("\n  " + change, table) != std::string::npos, change, " of ", tight.out);
    const json remedies = parsed(program.run(kUniform + flags + " --json"))["remedies"];
    CHECK(remedies.size() >= c.expected.size());
    for (const json& remedy : remedies) {
      const auto change = remedy["change"].get<std::string>();
      CAPTURE(change);
      CHECK(remedy["verdict"] == "fits");
      if (!change.starts_with("--")) continue;
      const json again = parsed(program.run(kUniform + changed(flags, change) + " --json=brief"));
      CHECK(again["verdict"] == "fits");
    }
  }
  // The plan itself, in the time and the memory that its line names.
  REQUIRE(program
              .run("fsdp-plan plan --tensor 1 --model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 32768 "
                   "--search uniform -o plan.json --json=brief > plan.txt")
              .code == 0);
  const json result = parsed(program.run("cat plan.txt")), compiled = result["remedies"][0];
  CHECK(compiled["change"] == "--compile");
  const json simulated = parsed(
      program.run("fsdp-plan simulate --plan plan.json --model llama3-8b --cluster dgx-h100 --compile --json=brief"));
  CHECK(simulated["step_time_s"] == compiled["step_time_s"]);
  CHECK(simulated["memory"].is_object());
  CHECK(simulated["peak_total_bytes"] == compiled["peak_total_bytes"]);
  const Answer fits =
      program.run("fsdp-plan plan --tensor 1 --model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 32768 --compile");
  CHECK(fits.out.find("What would make it fit") == std::string::npos);
}
