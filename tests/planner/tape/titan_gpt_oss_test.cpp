// gpt-oss in torchtitan of 2026: what is alive, and what a compiled block keeps, against recordings of the same
// operators (tests/torch/record_titan_gpt_oss.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/catalog.h"
#include "models/graph/experts.h"
#include "planner/lowering/tape/tape.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using namespace fsdp::testing;
using Json = nlohmann::json;

namespace {

const Json& cases() {
  static const Json all = Json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/titan_gpt_oss.json")).at("cases");
  return all;
}

ModelGraph model_of(const Json& c, const Implementation& titan) {
  const Json config = {{"model_type", "gpt_oss"},
                       {"vocab_size", c["vocab"]},
                       {"hidden_size", c["hidden"]},
                       {"intermediate_size", c["inner"]},
                       {"num_hidden_layers", c["layers"]},
                       {"num_attention_heads", c["heads"]},
                       {"num_key_value_heads", c["kv_heads"]},
                       {"head_dim", c["head_dim"]},
                       {"num_local_experts", c["experts"]},
                       {"num_experts_per_tok", c["top_k"]},
                       {"sliding_window", 128}};
  return titan.own_form(model_from_config(config.dump(), "golden"));
}

}  // namespace

TEST_CASE("saved bytes and peaks of gpt-oss by torchtitan's operators are PyTorch's") {
  REQUIRE(cases().size() == 7);
  const Implementation& titan = find_implementation("torchtitan", false, "test");
  for (const Json& row : cases()) {
    const Json& c = row["config"];
    if (c["name"] == "a compiled block") continue;
    CAPTURE(c["name"].get<std::string>());
    const ModelGraph model = model_of(c, titan);
    check_graph(model, "test");
    const Workload w{c["sequences"], c["seq_len"], 2};
    const bool again = c["recomputed"];
    const std::vector<std::int32_t> checkpointed = again ? blocks_of(model) : std::vector<std::int32_t>{};
    const Tape tape = make_tape(model, titan, w, DType::bf16, checkpointed);
    const Replay mine = replay(tape, model);
    const std::size_t loss = tape.forward_of.back();
    const auto backward = mine.during.begin() + static_cast<std::ptrdiff_t>(loss) + 1;
    for (const auto& [what, ours] : {std::pair("saved", mine.after[loss]),
                                     {"end", mine.after.back()},
                                     {"forward_peak", *std::max_element(mine.during.begin(), backward)},
                                     {"backward_peak", *std::max_element(backward, mine.during.end())}}) {
      CAPTURE(std::string(what));
      CAPTURE(ours);
      const std::int64_t theirs = row[what];
      // A block that runs again is counted with what its SwiGLU would save.
      if (again && std::string(what) == "forward_peak") CHECK((ours >= theirs - 64 && ours < theirs * 1.1));
      else CHECK(near(ours, theirs));
    }
  }
}

TEST_CASE("what a compiled block of gpt-oss keeps is what autograd's node of it saves") {
  const Json& row = cases().back();
  REQUIRE(row["config"]["name"] == "a compiled block");
  const Implementation& compiled = find_implementation("torchtitan", true, "test");
  const ModelGraph model = model_of(row["config"], compiled);
  const Workload w{row["config"]["sequences"], row["config"]["seq_len"], 2};
  const auto block = std::find_if(model.modules.begin(), model.modules.end(), [](const Module& m) { return m.block; });
  std::set<std::int32_t> kept, wide, given;
  std::int64_t saved = 0;
  for (std::int32_t i = 0; i < block->op_begin; ++i)
    for (const std::int32_t t : model.ops[at(i)].outputs) given.insert(t);
  for (std::int32_t i = block->op_begin; i < block->op_end; ++i) {
    const Op& op = model.ops[at(i)];
    const OpFacts f = facts(compiled, op, w);
    saved += f.saved_extra_bytes;
    for (std::size_t k = 0; k < op.inputs.size(); ++k)
      if ((f.saved_inputs >> k & 1) != 0 && !given.contains(op.inputs[k])) kept.insert(op.inputs[k]);
    for (std::size_t k = 0; k < op.outputs.size(); ++k)
      if ((f.saved_outputs >> k & 1) != 0) kept.insert(op.outputs[k]);
    if (op.kind == OpKind::moe_route) wide.insert(op.outputs[0]);
  }
  for (const std::int32_t t : kept) {
    const Tensor& tensor = model.tensors[at(t)];
    saved += elements(tensor, w) * (tensor.kind == TensorKind::ids ? 8 : wide.contains(t) ? 4 : 2);
  }
  const Json& c = row["config"];
  const std::int64_t biases = 2 * (c["experts"].get<std::int64_t>() + 1) * 2 * c["inner"].get<std::int64_t>();
  CHECK(saved + biases == row["saved"].get<std::int64_t>());  // of gate and up, with a row of zeros
}
