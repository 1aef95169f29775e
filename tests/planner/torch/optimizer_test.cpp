// Optimizers against PyTorch's and torchao's on FSDP2's shards (tests/torch/record_optimizers.py): states, and what a
// step allocates beside them, to the byte.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "planner/layout/optimizer_state.h"
#include "planner/lower.h"
#include "planner/plan.h"
#include "planner/wrap.h"
#include "simulator/allocator/replay.h"
#include "tests/planner/torch/recorded_llama.h"

namespace fsdp {
namespace {

using Json = nlohmann::json;
using Bytes64 = std::vector<std::int64_t>;

Json recorded() {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/optimizers.json");
  REQUIRE(file);
  return Json::parse(file);
}

struct Case {
  ModelGraph model;
  ShardingPlan plan;
  std::int64_t rank = 0;
};

Case case_of(const Json& c) {
  Case made;
  made.model = recorded_llama(c);
  ShardingPlan& plan = made.plan;
  plan.model_name = made.model.name;
  plan.model_digest = made.model.digest();
  plan.mesh = {{"shard", c["shard"]}};
  plan.units = wrap(made.model, "block", "golden");
  plan.micro_batches = {1};
  plan.seq_len = 16;
  plan.optimizer.kind = parse_optimizer(c["optimizer"].get<std::string>(), "golden");
  plan.optimizer.momentum = c.value("momentum", 0.0);
  plan.optimizer.weight_decay = c.value("weight_decay", 0.1);
  made.rank = c["rank"];
  check(plan, made.model, "golden");
  return made;
}

// Bytes above those of before the optimizer, after each change, during it.
Bytes64 points_of(const Step& step, const Program& program) {
  Bytes64 points;
  std::int64_t now = 0;
  for (const Operation& op : step.ops) {
    if (op.action != Action::init_optimizer && op.action != Action::optimizer) continue;
    memory_events(
        step, op, [&](std::int32_t b) { points.push_back(now += program.buffers[static_cast<std::size_t>(b)].bytes); },
        [&](std::int32_t b) { points.push_back(now -= program.buffers[static_cast<std::size_t>(b)].bytes); });
  }
  return points;
}

std::int64_t highest(const Bytes64& points) {
  return points.empty() ? 0 : std::max<std::int64_t>(0, *std::max_element(points.begin(), points.end()));
}

}  // namespace

TEST_CASE("SGD keeps and allocates what torch.optim.SGD does, with and without momentum, decay and foreach") {
  int compared = 0;
  const Json golden = recorded();
  for (const Json& g : golden["cases"]) {
    if (g["config"]["optimizer"] != "sgd") continue;
    const std::string title = g["config"]["name"];
    CAPTURE(title);
    const Case c = case_of(g["config"]);
    const bool foreach = g["config"]["foreach"];
    const Program program =
        lower(c.model, c.plan, find_implementation(foreach ? "torchtitan" : "torch-cpu", false, "test"), c.rank);
    std::map<std::string, std::int64_t> held;
    for (const Json& e : g["local_elements"]) held[e[0]] = e[1];
    for (const UnitLayout& layout : program.layouts)
      for (const ShardedParam& p : layout.params)
        CHECK(p.local_elements(c.rank) == held.at(c.model.parameters[static_cast<std::size_t>(p.param)].name));
    const Bytes64 first = points_of(program.first_step, program), steady = points_of(program.steady_step, program);
    const std::int64_t kept = g["first"]["kept"], peak = g["steady"]["peak"];
    CHECK((first.empty() ? 0 : first.back()) == kept);
    CHECK((steady.empty() ? 0 : steady.back()) == g["steady"]["kept"].get<std::int64_t>());
    CHECK(highest(steady) == peak);
    // A unit's momentum appears at once, PyTorch's loop makes it parameter by parameter: the first step's peak is never
    // less, and never beyond what the next step needs.
    const std::int64_t first_peak = g["first"]["peak"];
    if (foreach) CHECK(highest(first) == first_peak);
    CHECK(highest(first) >= first_peak);
    CHECK(highest(first) <= kept + peak);
    ++compared;
  }
  CHECK(compared == 24);
}

TEST_CASE("8-bit AdamW keeps what torchao's does: codes, scales and a table, or fp32 for small and uneven shards") {
  int compared = 0, in_eight_bits = 0, dense = 0;
  const Json golden = recorded();
  for (const Json& g : golden["cases"]) {
    if (g["config"]["optimizer"] != "adamw-8bit") continue;
    const std::string title = g["config"]["name"];
    CAPTURE(title);
    const Case c = case_of(g["config"]);
    const Program program = lower(c.model, c.plan, find_implementation("torchtitan", false, "test"), c.rank);
    std::map<std::string, Bytes64> states;
    for (const Json& s : g["states"]) states[s[0]] = s[1].get<Bytes64>();
    std::int64_t all = 0;
    for (const auto& [parameter, tensors] : states) {
      (tensors.size() == 3 ? in_eight_bits : dense) += 1;
      for (const std::int64_t bytes : tensors) all += 2 * bytes;
    }
    const Bytes64 first = points_of(program.first_step, program);
    CHECK(first.back() == all);
    for (const Buffer& b : program.buffers) {  // the allocator sees them one by one
      if (b.kind != BufferKind::optimizer_state) continue;
      Bytes64 expected;
      for (const ShardedParam& p : program.layouts[static_cast<std::size_t>(b.unit)].params)
        for (const std::int64_t bytes : states.at(c.model.parameters[static_cast<std::size_t>(p.param)].name))
          expected.push_back(bytes);
      CHECK(tensors_of(b, program) == expected);
    }
    ++compared;
  }
  CHECK(compared == 8);
  CHECK(in_eight_bits > 20);
  CHECK(dense > 20);
}

TEST_CASE("8-bit AdamW is refused where it has no kernel, and on CPUs, where its step is another") {
  const Json golden = recorded();
  for (const Json& g : golden["cases"]) {
    if (g["config"]["optimizer"] != "adamw-8bit") continue;
    const Case c = case_of(g["config"]);
    for (const char* implementation : {"native", "native-cuda", "torch-cpu"}) {
      CAPTURE(implementation);
      CHECK_THROWS_AS((void)lower(c.model, c.plan, find_implementation(implementation, false, "test"), c.rank),
                      InputError);
    }
  }
}

TEST_CASE("a step of 8-bit AdamW allocates what Inductor's code for GPUs does, a parameter at a time") {
  int compared = 0;
  const Json golden = recorded();
  for (const Json& g : golden["cases"]) {
    if (g["config"]["optimizer"] != "adamw-8bit step") continue;
    const std::int64_t elements = g["config"]["elements"];
    CAPTURE(elements);
    CHECK(step_tensors(OptimizerKind::adamw_8bit, elements) == g["allocates"].get<Bytes64>());
    ++compared;
  }
  CHECK(compared >= 4);
}

}  // namespace fsdp
