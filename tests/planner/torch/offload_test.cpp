// Where copies of inputs to host memory and back lie among the forwards of recomputed blocks, and what they hold, is
// what PyTorch does: tests/torch/golden/offload_order.json (tests/torch/record_offload.py).
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

// The block that a graph op belongs to, by name; -1: none.
std::int64_t block_of(const ModelGraph& model, std::int32_t op, std::int64_t blocks) {
  const std::int32_t id = model.ops[static_cast<std::size_t>(op)].module;
  if (id < 0) return -1;
  const std::string& module = model.modules[static_cast<std::size_t>(id)].name;
  for (std::int64_t b = 0; b < blocks; ++b)
    if (module.starts_with("model.layers." + std::to_string(b) + ".")) return b;
  return -1;
}

}  // namespace

TEST_CASE("copies of inputs lie before the forward and before the recomputation of their block, as in PyTorch") {
  const Json golden = Json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/offload_order.json"));
  REQUIRE(golden["cases"].size() == 3);
  for (const Json& recorded : golden["cases"]) {
    const Json& c = recorded["config"];
    CAPTURE(c["name"].get<std::string>());
    const auto blocks = c["blocks"].get<std::int64_t>();
    const ModelGraph model = small_llama({.layers = static_cast<int>(blocks), .hidden = c["hidden"].get<int>()});
    ShardingPlan plan = naive_plan(model, {.ranks = 2,
                                           .seq_len = c["tokens"].get<std::int64_t>(),
                                           .micro_batches = {c["sequences"].get<std::int64_t>()}});
    plan.param_dtype = DType::f32;
    set_checkpointing(plan, model, "full", "test");
    for (const Json& b : c["offloaded"])
      plan.offload_activations.push_back("model.layers." + std::to_string(b.get<std::int64_t>()));
    check(plan, model);
    const Program program = lower(model, plan, find_implementation("hf", false, "test"));
    const Step& step = program.steady_step;
    Json events = Json::array(), bytes = Json::array();
    for (const Operation& op : step.ops) {
      const bool out = op.action == Action::offload_activation, in = op.action == Action::fetch_activation;
      const bool runs = op.action == Action::forward || op.action == Action::recompute;
      if (!out && !in && !runs) continue;
      const Json event = {out ? "offload" : in ? "fetch" : "run", block_of(model, op.graph_op, blocks)};
      if (event[1] == -1 || (runs && !events.empty() && events.back() == event)) continue;
      events.push_back(event);
      if (out) bytes.push_back(program.buffers[static_cast<std::size_t>(step.args_of(op)[1].buffer)].bytes);
    }
    // The last block runs again right after its forward: two runs that look like one.
    Json expected = Json::array();
    for (const Json& e : recorded["events"])
      if (expected.empty() || e != expected.back()) expected.push_back(e);
    CHECK(events == expected);
    CHECK(bytes == recorded["bytes"]);
  }
}
