// A model in 4 bits as trl prepares it for autocast against PyTorch: bytes that are kept, and alive at the worst moment
// of forward and backward (recorded by tests/torch/early/record_prepared.py).
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/implementation.h"
#include "planner/lowering/tape/tape.h"
#include "planner/tensor/local_model.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using namespace fsdp::testing;
using nlohmann::json;

namespace {

// As recorded: without what attention's kernel allocates inside itself.
OpFacts attention_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(hf_implementation(false), op, w);
  f.backward_scratch_bytes = 0;
  f.backward_inside = {};
  return f;
}

ModelGraph model_of(const json& c) {
  const json config = {
      {"model_type", c["family"]},         {"vocab_size", c["vocab"]},         {"hidden_size", c["hidden"]},
      {"intermediate_size", c["inner"]},   {"num_hidden_layers", c["layers"]}, {"num_attention_heads", c["heads"]},
      {"num_key_value_heads", c["heads"]}, {"tie_word_embeddings", false},     {"sliding_window", nullptr}};
  const std::string lora =
      fmt::format("rank={},dropout={},targets={},base={},prepared", c["rank"].get<int>(), c["dropout"].get<double>(),
                  c["targets"].get<std::string>(), c["base"].get<std::string>());
  return add_lora(model_from_config(config.dump(), "golden"), parse_lora(lora, "lora"), "lora");
}

// Within 0.2 %, but for the leaf: logits of last tokens, of which PyTorch leaves one in 512 out.
bool near(std::int64_t ours, std::int64_t theirs, std::int64_t leaf) {
  const auto close = [&](std::int64_t bytes) { return std::abs(bytes - theirs) <= theirs / 500; };
  return close(ours) || close(ours + leaf);
}

ShardingPlan under_ddp() {
  ShardingPlan plan;
  plan.dialect = Dialect::ddp;
  plan.master_dtype = DType::bf16, plan.trained_dtype = plan.reduce_dtype = DType::f32;
  return plan;
}

}  // namespace

TEST_CASE("peaks and saved bytes of a prepared model under autocast are PyTorch's") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/prepared.json"));
  REQUIRE(golden["cases"].size() == 16);
  Implementation then = copying_logits(hf_implementation(false), /*cast_first=*/false);
  then.rules[static_cast<std::size_t>(OpKind::attention)] = attention_outside;
  for (const json& row : golden["cases"]) {
    const json& c = row["config"];
    CAPTURE(c["name"].get<std::string>());
    const ModelGraph model = local_model(model_of(c), under_ddp(), then);
    REQUIRE(model.adapter_casts);
    const bool again = c["recomputed"];
    const Workload w{c["sequences"], c["seq_len"], 2};
    const Tape tape = make_tape(model, then, w, DType::bf16, again ? blocks_of(model) : std::vector<std::int32_t>{},
                                CheckpointPolicy::full, 1, {}, Reentrant{true});
    const Replay mine = replay(tape, model, /*gradient_bytes=*/0);
    const std::size_t loss = tape.forward_of.back();
    // Of several sequences PyTorch copies logits and targets without the last token, for backward; a checkpoint keeps
    // positions; what the embedding has made is a leaf, which lives until backward has ended.
    const std::int64_t positions = again ? 8 * w.seq_len : 0, embedded = 2 * w.tokens() * c["hidden"].get<int>(),
                       leaf = again ? 0 : embedded, last = 4 * w.sequences * c["vocab"].get<int>(),
                       targets = 8 * w.sequences * (w.seq_len - 1), besides = angles(model, w) + positions;
    CHECK(mine.after[loss] + besides + leaf + targets - last == row["after_forward"].get<std::int64_t>() - 4);
    const auto during = mine.during.begin(), backward = during + static_cast<std::ptrdiff_t>(loss) + 1;
    CHECK(near(*std::max_element(during, backward) + besides, row["forward_peak"], leaf));
    CHECK(near(*std::max_element(backward, mine.during.end()) + besides, row["backward_peak"], leaf));
  }
}
