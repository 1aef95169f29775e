// The commands that the program prints to go on with: as printed, they give the prediction that was printed above them.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"

using fsdp::testing::Answer;
using fsdp::testing::Program;

namespace {

// What stands between the backticks of "next: ...", the last pair of them.
std::string next_of(const std::string& text) {
  const std::size_t next = text.find("next: ");
  REQUIRE_MESSAGE(next != std::string::npos, text);
  const std::size_t end = text.rfind('`'), begin = text.rfind('`', end - 1);
  REQUIRE(begin > next);
  return text.substr(begin + 1, end - begin - 1);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The long flags of a command, as its help lists them.
std::set<std::string> flags_of(const Program& program, const std::string& command) {
  std::istringstream help(program.run("fsdp-plan " + command + " --help").out);
  std::set<std::string> flags;
  for (std::string line; std::getline(help, line);) {
    const std::size_t at = line.find("--");
    if (line.rfind("  -", 0) == 0 && at != std::string::npos)
      flags.insert(line.substr(at, line.find_first_of(" ,[", at) - at));
  }
  return flags;
}

enum class Kept { plan_file, next_command, nowhere };

// Every flag of `simulate`: where it goes when `plan` was called with it; and, if a prediction depends on it, a value
// that is not its default. "nowhere": what to write, not what to predict, or no flag of `plan`.
struct FlagCase {
  Kept kept;
  std::string value;
};
const std::string kOfGeneric = "of generic";
const std::map<std::string, FlagCase> kFlags = {
    {"--model", {Kept::next_command, ""}},  // given in every call below
    {"--lora", {Kept::next_command, "rank=8,targets=q_proj+v_proj"}},
    {"--cluster", {Kept::next_command, ""}},
    {"--costs", {Kept::next_command, "costs.json"}},
    {"--implementation", {Kept::next_command, "hf"}},
    {"--compile", {Kept::next_command, ""}},
    {"--no-compile", {Kept::next_command, ""}},
    {"--async-tensor", {Kept::next_command, ""}},
    {"--memory-limit", {Kept::next_command, "70GiB"}},
    {"--headroom", {Kept::next_command, "10%"}},
    {"--reserve", {Kept::next_command, "4GiB"}},
    {"--price", {Kept::next_command, "2.1"}},
    {"--gpus", {Kept::plan_file, "4"}},
    {"--seq-len", {Kept::plan_file, "512"}},
    {"--micro-batch", {Kept::plan_file, "2"}},
    {"--grad-accum", {Kept::plan_file, "3"}},
    {"--global-batch", {Kept::plan_file, "32"}},
    {"--global-batch-tokens", {Kept::plan_file, "2k"}},
    {"--dialect", {Kept::plan_file, "fsdp2@2.11"}},
    {"--wrap", {Kept::plan_file, "block:2"}},
    {"--reshard-after-forward", {Kept::plan_file, "2"}},
    {"--replicate", {Kept::plan_file, "2"}},
    {"--tensor", {Kept::plan_file, "2"}},
    {"--expert-shard", {Kept::nowhere, ""}},  // not in searches
    {"--offload-activations", {Kept::nowhere, ""}},
    {"--chunk-head", {Kept::nowhere, ""}},
    {"--loss-in-model", {Kept::plan_file, "true"}},
    {"--host-threads", {Kept::plan_file, "8"}},
    {"--grad-sync", {Kept::plan_file, "last"}},
    {"--forward-prefetch", {Kept::plan_file, "2"}},
    {"--backward-prefetch", {Kept::plan_file, "none"}},
    {"--loss-chunks", {Kept::plan_file, "4"}},
    {"--reduce-scatter-buffers", {Kept::plan_file, "2"}},
    {"--separate-reduce-scatter", {Kept::plan_file, "true"}},
    {"--limit-all-gathers", {Kept::plan_file, "false"}},
    {"--use-orig-params", {Kept::plan_file, "false"}},
    {"--activation-checkpointing", {Kept::plan_file, "every-2"}},
    {"--offload", {Kept::plan_file, "true"}},
    {"--offload-optimizer", {Kept::plan_file, "true"}},
    {"--param-dtype", {Kept::plan_file, "fp32"}},
    {"--reduce-dtype", {Kept::plan_file, "bf16"}},
    {"--master-dtype", {Kept::plan_file, "bf16"}},
    {"--trained-dtype", {Kept::plan_file, "fp32 --lora 2 --master-dtype bf16"}},
    {"--float8", {Kept::plan_file, "rowwise"}},
    {"--float8-all-gather", {Kept::plan_file, "false"}},
    {"--float8-precomputed-scales", {Kept::plan_file, "false"}},
    {"--optimizer", {Kept::plan_file, "sgd"}},
    {"--lr", {Kept::plan_file, "1e-3"}},
    {"--weight-decay", {Kept::plan_file, "0"}},
    {"--momentum", {Kept::plan_file, "0.9"}},
    {"--clip-norm", {Kept::plan_file, "1"}},
    {"--seed", {Kept::plan_file, "7"}},
    // Sizes of a generic model: one model has all of them, below.
    {"--layers", {Kept::next_command, kOfGeneric}},
    {"--hidden", {Kept::next_command, kOfGeneric}},
    {"--heads", {Kept::next_command, kOfGeneric}},
    {"--kv-heads", {Kept::next_command, kOfGeneric}},
    {"--head-dim", {Kept::next_command, kOfGeneric}},
    {"--ffn", {Kept::next_command, kOfGeneric}},
    {"--vocab", {Kept::next_command, kOfGeneric}},
    {"--experts", {Kept::next_command, kOfGeneric}},
    {"--experts-per-token", {Kept::next_command, kOfGeneric}},
    {"--plan", {Kept::nowhere, ""}},
    {"--output", {Kept::nowhere, ""}},
    {"--trace", {Kept::nowhere, ""}},
    {"--snapshot", {Kept::nowhere, ""}},
    {"--svg", {Kept::nowhere, ""}},
    {"--report", {Kept::nowhere, ""}},
    {"--jitter", {Kept::nowhere, ""}},
    {"--jitter-seed", {Kept::nowhere, ""}},
    {"--memory", {Kept::nowhere, ""}},
    {"--mtbf", {Kept::nowhere, ""}},
    {"--cluster-mtbf", {Kept::nowhere, ""}},
    {"--save-every", {Kept::nowhere, ""}},
    {"--storage-bandwidth", {Kept::nowhere, ""}},
    {"--async-save", {Kept::nowhere, ""}},
    {"--detection-time", {Kept::nowhere, ""}},
    {"--restart-time", {Kept::nowhere, ""}},
    {"--warmup-time", {Kept::nowhere, ""}},
    {"--spares", {Kept::nowhere, ""}},
    {"--repair-time", {Kept::nowhere, ""}},
    {"--failure-seed", {Kept::nowhere, ""}},
    {"--json", {Kept::nowhere, ""}},
    {"--help", {Kept::nowhere, ""}},
};

// Returns the next command.
std::string predicts_the_same(const Program& program, const std::string& flags) {
  CAPTURE(flags);
  const Answer plan = program.run("fsdp-plan plan " + flags + " -o plan.json");
  REQUIRE_MESSAGE(plan.code == 0, plan.err);
  const std::string next = next_of(plan.out);
  CAPTURE(next);
  const Answer simulated = program.run(next);
  CHECK_MESSAGE(simulated.code == 0, simulated.err);
  CHECK(first_line(simulated.out) == first_line(plan.out));  // step time, peak, limit
  return next;
}

const std::string kSmall = "--model tiny-llama --cluster dgx-h100 --seq-len 64";

}  // namespace

TEST_CASE("every flag of simulate that decides a prediction is in the plan's file or in the next command") {
  const Program program;
  std::set<std::string> known;
  for (const auto& [flag, unused] : kFlags) known.insert(flag);
  CHECK(flags_of(program, "simulate") == known);  // a new flag: say here where it is kept

  REQUIRE(program.run("cp '" FSDP_TESTS_DIR "/accuracy/fitted_costs.json' costs.json").code == 0);
  const std::set<std::string> of_plan = flags_of(program, "plan");
  for (const auto& [flag, c] : kFlags) {
    if (c.kept == Kept::nowhere) continue;
    CAPTURE(flag);
    CHECK(of_plan.contains(flag));
    if (flag == "--model" || flag == "--cluster" || c.value == kOfGeneric) continue;
    const bool fsdp1 = flag == "--limit-all-gathers" || flag == "--use-orig-params";
    std::string words = flag == "--seq-len" || flag == "--gpus" ? "--model tiny-llama --cluster dgx-h100" : kSmall;
    if (flag == "--momentum" || flag == "--weight-decay") words += " --optimizer sgd";
    if (flag == "--async-tensor") words += " --compile";
    words += (fsdp1 ? " --dialect fsdp1 " : " ") + flag + (c.value.empty() ? "" : " " + c.value);
    const std::string next = predicts_the_same(program, words);
    CHECK((next.find(flag) != std::string::npos) == (c.kept == Kept::next_command));
  }
}

TEST_CASE("a plan's file is predicted for the implementation that it was found for, where none is given") {
  const Program program;
  const std::string target = "--model qwen3-0.6b --cluster dgx-h100", flags = target + " --seq-len 1k --wrap block";
  const std::string simulate = "fsdp-plan simulate --plan plan.json " + target;
  for (const char* asked : {"--implementation hf", "--implementation hf --compile", "--compile"}) {
    CAPTURE(asked);
    const Answer plan = program.run("fsdp-plan plan " + flags + " " + asked + " -o plan.json");
    REQUIRE_MESSAGE(plan.code == 0, plan.err);
    const Answer simulated = program.run(simulate);
    CHECK(first_line(simulated.out) == first_line(plan.out));
    CHECK(simulated.err.empty());
    CHECK(program.run(simulate + " " + asked).err.empty());
    // Another one: predicted as asked, with a note. torchtitan's own prediction is that of a file without the note.
    const Answer other = program.run(simulate + " --implementation torchtitan");
    CHECK_MESSAGE(other.err.starts_with("note: plan.json was found for "), other.err);
    CHECK(first_line(other.out) != first_line(plan.out));
    REQUIRE(program.run("sed '/found_for/,/}/d' plan.json > old.json").code == 0);
    const Answer old = program.run("fsdp-plan simulate --plan old.json " + target);
    CHECK_MESSAGE(old.code == other.code, old.err);
    CHECK(first_line(old.out) == first_line(other.out));
    // The note decides nothing of the plan.
    const Answer shown = program.run("fsdp-plan show plan plan.json"),
                 without = program.run("fsdp-plan show plan old.json");
    const std::size_t note = shown.out.find("; found for ");
    REQUIRE(note != std::string::npos);
    CHECK(shown.out.substr(0, note) == without.out.substr(0, note));
    // Other commands begin with it, too.
    const auto step = nlohmann::json::parse(
        program.run("fsdp-plan show step --plan plan.json --model qwen3-0.6b --json").out, nullptr, false);
    CHECK(shown.out.find("found for " + step["implementation"].get<std::string>().substr(0, 2)) != std::string::npos);
  }
  // Emitted as `plan --emit` says it: the compiled blocks of the prediction are not in a script.
  const Answer emitted = program.run("fsdp-plan show plan plan.json --model qwen3-0.6b --emit pytorch");
  CHECK(emitted.code == 1);
  CHECK_MESSAGE(emitted.err.find("pytorch cannot express compile") != std::string::npos, emitted.err);
  REQUIRE(program.run("fsdp-plan plan " + flags + " -o plan.json").code == 0);
  CHECK(program.run("grep found_for plan.json").code == 1);
  REQUIRE(program
              .run("sed 's/\"schema\"/\"found_for\": {\"implementation\": \"hff\", \"compile\": false}, \"schema\"/' "
                   "plan.json > unknown.json")
              .code == 0);
  const Answer unknown = program.run("fsdp-plan simulate --plan unknown.json " + target);
  CHECK(unknown.code == 2);
  CHECK_MESSAGE(unknown.err.find("unknown.json: found_for: \"hff\" is no implementation") != std::string::npos,
                unknown.err);
}

TEST_CASE("the next command has every size of a generic model") {
  const std::string next = predicts_the_same(
      Program(),
      "--model generic --layers 2 --hidden 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 128 --vocab 256 --experts 4 "
      "--experts-per-token 2 --cluster dgx-h100 --seq-len 64");
  for (const auto& [flag, c] : kFlags)
    if (c.value == kOfGeneric) CHECK_MESSAGE(next.find(" " + flag + " ") != std::string::npos, flag, " of ", next);
}

TEST_CASE("the next command of a plan predicts what the plan said, with many flags at once") {
  const Program program;
  REQUIRE(program.run("fsdp-plan show cluster dgx-h100 --file > \"my cluster's.json\"").code == 0);
  for (const char* flags :
       {"--model qwen2.5-7b --cluster dgx-h100 --gpus 16 --implementation hf --seq-len 4096 --compile "
        "--memory-limit 72GiB --wrap block --micro-batch 1",
        "--model gpt2 --cluster \"my cluster's.json\" --implementation hf --offload true "
        "--wrap block:2 --memory-limit 40GiB",
        "--model gpt2-xl --cluster dgx-a100-40 --gpus 16 --global-batch 64 --dialect fsdp1 --wrap block "
        "--implementation hf --reduce-dtype bf16"})
    CHECK(predicts_the_same(program, flags).starts_with("fsdp-plan simulate --plan plan.json "));
}

TEST_CASE("without -o the next command says what to add, and works when it was added") {
  const Program program;
  const std::string words = "fsdp-plan plan " + kSmall + " --wrap block --compile";
  const Answer plan = program.run(words);
  CHECK(plan.out.find("next: add `-o plan.json` to keep the plan") != std::string::npos);
  const Answer kept = program.run(words + " -o plan.json");
  const Answer next = program.run(next_of(plan.out));
  CHECK(first_line(next.out) == first_line(kept.out));
}

TEST_CASE("on this machine the next commands lead from plan to run to validate") {
  const Program program;
  REQUIRE(program.run("fsdp-plan calibrate --backend host --ranks 2 --budget 1s -o costs.json").code == 0);
  const Answer plan = program.run(
      "fsdp-plan plan --model tiny-llama --lora 2 --cluster host --gpus 2 --costs costs.json --seq-len 16 "
      "--micro-batch 1 --wrap block -o 'a plan.json'");
  REQUIRE_MESSAGE(plan.code == 0, plan.err);
  // CPU ranks run ours, whatever a plan was found for on GPUs.
  const std::string tiny = " --model tiny-llama --cluster ";
  REQUIRE(program.run("fsdp-plan plan" + tiny + "dgx-h100 --gpus 2 --seq-len 16 --implementation hf -o hf.json").code ==
          0);
  const Answer native = program.run("fsdp-plan simulate --plan hf.json" + tiny + "host --costs costs.json");
  CHECK_MESSAGE(native.out.find("; native implementation; ") != std::string::npos, native.out);
  CHECK(native.err.empty());
  // Times of another processor are said to be.
  REQUIRE(
      program
          .run("sed 's/\"source\": *\"calibrate --backend host, 2 ranks, fp32, [^\"]*/"
               "\"source\": \"calibrate --backend host, 2 ranks, fp32, Abacus 9, 2 cores/' costs.json > theirs.json")
          .code == 0);
  const Answer theirs = program.run("fsdp-plan simulate --plan hf.json" + tiny + "host --costs theirs.json");
  CHECK_MESSAGE(theirs.err.starts_with("note: theirs.json holds times of another processor (calibrate --backend host, "
                                       "2 ranks, fp32, Abacus 9, 2 cores); this one is "),
                theirs.err);
  CHECK(first_line(theirs.out) == first_line(native.out));

  const Answer run = program.run(next_of(plan.out) + " --steps 2 -o 'a measurement.json'");
  REQUIRE_MESSAGE(run.code == 0, run.err);
  std::string predict = next_of(run.out);  // how to make what `validate` compares with
  const std::size_t costs = predict.find("COSTS.json");
  REQUIRE(costs != std::string::npos);
  CHECK(program.run(predict.replace(costs, 10, "costs.json")).code == 0);
  const std::size_t begin = run.out.find("`fsdp-plan validate");
  REQUIRE(begin != std::string::npos);
  const std::string validate = run.out.substr(begin + 1, run.out.find('`', begin + 1) - begin - 1);
  const Answer compared = program.run(validate);
  CHECK_MESSAGE((compared.code == 0 || compared.code == 1), compared.err);  // 1: outside the tolerance of time
  CHECK(compared.out.find("step") != std::string::npos);
}
