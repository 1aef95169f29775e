// What LitGPT's and torchtune's models hold for backward, and around their losses (recorded by
// tests/torch/early/record_litgpt.py and record_torchtune.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/lowering/tape/tape.h"
#include "planner/plan/naive_plan.h"
#include "simulator/engine/memory.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

ModelGraph model_of(const Json& c) {
  const Json config = {{"model_type", "llama"},
                       {"vocab_size", c["vocab"]},
                       {"hidden_size", c["hidden"]},
                       {"intermediate_size", c["inner"]},
                       {"num_hidden_layers", c["layers"]},
                       {"num_attention_heads", c["heads"]},
                       {"num_key_value_heads", c["kv_heads"]}};
  return model_from_config(config.dump(), "golden");
}

Json cases(const std::string& golden) {
  return Json::parse(std::ifstream(std::string(FSDP_TESTS_DIR) + "/torch/golden/" + golden + ".json")).at("cases");
}

// Not less than half a percent less, and at most so many thousandths more.
bool near(std::int64_t ours, const Json& theirs, std::int64_t thousandths) {
  const std::int64_t said = theirs.get<std::int64_t>();
  return ours >= said - said / 200 && ours <= said + said * thousandths / 1000;
}

Workload work_of(const Json& c) { return {c["sequences"], c["seq_len"], 2}; }

std::int64_t after_forward(const Json& c, const Implementation& i) {
  const ModelGraph model = model_of(c);
  const Tape tape = make_tape(model, i, work_of(c), DType::bf16, {});
  return testing::replay(tape, model, /*gradient_bytes=*/0).after[tape.forward_of.back()];
}

}  // namespace

TEST_CASE("keys and values of all heads are kept; of LitGPT also the product they are cut from, and a result twice") {
  int compared = 0;
  for (const std::string golden : {"litgpt_2.4", "litgpt_2.1", "torchtune"})
    for (const Json& row : cases(golden)) {
      const Json& c = row["config"];
      if (row.contains("saved")) continue;
      CAPTURE(golden);
      CAPTURE(c["name"].get<std::string>());
      const bool tune = golden == "torchtune", benchmark = !tune && !c["fabric"];
      const LitGptLoop loop = golden == "litgpt_2.1" ? LitGptLoop::fabric_2023
                              : benchmark            ? LitGptLoop::benchmark
                                                     : LitGptLoop::fabric;
      const Implementation& stack = tune ? torchtune_implementation(false, false) : litgpt_implementation(loop, false);
      const ModelGraph model = model_of(c);
      const Tape tape = make_tape(model, stack, work_of(c), DType::bf16, {});
      testing::Replay mine = testing::replay(tape, model, /*gradient_bytes=*/0);
      const auto loss = static_cast<std::ptrdiff_t>(tape.forward_of.back());
      const auto during = mine.during.begin();
      // What the loop holds over the step is not the tape's.
      const std::int64_t logits = benchmark ? work_of(c).tokens() * c["vocab"].get<std::int64_t>() * 2 : 0;
      const std::int64_t after = mine.after[tape.forward_of.back()] + logits,
                         forward = *std::max_element(during, during + loss + 1),
                         backward = *std::max_element(during + loss + 1, mine.during.end()) + logits;
      CAPTURE(after);
      CAPTURE(forward);
      CAPTURE(backward);
      CHECK(near(after, row["after_forward"], 2));
      CHECK(near(std::max(forward, after), row["forward_peak"], 10));
      CHECK(near(backward, row["backward_peak"], 25));  // q, k and v turn one after the other there
      ++compared;
    }
  CHECK(compared == 16);
}

TEST_CASE("compiled their blocks keep the same of attention") {
  int compared = 0;
  for (const std::string golden : {"litgpt_2.4", "torchtune"})
    for (const Json& row : cases(golden)) {
      if (!row.contains("saved")) continue;
      Json c = row["config"];
      CAPTURE(golden);
      CAPTURE(c["name"].get<std::string>());
      const Implementation& compiled = golden == "torchtune" ? torchtune_implementation(true, false)
                                                             : litgpt_implementation(LitGptLoop::benchmark, true);
      std::int64_t of_a_block = -work_of(c).tokens() * c["hidden"].get<std::int64_t>() * 2;  // its input
      for (const int layers : {1, 2}) {
        c["layers"] = layers;
        of_a_block += (layers == 2 ? 1 : -1) * after_forward(c, compiled);
      }
      CAPTURE(of_a_block);
      CHECK(near(of_a_block, row["saved"], 2));
      ++compared;
    }
  CHECK(compared == 4);
}

TEST_CASE("without gradient_as_bucket_view ddp holds gradients twice, where it has something to reduce") {
  const ModelGraph model = model_of(cases("litgpt_2.4")[0]["config"]);
  for (const std::int64_t ranks : {1, 4}) {
    const ShardingPlan plan =
        naive_plan(model, {.ranks = ranks, .seq_len = 64, .micro_batches = {1}, .dialect = Dialect::ddp});
    Implementation views = litgpt_implementation(LitGptLoop::fabric, false);
    views.ddp_copies_gradients = false;
    const auto peak = [&](const Implementation& i) { return replay_memory(lower(model, plan, i)).peak; };
    const std::int64_t gradients = model.parameter_count() * size_of(plan.master_dtype);
    CHECK(peak(litgpt_implementation(LitGptLoop::fabric, false)) - peak(views) == (ranks > 1 ? gradients : 0));
  }
}
