// What transformers' Trainer holds of a step, from a file of Accelerate (recorded by tests/torch/record_trainer.py),
// and what lint says of that file.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.h"

using fsdp::testing::Answer;
using fsdp::testing::Program;

namespace {

using Json = nlohmann::json;

// The flags that a case needs beside its file.
std::string flags_of(const Json& config, const Json& document) {
  std::string flags;
  if (config["adapters"]) flags += " --lora " + document["adapters"].get<std::string>();
  if (config["gradient_checkpointing"]) flags += " --activation-checkpointing full";
  const bool in_16_bits = config["dtype"] == "bfloat16";
  if (in_16_bits) flags += " --master-dtype bf16";
  if (in_16_bits && config["adapters"]) flags += " --trained-dtype fp32";  // peft's
  if (in_16_bits && config["mixed_precision"] == "no") flags += " --param-dtype bf16 --reduce-dtype bf16";
  return flags;
}

// The most that is allocated, by phase of a steady step.
std::map<std::string, std::int64_t> peaks_of(const Program& program, const Json& config, const Json& document,
                                             const std::string& file) {
  std::ofstream(program.work() / "model.json") << config["model"].dump();
  std::ofstream(program.work() / "accelerate.yaml") << file;
  const std::string setup = " --model model.json --cluster dgx-h100 --seq-len " + document["seq_len"].dump();
  const Answer linted =
      program.run("fsdp-plan lint accelerate.yaml" + setup + " --micro-batch " + document["sequences"].dump() +
                  " --grad-accum " + config["micro_batches"].dump() + flags_of(config, document) + " -o plan.json");
  REQUIRE_MESSAGE(linted.code == 0, linted.err);
  const std::string lora = config["adapters"] ? " --lora " + document["adapters"].get<std::string>() : "";
  const Answer predicted = program.run(
      "fsdp-plan simulate --plan plan.json --model model.json --cluster dgx-h100 --implementation hf --memory --json" +
      lora);
  REQUIRE_MESSAGE(predicted.code == 0, predicted.err);
  std::map<std::string, std::int64_t> peaks;
  const Json answer = Json::parse(predicted.out);
  for (const Json& moment : answer["moments"]) peaks[moment["phase"]] = moment["allocated_bytes"];
  return peaks;
}

}  // namespace

TEST_CASE("the Trainer's forward and backward hold what lint says of Accelerate's file, but for its batches") {
  const Program program;
  const Json document = Json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/trainer.json"));
  REQUIRE(document["cases"].size() == 22);
  const std::int64_t batch = 8 * document["sequences"].get<std::int64_t>() * document["seq_len"].get<std::int64_t>();
  for (const Json& row : document["cases"]) {
    const Json& config = row["config"];
    CAPTURE(config["name"].get<std::string>());
    const auto mine = peaks_of(program, config, document, row["file"]);
    for (const char* phase : {"forward", "backward"}) {
      CAPTURE(phase);
      const std::int64_t more = row[phase].get<std::int64_t>() - mine.at(phase);
      // Tokens and targets of the micro-batches to come wait beside this one's, and small copies of peft's: at most
      // 0.07 % of these peaks.
      CHECK(more >= 0);
      CHECK(more <= 3 * batch * config["micro_batches"].get<std::int64_t>() + 256);
    }
  }
}
