// Whole models of further families against transformers (tests/torch/record_saved.py): what is saved, and the peaks of
// forward and backward, with and without checkpointing.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/implementation.h"
#include "tests/planner/torch/tape_replay.h"

using namespace fsdp;
using namespace fsdp::testing;
using nlohmann::json;

namespace {

// hf without what a kernel allocates inside itself, which the recorder cannot see.
OpFacts embedding_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(hf_implementation(false), op, w);
  f.backward_scratch_bytes = 0;
  return f;
}
OpFacts attention_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(hf_implementation(false), op, w);
  const std::int64_t inside = w.tokens() * op.shape.heads * 4 * (1 + op.shape.head_dim);  // delta and dq in fp32
  f.backward_scratch_bytes -= inside;
  if (f.attention == AttentionKernel::masked) return f;
  f.backward_scratch_bytes = 0;  // dk and dv of all heads, too
  f.backward_inside.bytes[0] = 0;
  return f;
}

std::int64_t angles(const ModelGraph& m, const Workload& w) {  // cosines and sines, once for all layers of a theta
  std::vector<double> thetas;
  std::int64_t bytes = 0;
  for (const Op& op : m.ops) {
    const OpShape& s = op.shape;
    if (op.kind != OpKind::rotary || std::find(thetas.begin(), thetas.end(), s.theta) != thetas.end()) continue;
    thetas.push_back(s.theta);
    bytes += 2 * w.seq_len * (s.rotated > 0 ? s.rotated : s.head_dim) * (s.wide_angles ? 4 : 2);
  }
  return bytes;
}

}  // namespace

TEST_CASE("peaks and saved bytes of each family are PyTorch's") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/models_saved.json"))["families"];
  REQUIRE(golden.size() == 22);
  for (const json& row : golden) {
    CAPTURE(row["name"].get<std::string>());
    CAPTURE(row["checkpointing"].get<std::string>());
    const ModelGraph model = model_from_config(row["config"].dump(), "c");
    const bool eager = row["attention"] == "eager", again = row["checkpointing"] != "none";
    const Workload w{row["sequences"], row["seq_len"], 2};
    std::vector<std::int32_t> checkpointed;
    for (std::size_t m = 0; again && m < model.modules.size(); ++m)
      if (model.modules[m].block) checkpointed.push_back(static_cast<std::int32_t>(m));
    Implementation i = eager ? hf_eager_attention_implementation() : hf_implementation(false);
    i.rules[static_cast<std::size_t>(OpKind::embedding)] = embedding_outside;
    if (!eager) i.rules[static_cast<std::size_t>(OpKind::attention)] = attention_outside;
    const Tape tape = make_tape(model, i, w, DType::bf16, checkpointed);
    const Replay mine = replay(tape, model);
    const std::size_t loss = tape.forward_of.back();
    const auto during = mine.during.begin(), backward = during + static_cast<std::ptrdiff_t>(loss) + 1;
    const std::int64_t besides = 8 * w.tokens() + angles(model, w) + (again ? 8 * w.seq_len : 0);
    CHECK(near(mine.after[loss] + besides, row["saved"]));
    CHECK(near(mine.after.back(), row["end"]));
    // Where a norm ends a block, PyTorch holds one more tensor of the block's width while it computes the block again.
    const std::int64_t hidden = w.tokens() * row["config"]["hidden_size"].get<std::int64_t>() * 2;
    const std::int64_t peak = *std::max_element(backward, mine.during.end()) + besides, theirs = row["backward_peak"];
    const bool norm_last = model.family == "olmo2" || model.family.starts_with("gemma");
    CHECK((near(peak, theirs) || (again && norm_last && peak < theirs && theirs <= peak + hidden + theirs / 1000)));
    // Forward: as in tape_test.cpp, where embedded tokens are held, and nothing is kept in a checkpoint.
    const std::int64_t ours = *std::max_element(during, backward) + besides, forward = row["forward_peak"];
    if (again) CHECK((ours >= forward - forward / 100 && ours <= theirs));
    else CHECK((ours <= forward + forward / 1000 && forward <= ours + hidden + forward / 1000));
  }
}
