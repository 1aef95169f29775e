// Lowered programs against what PyTorch's fully_shard really issued (tests/torch/golden/fsdp2_order.json, recorded by
// tests/torch/record_fsdp2.py): order, element counts and dtypes of every collective, when parameters are freed, shard shapes.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/implementation.h"
#include "planner/lower.h"
#include "tests/toy_model.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

ShardingPlan plan_of(const Json& c, const Json& units, const ModelGraph& model) {
  const Json& config = c;
  ShardingPlan plan = toy::plan(model, config.at("shard"), config.value("replicate", 1));
  plan.units.clear();
  const Reshard reshard = parse_reshard(config.at("reshard").get<std::string>(), "golden");
  for (const Json& u : units) plan.units.push_back({u.get<std::vector<std::string>>(), reshard});
  plan.micro_batches.assign(config.at("micro_batches").get<std::size_t>(), 2);
  plan.param_dtype = parse_dtype(config.at("param_dtype").get<std::string>(), "golden");
  plan.reduce_dtype = parse_dtype(config.at("reduce_dtype").get<std::string>(), "golden");
  plan.grad_sync = parse_grad_sync(config.value("grad_sync", "every"), "golden");
  plan.forward_prefetch = config.value("forward_prefetch", 0);
  if (config.value("checkpoint", false))
    for (int b = 0; b < config.at("blocks").get<int>(); ++b) plan.checkpointed.push_back("layers." + std::to_string(b));
  return plan;
}

// The first buffer among an operation's arguments of this kind: its elements and dtype.
Json event(const char* what, const Operation& op, const Program& program, std::int32_t buffer) {
  const Buffer& b = program.buffers[static_cast<std::size_t>(buffer)];
  return {what, op.unit, b.bytes / size_of(b.dtype), std::string(name(b.dtype))};
}

Json events_of(const Program& program) {
  Json events = Json::array();
  const Step& step = program.steady_step;
  for (const Operation& op : step.ops) {
    const auto args = step.args_of(op);
    if (op.action == Action::all_gather) events.push_back(event("all_gather", op, program, args[0].buffer));
    if (op.action == Action::reduce_scatter && program.layouts[0].shards > 1) events.push_back(event("reduce_scatter", op, program, args[0].buffer));
    if (op.action == Action::all_reduce) events.push_back(event("all_reduce", op, program, args[0].buffer));
    std::int32_t last = -1;
    for (std::int32_t b : step.frees_of(op)) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
      if (buffer.kind != BufferKind::unsharded_parameter || buffer.unit == last) continue;
      last = buffer.unit;
      events.push_back({"free", last, 0, ""});
    }
  }
  return events;
}

}  // namespace

TEST_CASE("fsdp2 issues what PyTorch's fully_shard issues") {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/fsdp2_order.json");
  REQUIRE(file);
  const Json golden = Json::parse(file);
  REQUIRE(golden.at("cases").size() >= 20);
  for (const Json& c : golden.at("cases")) {
    const Json& config = c.at("config");
    CAPTURE(config.at("name").get<std::string>());
    const ModelGraph model = toy::model({.blocks = config.at("blocks"), .vocab = config.at("vocab"), .width = config.at("width"),
                                         .hidden = config.at("hidden"), .tied = config.value("tied", false)});
    const ShardingPlan plan = plan_of(config, c.at("units"), model);
    check(plan, model);
    const Program program = lower(model, plan, find_implementation("native", false, "test"));
    CHECK(events_of(program) == c.at("events"));
    std::size_t compared = 0;
    for (const UnitLayout& layout : program.layouts) {
      for (const ShardedParam& p : layout.params) {
        const Parameter& parameter = model.parameters[static_cast<std::size_t>(p.param)];
        CHECK(c.at("local_shapes").at(parameter.name) == Json{p.local_rows(0), p.row_elements});
        ++compared;
      }
    }
    CHECK(compared == c.at("local_shapes").size());
  }
}
