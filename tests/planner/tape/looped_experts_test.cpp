// Mixtral as transformers 4 computes its experts, in a loop: what is alive at most, against recordings
// (tests/torch/early/record_hf_experts.py).
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/graph/experts.h"
#include "models/graph/lora.h"
#include "models/implementation.h"
#include "planner/lowering/tape/tape.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using namespace fsdp::testing;
using Json = nlohmann::json;

namespace {

const Json& cases() {
  static const Json all = Json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/hf_experts_4.48.json")).at("cases");
  return all;
}

ModelGraph model_of(const Json& c) {
  const Json config = {{"model_type", "mixtral"},
                       {"vocab_size", c["vocab"]},
                       {"hidden_size", c["hidden"]},
                       {"intermediate_size", c["inner"]},
                       {"num_hidden_layers", c["layers"]},
                       {"num_attention_heads", c["heads"]},
                       {"num_key_value_heads", c["kv_heads"]},
                       {"num_local_experts", c["experts"]},
                       {"num_experts_per_tok", c["top_k"]},
                       {"sliding_window", nullptr}};
  ModelGraph model = model_from_config(config.dump(), "golden");
  if (c["adapters"])
    model =
        add_lora(std::move(model), parse_lora("rank=8,alpha=8,targets=q_proj+k_proj+v_proj+o_proj", "lora"), "lora");
  if (c["adapters"] && c["recomputed"] == "reentrant") model = require_input_gradients(std::move(model));
  return with_looped_experts(std::move(model));
}

// Within 0.1 %, or the targets, which are made with the loss, and the table of angles.
bool close(std::int64_t ours, std::int64_t theirs, const Workload& w) {
  return near(ours, theirs) || std::abs(ours - theirs) <= 8 * w.tokens() + 1024;
}

}  // namespace

TEST_CASE("peaks and saved bytes of Mixtral with its experts in a loop are those of transformers 4") {
  REQUIRE(cases().size() == 31);
  const Implementation& then = copying_logits(before_torch_2_11(hf_4_implementation()), /*cast_first=*/false);
  REQUIRE(&then != &hf_4_implementation());
  for (const Json& row : cases()) {
    const Json& c = row["config"];
    if (c["name"] == "operators") continue;
    CAPTURE(c["name"].get<std::string>());
    const ModelGraph model = model_of(c);
    check_graph(model, "test");
    const Workload w{c["sequences"], c["seq_len"], 2};
    const bool again = c["recomputed"] != "";
    const std::vector<std::int32_t> checkpointed = again ? blocks_of(model) : std::vector<std::int32_t>{};
    const Tape tape = make_tape(model, then, w, DType::bf16, checkpointed, CheckpointPolicy::full, 1, {},
                                {.used = c["recomputed"] == "reentrant"});
    const Recorded mine = as_recorded(tape, model, w, again);
    for (const auto& [what, ours] : {std::pair("saved", mine.saved),
                                     {"end", mine.end},
                                     {"forward_peak", mine.forward_peak},
                                     {"backward_peak", mine.backward_peak}}) {
      CAPTURE(std::string(what));
      CAPTURE(ours);
      CHECK(close(ours, row[what], w));
    }
  }
}

TEST_CASE(
    "kernels of a mixture in a loop are the operators that transformers 4 calls, and the host waits once per expert") {
  const Json& row = cases().back();
  REQUIRE(row["config"]["name"] == "operators");
  const auto launches = [](const Json& operators) {
    // Checks that PyTorch leaves out on a GPU, the recorder's own gradient, and operators of several kernels.
    const std::map<std::string, int> kernels = {
        {"max", 0}, {"min", 0}, {"ones_like", 0}, {"nonzero", 5}, {"index_put", 7}};
    int sum = 0;
    for (const auto& [name, count] : operators.items()) {
      const auto found = kernels.find(name);
      sum += count.get<int>() * (found == kernels.end() ? 1 : found->second);
    }
    return sum;
  };
  const ModelGraph model = model_of(row["config"]);
  const Workload w{row["config"]["sequences"], row["config"]["seq_len"], 2};
  int forward = 0, backward = 0, reads = 0, experts = 0;
  std::int64_t rows_of_experts = 0;
  bool mixture = false;
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const Op& op = model.ops[i];
    mixture = mixture || (i + 1 < model.ops.size() && model.ops[i + 1].kind == OpKind::moe_route);
    if (!mixture) continue;
    if (op.kind == OpKind::add) break;  // to what the block was called with
    const OpFacts f = facts(hf_4_implementation(), op, w, model);
    forward += f.forward_launches, backward += f.backward_launches, reads += f.forward_reads;
    experts += op.kind == OpKind::moe_combine ? 1 : 0;
    if (op.kind == OpKind::moe_dispatch) rows_of_experts += rows(op.shape.experts, w);
  }
  CHECK(experts == 8);
  CHECK(reads == 8);
  CHECK(rows_of_experts == 2 * w.tokens());
  CHECK(forward == launches(row["forward"]));
  // Sums of gradients are operations of their own; the router's backward counts three more.
  CHECK(backward == launches(row["backward"]) - row["backward"]["add"].get<int>() + 3);
}
