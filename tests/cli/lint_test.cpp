// What the emitters write, lint reads back: the same plan, where the file can hold it, and always the same step and
// peak as those that the emitter says of its file.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/program.h"

using fsdp::testing::Answer;
using fsdp::testing::Program;

namespace {

using Json = nlohmann::json;

const std::string kModel = " --model llama3-8b --cluster dgx-h100 ";

struct RoundTrip {
  std::string format, plan_flags, lint_flags;
  bool exact;  // the file holds all of the plan that decides time and memory
};

const std::vector<RoundTrip> kRoundTrips = {
    {"accelerate",
     "--implementation hf --loss-in-model true --wrap titan --reduce-dtype bf16 --grad-sync last "
     "--activation-checkpointing none "
     "--grad-accum 2",
     "--seq-len 2048 --micro-batch 1 --grad-accum 2", true},
    {"accelerate",
     "--implementation hf --loss-in-model true --dialect fsdp1 --wrap class:LlamaDecoderLayer --reshard-after-forward "
     "true --reduce-dtype "
     "bf16 --grad-sync last --activation-checkpointing full --grad-accum 2",
     "--seq-len 2048 --micro-batch 1 --grad-accum 2", true},
    {"accelerate",
     "--implementation hf --loss-in-model true --wrap titan --reshard-after-forward false --reduce-dtype bf16 "
     "--activation-checkpointing "
     "full "
     "--grad-sync last --grad-accum 1 --replicate 2",
     "--seq-len 2048 --micro-batch 1 --grad-accum 1", false},  // children are recomputed, not blocks
    {"torchtitan", "--wrap titan --activation-checkpointing selective-op --clip-norm 1 --grad-accum 2", "", true},
    {"torchtitan-args", "--wrap titan --activation-checkpointing full --clip-norm 1 --grad-accum 2 --compile", "",
     true},
    {"torchtitan-toml", "--wrap titan --activation-checkpointing every-2 --clip-norm 1 --grad-accum 1", "", false},
    {"torchtitan-toml", "--wrap titan --activation-checkpointing last-of-2 --clip-norm 1 --grad-accum 1", "", true},
    {"transformers",
     "--implementation hf --loss-in-model true --wrap titan --reshard-after-forward auto --activation-checkpointing "
     "full --grad-accum 1",
     "--seq-len 2048 --micro-batch 1 --grad-accum 1", true},
    {"transformers",
     "--implementation hf --loss-in-model true --wrap block:2 --reshard-after-forward true --activation-checkpointing "
     "none --grad-accum 1",
     "--seq-len 2048 --micro-batch 1 --grad-accum 1", false},
    {"automodel",
     "--implementation hf --wrap block --reshard-after-forward auto --activation-checkpointing full --clip-norm 1 "
     "--grad-accum 2 --grad-sync last --forward-prefetch 1 --backward-prefetch 2 --replicate 2",
     "--seq-len 2048", true},
    {"automodel", "--implementation hf --wrap titan --activation-checkpointing none --grad-accum 1", "--seq-len 2048",
     false},
    {"torchtitan", "--wrap titan --reshard-after-forward false --activation-checkpointing full --clip-norm 1 --compile",
     "", true},
    {"torchtitan-toml",
     "--wrap titan --activation-checkpointing full --clip-norm 1 --grad-accum 1 --float8 tensorwise "
     "--float8-all-gather true --float8-precomputed-scales true",
     "", true},
    {"torchtitan-toml",
     "--wrap titan --activation-checkpointing none --clip-norm 1 --grad-accum 1 --float8 rowwise --compile", "", true},
    {"torchtitan", "--wrap block:2 --activation-checkpointing none --clip-norm 1 --replicate 2", "", false},
};

}  // namespace

TEST_CASE("emit, then lint: the plan of the file, with the step and the peak that emit said it has") {
  const Program program;
  int compared_with_emit = 0;
  for (const RoundTrip& r : kRoundTrips) {
    CAPTURE(r.format + ": " + r.plan_flags);
    const Answer simulated =
        program.run("fsdp-plan plan" + kModel + "--gpus 8 --seq-len 2048 --micro-batch 1 --tensor 1 " + r.plan_flags +
                    " -o plan.json --emit " + r.format + " --emit-to config");
    REQUIRE_MESSAGE(simulated.code <= 1, simulated.err);
    const Answer linted = program.run("fsdp-plan lint config" + kModel + r.lint_flags + " -o read.json --json");
    REQUIRE_MESSAGE(linted.code == 0, linted.err);
    const Json answer = Json::parse(linted.out);
    CHECK(answer["not_read"].empty());
    Json planned = Json::parse(program.text_of("plan.json")), read = Json::parse(program.text_of("read.json"));
    for (const char* field : {"mesh", "micro_batches", "seq_len", "dialect", "param_dtype", "grad_sync"}) {
      CAPTURE(field);
      CHECK(planned.value(field, Json()) == read.value(field, Json()));
    }
    if (r.exact)
      for (Json* plan : {&planned, &read})  // "auto" is true, and false of the root
        for (Json& unit : (*plan)["units"])
          if (unit["reshard_after_forward"] == "auto") unit["reshard_after_forward"] = unit["modules"] != Json{""};
    if (r.exact)
      for (const char* field :
           {"units", "checkpointed", "reduce_dtype", "master_dtype", "checkpoint_policy", "float8"}) {
        CAPTURE(field);
        CHECK(planned.value(field, Json()) == read.value(field, Json()));
      }
    const std::string said = "The file as written: ";  // "step 2.02 s, peak 91.3 GiB, does not fit. ..."
    if (const std::size_t at = simulated.err.find(said); at != std::string::npos) {
      const std::string rest = simulated.err.substr(at + said.size());
      const std::string step = rest.substr(0, rest.find(','));
      const std::string peak = rest.substr(step.size() + 2, rest.find(',', step.size() + 2) - step.size() - 2);
      const Answer told = program.run("fsdp-plan lint config" + kModel + r.lint_flags);
      const std::string headline = told.out.substr(0, told.out.find('\n'));
      CHECK_MESSAGE(headline.find(step) != std::string::npos, headline << " / " << rest);
      CHECK_MESSAGE(headline.find(peak) != std::string::npos, headline << " / " << rest);
      ++compared_with_emit;
    }
    const Answer again = program.run("fsdp-plan simulate --plan read.json" + kModel + "--json=brief");
    CHECK(Json::parse(again.out)["step_time_s"] == answer["configuration"]["step_time_s"]);
    if (answer.contains("better")) CHECK(answer["better"]["step_time_s"] > 0);
  }
  CHECK(compared_with_emit >= 2);
}

TEST_CASE("without mixed precision one flag says the type of all, and two types contradict each other") {
  const Program program;
  (void)program.run("printf 'distributed_type: FSDP\nmixed_precision: no\nnum_processes: 2\n' > config");
  const std::string lint =
      "fsdp-plan lint config --model tiny-llama --cluster dgx-h100 --seq-len 64 --micro-batch 1 "
      "--grad-accum 1 --json -o plan.json";
  for (const std::string given : {"", " --param-dtype bf16", " --master-dtype bf16", " --reduce-dtype bf16"}) {
    CAPTURE(given);
    const Answer answer = program.run(lint + given);
    REQUIRE_MESSAGE(answer.code == 0, answer.err);
    const Json plan = Json::parse(program.text_of("plan.json"));
    for (const char* type : {"param_dtype", "reduce_dtype", "master_dtype"})
      CHECK(plan[type] == (given.empty() ? "fp32" : "bf16"));
    CHECK(plan["loop"] == Json{{"loss_in_model", true}});
  }
  const Answer two = program.run(lint + " --param-dtype bf16 --master-dtype fp32");
  CHECK(two.code == 2);
  CHECK_MESSAGE(two.err.find("--master-dtype: fp32 contradicts bf16") != std::string::npos, two.err);
  const Answer parts = program.run(lint + " --loss-in-model false --loss-chunks 4");
  CHECK_MESSAGE(parts.code == 0, parts.err);
}

TEST_CASE("adapters in a file of fsdp1 are units of their own, whatever its policy") {
  const Program program;
  const auto lint = [&](const std::string& version, const std::string& policy) {
    (void)program.run(
        "printf 'distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\nfsdp_config:\n  fsdp_version: " +
        version + "\n  fsdp_auto_wrap_policy: " + policy + "\n' > config");
    return program.run(
        "fsdp-plan lint config --model tiny-llama --lora 4 --cluster dgx-h100 --seq-len 64 "
        "--micro-batch 1 --grad-accum 1");
  };
  const Answer trainer = lint("1", "TRANSFORMER_BASED_WRAP");
  CHECK_MESSAGE(trainer.code == 0, trainer.err);
  CHECK_MESSAGE(trainer.out.find("class:LlamaDecoderLayer|adapters") != std::string::npos, trainer.out);
  const Answer one = lint("1", "NO_WRAP");  // peft's policy stands for the file's
  CHECK_MESSAGE(one.out.find("class:LlamaDecoderLayer|adapters") != std::string::npos, one.out);
  const Answer two = lint("2", "NO_WRAP");
  CHECK_MESSAGE(two.code == 0, two.err);
}

TEST_CASE("logits that torchtitan's file gathers are gathered in the plan, and take more") {
  const Program program;
  const auto read = [&](const std::string& disable) {
    (void)program.run(
        "printf '[training]\\nlocal_batch_size = 1\\nseq_len = 2048\\n[parallelism]\\ntensor_parallel_degree = "
        "2\\ndisable_loss_parallel = " +
        disable + "\\n' > split.toml");
    const Answer answer = program.run("fsdp-plan lint split.toml" + kModel + "--gpus 8 -o split.json --json");
    REQUIRE_MESSAGE(answer.code == 0, answer.err);
    return std::pair{Json::parse(program.text_of("split.json"))["tensor_plan"]["loss_parallel"].get<bool>(),
                     Json::parse(answer.out)["configuration"]["peak_total_bytes"].get<std::int64_t>()};
  };
  const auto [split, less] = read("false");
  const auto [gathered_split, more] = read("true");
  CHECK(split);
  CHECK_FALSE(gathered_split);
  CHECK(less < more);
}

TEST_CASE("the command that is printed for a better plan finds one that is as fast as was said") {
  const Program program;
  (void)program.run(
      "printf '[training]\\nlocal_batch_size = 1\\nseq_len = 2048\\n[parallelism]\\ndata_parallel_shard_degree = "
      "8\\n[activation_checkpoint]\\nmode = \"full\"\\n' > c.toml");
  const std::vector<std::string> given = {
      "--float8 tensorwise", "--float8-all-gather true", "--optimizer sgd", "--momentum 0.9",
      "--lr 1e-3",           "--weight-decay 0",         "--seed 7"};
  std::string all;
  for (const std::string& flag : given) all += flag + " ";
  const std::vector<std::string> offload = {"--offload-optimizer true", "--loss-chunks 4"};
  const std::string waits = offload[0] + " " + offload[1] + " --global-batch-tokens 16k ";
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"", {}}, {all, given}, {waits, offload}};
  for (const auto& [flags, kept] : cases) {
    CAPTURE(flags);
    const Answer linted = program.run("fsdp-plan lint c.toml" + kModel + flags + "--json");
    REQUIRE_MESSAGE(linted.code == 0, linted.err);
    const Json answer = Json::parse(linted.out);
    REQUIRE(answer.contains("better"));
    REQUIRE(answer["better"]["step_time_s"] < answer["configuration"]["step_time_s"]);
    const auto command = answer["better"]["command"].get<std::string>();
    for (const std::string& flag : kept) CHECK_MESSAGE(command.find(" " + flag) != std::string::npos, command);
    const Answer found = program.run(command + " -o better.json");
    REQUIRE_MESSAGE(found.code == 0, found.err);
    const Json simulated =
        Json::parse(program.run("fsdp-plan simulate --plan better.json" + kModel + "--json=brief").out);
    CHECK(simulated["step_time_s"].get<double>() <= answer["better"]["step_time_s"].get<double>() * 1.0001);
  }
}

TEST_CASE("a value of the file that no plan can have is refused under the file's key") {
  const Program program;
  const auto refused = [&](const std::string& toml, const std::string& flags = "") {
    (void)program.run("printf '" + toml + "' > bad.toml");
    const Answer answer = program.run("fsdp-plan lint bad.toml" + kModel + "--seq-len 2048 " + flags);
    CHECK(answer.code == 2);
    return answer.err;
  };
  const std::string batch = refused("[training]\\nglobal_batch_size = 100\\n", "--gpus 8");
  CHECK_MESSAGE(batch.find("bad.toml: training.global_batch_size: 100 sequences do not divide") != std::string::npos,
                batch);
  const std::string rate = refused("[optimizer]\\nlr = -1\\n", "--gpus 8");
  CHECK_MESSAGE(rate.find("bad.toml: optimizer.lr: ") != std::string::npos, rate);
  const std::string split = refused(
      "[model]\\nconverters = [\"quantize.linear.float8\"]\\n[parallelism]\\ntensor_parallel_degree = 2\\n"
      "data_parallel_shard_degree = 4\\n");
  CHECK_MESSAGE(split.find("bad.toml: model.converters: products in 8 bits of layers split") != std::string::npos,
                split);
  // A flag that was given beside the file keeps its name.
  CHECK(refused("[training]\\nlocal_batch_size = 1\\n", "--gpus 8 --lr fast").find("--lr: ") != std::string::npos);
}

TEST_CASE("FSDP 1 without shards is a plan: every rank has the whole model") {
  const Program program;
  (void)program.run(
      "printf 'distributed_type: FSDP\\nnum_processes: 8\\nmixed_precision: bf16\\nfsdp_config:\\n  "
      "fsdp_sharding_strategy: NO_SHARD\\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\\n  "
      "fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\\n' > c.yaml");
  const Answer linted = program.run("fsdp-plan lint c.yaml" + kModel + "--seq-len 2048 -o read.json");
  CHECK_MESSAGE(linted.code == 1, linted.err);  // does not fit
  CHECK_MESSAGE(linted.out.find("mesh 8 replicas") != std::string::npos, linted.out);
}

TEST_CASE("what a flag and the file both decide is refused; a file that is none is bad input") {
  const Program program;
  (void)program.run(
      "printf 'distributed_type: FSDP\\nnum_processes: 8\\nfsdp_config:\\n  fsdp_version: 2\\n' > c.yaml");
  const Answer both = program.run("fsdp-plan lint c.yaml" + kModel + "--gpus 16 --seq-len 2048");
  CHECK(both.code == 2);
  CHECK(both.err.find("--gpus: 16 contradicts c.yaml: num_processes, which is 8") != std::string::npos);
  CHECK(program.run("fsdp-plan lint c.yaml" + kModel + "--gpus 08 --seq-len 2k").code == 1);  // does not fit
  (void)program.run("printf '[training]\\nlocal_batch_size = 1\\nglobal_batch_size = 16\\nseq_len = 2048\\n' > l.toml");
  const std::string length = "fsdp-plan lint l.toml" + kModel + "--gpus 8 --global-batch 016 --seq-len ";
  const Answer same = program.run(length + "2k");
  CHECK_MESSAGE(same.code == 0, same.err);
  CHECK(program.run(length + "4k").err.find("--seq-len: 4k contradicts l.toml: training.seq_len, which is 2048") !=
        std::string::npos);
  CHECK(program.run("fsdp-plan lint absent.yaml" + kModel).code == 2);
  CHECK(program.run("echo hello > h; fsdp-plan lint h" + kModel).code == 2);
  for (const std::string flag : {"--wrap root", "--reshard-after-forward false"}) {
    (void)program.run("echo '{\"model.layers.*\": \"free_full_weight\"}' > rules.json");
    const Answer other = program.run("fsdp-plan lint rules.json" + kModel + "--gpus 8 --seq-len 2048 " + flag);
    CHECK(other.code == 2);
    CHECK_MESSAGE(other.err.find(flag.substr(0, flag.find(' ')) + ": contradicts rules.json") != std::string::npos,
                  other.err);
  }
  const Answer listed = program.run("fsdp-plan lint rules.json" + kModel + "--gpus 8 --seq-len 2048");
  CHECK(listed.out.find("wrap as listed (33 units)") != std::string::npos);
  CHECK(listed.out.find("\nunits ") != std::string::npos);
  CHECK(program.run("echo 'train.py --training.seq_len 128 --no-a.b' > no; fsdp-plan lint no" + kModel).code == 0);
  const Answer fine = program.run("fsdp-plan lint c.yaml" + kModel + "--seq-len 2048");
  CHECK(fine.out.find("Note: Accelerate 1.14 and later also makes units") != std::string::npos);
  CHECK(fine.out.find("A better plan ") != std::string::npos);
}
