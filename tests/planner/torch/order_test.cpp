// Lowered programs against what PyTorch's fully_shard really issued (tests/torch/golden/fsdp2_order.json, recorded by
// tests/torch/record_fsdp2.py): order, element counts, dtypes, communicator and reduction of every collective, every
// copy-out, when parameters, gather buffers and reduce-scatter inputs are freed, which gradients a micro-batch leaves
// behind, shard shapes. fsdp2_order_2.9.json and the like: the same of older releases, where these differ.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/implementation.h"
#include "planner/layout/unit_order.h"
#include "planner/lower.h"
#include "planner/tensor/local_model.h"
#include "simulator/engine/memory.h"
#include "simulator/engine/race.h"
#include "tests/support/toy_model.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

using Names = std::vector<std::string>;

void set_unit(Unit& unit, const Json& own) {
  if (own.contains("reshard"))
    unit.reshard_after_forward = parse_reshard(own.at("reshard").get<std::string>(), "golden");
  if (own.contains("grad_sync")) unit.grad_sync = parse_grad_sync(own.at("grad_sync").get<std::string>(), "golden");
  if (own.contains("gradient_divide_factor"))
    unit.gradient_divide_factor = own.at("gradient_divide_factor").get<double>();
  unit.unshard_in_backward = own.value("unshard_in_backward", true);
  unit.reshard_after_backward = own.value("reshard_after_backward", unit.reshard_after_backward);
  unit.forward_prefetch = own.value("forward_prefetch", Names{});
  unit.backward_prefetch = own.value("backward_prefetch", Names{});
  const auto dtype = [&](const char* key) {
    return own.contains(key) ? std::optional(parse_dtype(own.at(key).get<std::string>(), "golden")) : std::nullopt;
  };
  unit.param_dtype = dtype("param_dtype");
  unit.reduce_dtype = dtype("reduce_dtype");
  unit.output_dtype = dtype("output_dtype");
  unit.cast_forward_inputs = own.value("cast_forward_inputs", true);
  unit.shard = own.value("shard", std::int64_t{0});
  if (own.contains("group_of")) {  // and the switches of that unit
    unit.group_of = own.at("group_of").get<std::string>();
    unit.reshard_after_forward = Reshard::automatic;
    unit.reshard_after_backward = true;
  }
}

void set_loop(LoopPlan& loop, const Json& own) {
  loop.unshard_async = own.value("unshard_async", false);
  loop.last_backward = own.value("last_backward", false);
  loop.chunk_head = own.value("chunk_head", false);
  loop.forwards = own.value("forwards", 1);
  loop.unshard = own.value("unshard", Names{});
  loop.reshard = own.value("reshard", Names{});
}

ShardingPlan plan_of(const Json& config, const Json& units, const ModelGraph& model, TorchVersion torch) {
  ShardingPlan plan = toy::plan(model, config.at("shard"), config.value("replicate", 1));
  plan.torch = torch;
  plan.units.clear();
  const Reshard reshard = parse_reshard(config.at("reshard").get<std::string>(), "golden");
  for (const Json& u : units) {
    Unit unit{u.get<Names>(), reshard};
    unit.reshard_after_backward = config.value("reshard_after_backward", true);
    const std::string index = std::to_string(plan.units.size());
    if (config.contains("unit_options") && config.at("unit_options").contains(index))
      set_unit(unit, config.at("unit_options").at(index));
    plan.units.push_back(unit);
  }
  plan.micro_batches.assign(config.at("micro_batches").get<std::size_t>(), 2);
  plan.param_dtype = parse_dtype(config.at("param_dtype").get<std::string>(), "golden");
  plan.reduce_dtype = parse_dtype(config.at("reduce_dtype").get<std::string>(), "golden");
  plan.grad_sync = parse_grad_sync(config.value("grad_sync", "every"), "golden");
  plan.forward_prefetch = config.value("forward_prefetch", 0);
  plan.reduce_scatter_buffers = config.value("reduce_scatter_buffers", 1);
  plan.separate_reduce_scatter = config.value("separate_reduce_scatter", false);
  plan.force_sum_reduction = config.value("force_sum_reduction", false);
  plan.offload = config.value("offload", false);
  if (config.value("clip", false)) plan.clip_norm = 1;
  plan.ignored = config.value("ignored", Names{});
  plan.loss_chunks = config.value("loss_chunks", 1);
  if (config.contains("loop")) set_loop(plan.loop, config.at("loop"));
  const Json dims = config.value("shard_dims", Json::object());
  for (const auto& [parameter, dim] : dims.items()) plan.shard_dims.push_back({parameter, dim.get<std::int64_t>()});
  plan.share_comm_context = config.value("share_comm_context", false);
  if (config.value("checkpoint", false))
    for (const Module& m : model.modules)
      if (m.block) plan.checkpointed.push_back(m.name);
  return plan;
}

std::string text(ReduceOp op) {
  return op == ReduceOp::average ? "average" : op == ReduceOp::sum ? "sum" : "scaled_sum";
}

// What a program issues, in the words of the recording.
class Events {
 public:
  Events(const Program& program, const ModelGraph& model, const ShardingPlan& plan)
      : program_(program), model_(model), plan_(plan), live_(program.buffers.size(), 0) {
    for (const Operation& op : program.steady_step.ops) {
      if (op.action == Action::load_batch && op.micro_batch > 0 && op.micro_batch % plan.loop.forwards == 0) retained();
      for (std::int32_t b : program.steady_step.allocs_of(op)) live_[static_cast<std::size_t>(b)] = 1;
      issued(op);
      for (std::int32_t b : program.steady_step.frees_of(op)) freed(b);
    }
    retained();
  }

  Json events = Json::array();

 private:
  const Buffer& buffer(std::int32_t id) const { return program_.buffers[static_cast<std::size_t>(id)]; }
  static std::int64_t elements(const Buffer& b) { return b.bytes / size_of(b.dtype); }

  Json event(const char* what, const Operation& op, std::int32_t id) const {
    return {what, op.unit, elements(buffer(id)), std::string(name(buffer(id).dtype))};
  }

  Json collective(const char* what, const Operation& op, std::int32_t id) const {
    Json e = event(what, op, id);
    const std::int64_t small = plan_.units[static_cast<std::size_t>(op.unit)].reshard_after_forward.ranks;
    switch (op.comm) {
      case Communicator::shard: e.insert(e.end(), {"shard", plan_.shard()}); break;
      case Communicator::shard_reduce: e.insert(e.end(), {"shard_reduce", plan_.shard()}); break;
      case Communicator::replicate: e.insert(e.end(), {"replicate", plan_.replicate()}); break;
      case Communicator::reshard: e.insert(e.end(), {"reshard", small}); break;
      case Communicator::own_shard: e.insert(e.end(), {"own_shard", plan_.own_shard()}); break;
      case Communicator::own_replicate:
        e.insert(e.end(), {"own_replicate", plan_.data_ranks() / plan_.own_shard()});
        break;
      default: e.push_back("?");
    }
    return e;
  }

  void issued(const Operation& op) {
    const auto args = program_.steady_step.args_of(op);
    if (op.action != Action::keep_shard || op.unit != last_freed_)
      last_freed_ = -1;  // integer reshard: one operation per parameter
    if (op.action == Action::forward || op.action == Action::backward) cast(op, args);
    if (op.action == Action::clip_reduce) {
      const bool own = op.comm == Communicator::own_shard;
      events.push_back(
          {"clip_reduce", -1, 0, "", own ? "own_shard" : "shard", own ? plan_.own_shard() : plan_.shard()});
    }
    if (op.unit < 0) return;
    const UnitLayout& layout = program_.layouts[static_cast<std::size_t>(op.unit)];
    if (op.action == Action::all_gather) events.push_back(collective("all_gather", op, args[0].buffer));
    if (op.action == Action::gather_copy_out) events.push_back({"copy_out", op.unit, 0, ""});
    if (op.action == Action::divide_gradient && args.size() == 1) {
      events.push_back(event("divide", op, args[0].buffer));
      const bool before = buffer(args[0].buffer).kind == BufferKind::reduce_input;
      events.back().push_back(before ? layout.scale.divide_before : layout.scale.divide_after);
    }
    if (op.action == Action::reduce_scatter && (layout.shards > 1 || plan_.torch.before(2, 10))) {
      events.push_back(collective("reduce_scatter", op, args[0].buffer));
      events.back().push_back(text(layout.scale.reduce_scatter));
    }
    if (op.action == Action::all_reduce) {
      events.push_back(collective("all_reduce", op, args[0].buffer));
      events.back().push_back(text(layout.scale.all_reduce));
    }
  }

  void cast(const Operation& op, std::span<const Arg> args) {
    if (model_.ops[static_cast<std::size_t>(op.graph_op)].kind != OpKind::cast) return;
    const bool forward = op.action == Action::forward;
    const std::int32_t made = args[forward ? 1 : 5].buffer;
    events.push_back(event(forward ? "cast" : "cast_gradient", op, made));
  }

  void freed(std::int32_t id) {
    live_[static_cast<std::size_t>(id)] = 0;
    const Buffer& b = buffer(id);
    if (b.kind == BufferKind::unsharded_parameter && b.unit != last_freed_)
      events.push_back({"free", last_freed_ = b.unit, 0, ""});
    if (b.kind == BufferKind::gather) events.push_back({"free_gather", b.unit, elements(b), ""});
    if (b.kind == BufferKind::reduce_input) events.push_back({"free_input", b.unit, elements(b), ""});
  }

  void retained() {
    for (std::size_t u = 0; u < program_.layouts.size(); ++u) {
      for (const ShardedParam& p : program_.layouts[u].params) {
        for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
          const Buffer& b = program_.buffers[i];
          if (live_[i] == 0 || b.param != p.param ||
              (b.kind != BufferKind::gradient && b.kind != BufferKind::gradient_accumulator))
            continue;
          events.push_back({"retained", u, elements(b), std::string(name(b.dtype))});
        }
      }
    }
  }

  const Program& program_;
  const ModelGraph& model_;
  const ShardingPlan& plan_;
  std::vector<char> live_;
  std::int32_t last_freed_ = -1;
};

void same_events(const Json& events, const Json& golden) {
  std::size_t same = 0;
  while (same < events.size() && same < golden.size() && events[same] == golden[same]) ++same;
  CAPTURE(same);
  CAPTURE(same < events.size() ? events[same].dump() : "end");
  CAPTURE(same < golden.size() ? golden[same].dump() : "end");
  CHECK((same == events.size() && same == golden.size()));
}

Json read_golden(const std::string& name) {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/" + name);
  REQUIRE(file);
  return Json::parse(file);
}

void compare_with(const std::string& name, TorchVersion torch, std::size_t cases) {
  const Json golden = read_golden(name);
  REQUIRE(golden.at("cases").size() >= cases);
  for (const Json& c : golden.at("cases")) {
    const Json& config = c.at("config");
    CAPTURE(config.at("name").get<std::string>());
    ModelGraph model = toy::model({.blocks = config.at("blocks"),
                                   .vocab = config.at("vocab"),
                                   .width = config.at("width"),
                                   .hidden = config.at("hidden"),
                                   .tied = config.value("tied", false),
                                   .order = config.value("order", std::vector<int>{})});
    if (config.contains("frozen")) model = freeze(std::move(model), config.at("frozen").get<Names>(), "golden");
    const ShardingPlan plan = plan_of(config, c.at("units"), model, torch);
    check(plan, model);
    const ModelGraph local = local_model(model, plan);
    const Program program = lower(local, plan, find_implementation("native", false, "test"));
    same_events(Events(program, local, plan).events, c.at("events"));
    CHECK(find_races(program).empty());
    (void)replay_memory(program);  // closed
    std::size_t compared = 0;
    for (const UnitLayout& layout : program.layouts) {
      for (const ShardedParam& p : layout.params) {
        const Parameter& parameter = model.parameters[static_cast<std::size_t>(p.param)];
        std::vector<std::int64_t> shape = parameter.shape;
        shape[static_cast<std::size_t>(p.dim)] = p.local_rows(0);
        CHECK(c.at("local_shapes").at(parameter.name) == Json(shape));
        ++compared;
      }
    }
    CHECK(compared == c.at("local_shapes").size());
  }
}

// Roots that share a communication context from their first forward on, or of which the second one holds no units: in
// the other recordings, units of the second root keep a context of their own.
bool shared_by_all(const Json& c) {
  const Json& contexts = c.at("contexts");
  return std::all_of(contexts.begin(), contexts.end(), [](const Json& of_unit) { return of_unit == 0; });
}

// Units in the order in which a step gathers them first: that of their forwards.
std::vector<std::int32_t> first_gathers(const Json& events) {
  std::vector<std::int32_t> units;
  for (const Json& e : events)
    if (e[0] == "all_gather" && std::find(units.begin(), units.end(), e[1].get<std::int32_t>()) == units.end())
      units.push_back(e[1].get<std::int32_t>());
  return units;
}

std::vector<std::int32_t> units_with_parameters(const std::vector<UnitLayout>& layouts) {
  std::vector<std::int32_t> units = execution_order(layouts);
  std::erase_if(units, [&](std::int32_t u) { return layouts[static_cast<std::size_t>(u)].params.empty(); });
  return units;
}

// What the second callback reduces is copied in behind the wait of the first one, which is for every unit's reduction
// (FSDPState._end_backward_iteration waits for _last_post_reduce_events of the whole context): behind all that the
// stream holds by then.
bool last_copy_in_waits_for_all_of(const Program& program, Stream stream) {
  const Step& step = program.steady_step;
  const auto copied = std::find_if(step.ops.rbegin(), step.ops.rend(),
                                   [](const Operation& op) { return op.action == Action::scatter_copy_in; });
  const auto before = std::find_if(copied, step.ops.rend(), [&](const Operation& op) { return op.stream == stream; });
  const auto waits = step.waits_of(*copied);
  return std::find(waits.begin(), waits.end(), static_cast<std::int32_t>(step.ops.rend() - before) - 1) != waits.end();
}

}  // namespace

TEST_CASE("roots that share a communication context issue what PyTorch's do") {
  std::size_t compared = 0;
  const Json recorded = read_golden("roots_order.json");
  for (const Json& c : recorded.at("cases")) {
    if (!shared_by_all(c)) continue;
    const Json& config = c.at("config");
    CAPTURE(config.at("name").get<std::string>());
    const int blocks = config.at("blocks");
    const ModelGraph model = toy::model({.blocks = blocks,
                                         .vocab = config.at("vocab"),
                                         .width = config.at("width"),
                                         .hidden = config.at("hidden"),
                                         .second_half = config.value("head_alone", false) ? 0 : blocks});
    const ShardingPlan plan = plan_of(config, c.at("units"), model, {});
    check(plan, model);
    CHECK(parse_plan(to_json_text(plan), "plan") == plan);
    const Program program = lower(model, plan, find_implementation("native", false, "test"));
    Json golden = c.at("events");  // of these two, no operation is issued
    golden.erase(std::remove_if(golden.begin(), golden.end(),
                                [](const Json& e) { return e[0] == "root_forward" || e[0] == "final_callback"; }),
                 golden.end());
    same_events(Events(program, model, plan).events, golden);
    CHECK(first_gathers(golden) == units_with_parameters(program.layouts));
    if (plan.replicate() > 1) CHECK(last_copy_in_waits_for_all_of(program, Stream::all_reduce));
    CHECK(find_races(program).empty());
    (void)replay_memory(program);
    ++compared;
  }
  CHECK(compared == 11);
}

TEST_CASE("fsdp2 issues what PyTorch's fully_shard issues") { compare_with("fsdp2_order.json", {}, 193); }

TEST_CASE("fsdp2@2.9 issues what PyTorch 2.9 issues") { compare_with("fsdp2_order_2.9.json", {2, 9}, 20); }

TEST_CASE("fsdp2@2.12 issues what PyTorch 2.12 issues") { compare_with("fsdp2_order_2.12.json", {2, 12}, 20); }
