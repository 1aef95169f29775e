// Models of prime-rl: their graphs, and what is alive at most, against recordings of the same operators in PyTorch
// (tests/torch/record_saved.py, prime_rl.py).
#include "simulator/published/prime_rl_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/implementations/prime_rl.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using namespace fsdp::testing;
using nlohmann::json;

namespace {

const Implementation& implementation(bool adapted, bool experts) {
  return prime_rl_implementation(AttentionKernel::flash3, adapted ? PrimeRlAdapters::grouped : PrimeRlAdapters::none,
                                 experts ? PrimeRlModel::own : PrimeRlModel::of_transformers);
}

// The recording is of scaled_dot_product_attention, and does not see inside of kernels.
OpFacts embedding_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(implementation(false, true), op, w);
  f.backward_scratch_bytes = 0;
  return f;
}
OpFacts attention_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(implementation(false, true), op, w);
  f.backward_scratch_bytes = 0;
  f.backward_inside.bytes[0] = 0;
  return f;
}
// Nor is its loss prime-rl's, which holds the logits.
OpFacts loss_outside(const Op& op, const Workload& w) { return facts(find_implementation("hf", false, "test"), op, w); }

}  // namespace

TEST_CASE("peaks and saved bytes of experts and their adapters are PyTorch's") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/models/saved.json"))["prime_rl"];
  REQUIRE(golden.size() == 6);
  for (const json& row : golden) {
    CAPTURE(row["name"].get<std::string>());
    CAPTURE(row["checkpointing"].get<std::string>());
    const bool adapted = row.contains("lora"), again = row["checkpointing"] != "none";
    const bool experts = row["config"].contains("num_experts");
    ModelGraph model = model_from_config(row["config"].dump(), "c");
    if (experts) model = separate_gate_and_up(std::move(model));
    if (adapted) {
      const LoraSpec lora = parse_lora(row["lora"].get<std::string>(), "lora");
      model = add_lora(std::move(model), lora, "lora");
      model = experts ? adapt_experts(std::move(model), lora.rank) : hold_adapters(std::move(model), 4);
    }
    check_graph(model, "test");
    const Workload w{row["sequences"], row["seq_len"], 2};
    std::vector<std::int32_t> checkpointed;
    for (std::size_t m = 0; again && m < model.modules.size(); ++m)
      if (model.modules[m].block) checkpointed.push_back(static_cast<std::int32_t>(m));
    Implementation i = implementation(adapted, experts);
    i.rules[static_cast<std::size_t>(OpKind::embedding)] = embedding_outside;
    i.rules[static_cast<std::size_t>(OpKind::attention)] = attention_outside;
    i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = loss_outside;
    const Tape tape = make_tape(model, i, w, DType::bf16, checkpointed);
    const Replay mine = replay(tape, model);
    const std::size_t loss = tape.forward_of.back();
    const auto during = mine.during.begin(), backward = during + static_cast<std::ptrdiff_t>(loss) + 1;
    const std::int64_t besides = 8 * w.tokens() + angles(model, w) + (again ? 8 * w.seq_len : 0);
    const auto same = [&](const char* what, std::int64_t ours) {
      CAPTURE(std::string(what));
      CAPTURE(ours);
      CHECK(near(ours, row[what]));
    };
    same("saved", mine.after[loss] + besides);
    same("end", mine.after.back());
    same("backward_peak", *std::max_element(backward, mine.during.end()) + besides);
    // Forward, as in tape_test.cpp: embedded tokens are held, or nothing is kept in a checkpoint.
    const std::int64_t ours = *std::max_element(during, backward) + besides, forward = row["forward_peak"];
    const std::int64_t hidden = w.tokens() * row["config"]["hidden_size"].get<std::int64_t>() * 2;
    CAPTURE(ours);
    CAPTURE(forward);
    if (again) CHECK((ours >= forward - forward / 100 && ours <= row["backward_peak"].get<std::int64_t>()));
    else CHECK((ours <= forward + forward / 1000 && forward <= ours + hidden + forward / 1000));
  }
}
