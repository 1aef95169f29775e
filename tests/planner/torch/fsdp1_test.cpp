// Lowered programs against what PyTorch's FullyShardedDataParallel really issued (tests/torch/golden/fsdp1_order.json,
// recorded by tests/torch/record_fsdp1.py): order, sizes, dtypes and streams of casts, all-gathers, frees, reductions
// and divisions; when the host waits and for what; which blocks are marked for which stream; what every operation knows
// to have finished; the layout. fsdp1_order_1.13.json: the same of PyTorch 1.13 (tests/torch/early/record_fsdp1.py).
#include <doctest/doctest.h>

#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "models/implementation.h"
#include "planner/layout/flat.h"
#include "planner/lower.h"
#include "tests/support/refusal.h"
#include "tests/support/toy_model.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

ShardingPlan plan_of(const Json& config, const Json& units, const ModelGraph& model) {
  ShardingPlan plan = toy::plan(model, config.at("shard"), config.value("replicate", 1));
  plan.dialect = Dialect::fsdp1;
  plan.units.clear();
  for (const Json& u : units) {
    const Json& reshard = config.at("reshard");
    const std::string text = reshard.is_array() ? reshard.at(plan.units.size()) : reshard;
    plan.units.push_back({u.get<std::vector<std::string>>(), parse_reshard(text, "golden")});
  }
  plan.micro_batches.assign(config.at("micro_batches").get<std::size_t>(), 2);
  plan.param_dtype = parse_dtype(config.at("param_dtype").get<std::string>(), "golden");
  plan.reduce_dtype = parse_dtype(config.at("reduce_dtype").get<std::string>(), "golden");
  plan.grad_sync = parse_grad_sync(config.value("grad_sync", "every"), "golden");
  plan.forward_prefetch = config.value("forward_prefetch", false) ? 1 : 0;
  const std::string prefetch = config.value("backward_prefetch", "pre");
  plan.backward_prefetch = prefetch == "none" ? 0 : 1;
  plan.backward_post = prefetch == "post";
  plan.limit_all_gathers = config.value("limit_all_gathers", true);
  plan.use_orig_params = config.value("use_orig_params", true);
  plan.trained_outermost = config.value("trained_outermost", false);
  plan.reentrant = config.value("reentrant", false);
  plan.offload = config.value("offload", false);
  plan.ignored = config.value("ignored", std::vector<std::string>{});
  if (config.value("checkpoint", false))
    for (int b = 0; b < config.at("blocks").get<int>(); ++b) plan.checkpointed.push_back("layers." + std::to_string(b));
  if (config.value("offload_activations", false)) plan.offload_activations = plan.checkpointed;
  return plan;
}

bool runs(const Json& event) {
  const std::string what = event.at(0);
  return what == "cast" || what == "all_gather" || what == "flatten" || what == "pad" || what == "divide" ||
         what == "reduce_scatter" || what == "all_reduce" || what == "offload" || what == "fetch";
}

using Counts = std::map<std::string, int>;  // finished operations that `runs` knows, by stream

void join(Counts& into, const Counts& from) {
  for (const auto& [stream, n] : from) into[stream] = std::max(into[stream], n);
}

// PyTorch's log without the waits of streams: those become what each operation knows to have finished.
struct Log {
  Json events = Json::array();
  std::vector<Counts> known;
};

Log recorded(const Json& golden, bool whole) {
  Log log;
  std::map<std::string, Counts> streams;
  for (const Json& event : golden) {
    if (event.at(0) == "wait") {
      join(streams[event.at(1)], streams[event.at(2)]);
      continue;
    }
    if (whole && event.at(0) == "record" && event.at(3) == "reduce_scatter")
      continue;  // of a gradient that is not freed
    log.events.push_back(event);
    if (!runs(event)) continue;
    const std::string stream = event.at(0) == "flatten" ? "compute" : event.back().get<std::string>();
    log.known.push_back(streams[stream]);
    ++streams[stream][stream];
  }
  return log;
}

class Lowered {
 public:
  Lowered(const Program& program, const ShardingPlan& plan, const Step& step)
      : program_(program), plan_(plan), step_(step) {
    clocks_.resize(step.ops.size());
    find_frees();
    for (std::size_t i = 0; i < step.ops.size(); ++i) operation(i);
  }

  Log log;

 private:
  const Buffer& buffer(std::int32_t id) const { return program_.buffers[static_cast<std::size_t>(id)]; }
  Json sized(const Buffer& b) const { return {b.bytes / size_of(b.dtype), std::string(name(b.dtype))}; }

  // The compute operation after which the n-th gathered parameter was freed.
  void find_frees() {
    std::int32_t last = -1;
    for (std::size_t i = 0; i < step_.ops.size(); ++i) {
      const Operation& op = step_.ops[i];
      if (!op.host_only && op.stream == Stream::compute) last = static_cast<std::int32_t>(i);
      for (std::int32_t b : step_.frees_of(op))
        if (buffer(b).kind == BufferKind::unsharded_parameter) free_ops_.push_back(last);
    }
  }

  void operation(std::size_t i) {
    const Operation& op = step_.ops[i];
    if (op.action == Action::host_wait) host_wait(op);
    if (!op.host_only) {
      Counts& now = streams_[std::string(name(op.stream))];
      for (std::int32_t w : step_.waits_of(op)) join(now, clocks_[static_cast<std::size_t>(w)]);
      const Json event = event_of(op);
      if (!event.is_null()) {
        if (op.action == Action::all_reduce && plan_.shard() > 1)
          record(buffer(step_.args_of(op)[0].buffer), Stream::all_reduce);
        log.events.push_back(event);
        log.known.push_back(now);
        ++now[std::string(name(op.stream))];
      }
      clocks_[i] = now;
    }
    for (std::int32_t b : step_.frees_of(op)) freed(buffer(b));
  }

  void host_wait(const Operation& op) {
    const auto waits = step_.waits_of(op);
    if (waits.size() > 1) {
      log.events.push_back({"host_sync"});
    } else {
      log.events.push_back({"host_wait", waits.empty() ? Json(nullptr) : Json(waits[0])});
    }
  }

  Json event_of(const Operation& op) {
    const auto args = step_.args_of(op);
    const std::string stream(name(op.stream));
    const auto of_unit = [&](const char* what, const Buffer& b) {
      return Json{what, op.unit, sized(b)[0], sized(b)[1], stream};
    };
    switch (op.action) {
      case Action::shard_to_device:
        return nullptr;  // the CPU copies nothing to itself; where the copy is cast next, that was logged
      case Action::cast_shard: return of_unit("cast", buffer(args[1].buffer));
      case Action::all_gather: return of_unit("all_gather", buffer(args[0].buffer));
      case Action::offload_activation:
        return {"offload", sized(buffer(args[0].buffer))[0], sized(buffer(args[0].buffer))[1], stream};
      case Action::fetch_activation:
        return {"fetch", sized(buffer(args[0].buffer))[0], sized(buffer(args[0].buffer))[1], stream};
      case Action::scatter_copy_in: {
        reduced_[op.unit] = false;
        for (const Arg& a : args)
          if (a.access == Access::write && buffer(a.buffer).kind != BufferKind::scratch)
            return {"flatten", sized(buffer(a.buffer))[0], sized(buffer(a.buffer))[1]};
        return nullptr;
      }
      case Action::cast_gradient: {  // logged of 1.13 is the copy that pads
        const Buffer &from = buffer(args[0].buffer), &into = buffer(args[1].buffer);
        if (plan_.torch == TorchVersion{} || from.dtype != into.dtype) return nullptr;
        return {"pad", sized(into)[0], sized(into)[1], stream};
      }
      case Action::divide_gradient: {
        const GradientScale& scale = program_.layouts[static_cast<std::size_t>(op.unit)].scale;
        return {"divide", sized(buffer(args[0].buffer))[0],
                reduced_[op.unit] ? scale.divide_after : scale.divide_before, stream};
      }
      case Action::reduce_scatter: reduced_[op.unit] = true; return of_unit("reduce_scatter", buffer(args[0].buffer));
      case Action::all_reduce: reduced_[op.unit] = true; return of_unit("all_reduce", buffer(args[0].buffer));
      default: return nullptr;
    }
  }

  void record(const Buffer& b, Stream s) {
    if ((b.recorded_streams >> static_cast<unsigned>(s)) & 1U)
      log.events.push_back({"record", sized(b)[0], sized(b)[1], std::string(name(s))});
  }

  void freed(const Buffer& b) {
    if (b.kind == BufferKind::unsharded_parameter) log.events.push_back({"free", b.unit});
    record(b, Stream::compute);
    if (plan_.torch == TorchVersion{}) record(b, Stream::all_gather);  // in 1.13 NCCL's backend marks it
    if (plan_.shard() > 1 && b.kind == BufferKind::gradient) record(b, Stream::reduce_scatter);
  }

 public:
  // PyTorch's ordinal of the free that the host waits for, as what a Step says.
  [[nodiscard]] Json waited(const Json& event) const {
    if (event.at(0) != "host_wait") return event;
    const int n = event.at(1), count = static_cast<int>(free_ops_.size());
    if (n >= 0) return {"host_wait", free_ops_.at(static_cast<std::size_t>(n))};
    if (n + count < 0) return {"host_wait", nullptr};  // of two steps ago
    return {"host_wait", -1 - free_ops_.at(static_cast<std::size_t>(n + count))};
  }

 private:
  const Program& program_;
  const ShardingPlan& plan_;
  const Step& step_;
  std::vector<Counts> clocks_;
  std::map<std::string, Counts> streams_;
  std::map<std::int32_t, bool> reduced_;
  std::vector<std::int32_t> free_ops_;
};

void compare(const Json& golden, const Program& program, const ShardingPlan& plan, const Step& step) {
  const Lowered ours(program, plan, step);
  Log theirs = recorded(golden, plan.shard() == 1);
  for (Json& event : theirs.events) event = ours.waited(event);
  REQUIRE(ours.log.events.size() == theirs.events.size());
  for (std::size_t i = 0; i < theirs.events.size(); ++i) {
    CAPTURE(i);
    REQUIRE(ours.log.events[i] == theirs.events[i]);
  }
  REQUIRE(ours.log.known.size() == theirs.known.size());
  for (std::size_t i = 0; i < theirs.known.size(); ++i) {
    CAPTURE(i);
    for (const char* stream : {"compute", "copy_in", "all_gather", "reduce_scatter", "all_reduce"}) {
      CAPTURE(std::string(stream));
      const auto of = [&](Counts known) { return known[stream]; };
      CHECK(of(ours.log.known[i]) == of(theirs.known[i]));
    }
  }
}

void compare_layout(const Json& golden, const UnitLayout& layout, const ModelGraph& model) {
  CHECK(layout.flat_elements == golden.at("elements").get<std::int64_t>());
  CHECK(layout.shard_elements == golden.at("shard").get<std::int64_t>());
  if (!golden.contains("params")) return;
  REQUIRE(layout.params.size() == golden.at("params").size());
  for (std::size_t i = 0; i < layout.params.size(); ++i) {
    const ShardedParam& p = layout.params[i];
    CHECK(golden.at("params").at(model.parameters[static_cast<std::size_t>(p.param)].name) == p.offset);
    for (const auto& [rank, ranges] : golden.at("ranks").items()) {
      CAPTURE(rank);
      const FlatRange r = flat_range(layout, p, layout.shards > 1 ? std::stoll(rank) : 0);
      const Json expected = ranges.at(i);
      CHECK((r.elements > 0 ? Json{r.offset_in_shard, r.elements, r.offset_in_param} : Json(nullptr)) == expected);
    }
  }
}

void compare_with(const std::string& file_name, TorchVersion torch, std::size_t at_least) {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/" + file_name);
  REQUIRE(file);
  const Json golden = Json::parse(file);
  REQUIRE(golden.at("cases").size() >= at_least);
  for (const Json& c : golden.at("cases")) {
    const Json& config = c.at("config");
    CAPTURE(config.at("name").get<std::string>());
    ModelGraph model = freeze(toy::model({.blocks = config.at("blocks"),
                                          .vocab = config.at("vocab"),
                                          .width = config.at("width"),
                                          .hidden = config.at("hidden"),
                                          .tied = config.value("tied", false),
                                          .order = config.value("order", std::vector<int>{})}),
                              config.value("frozen", std::vector<std::string>{}), "golden");
    if (config.value("input_gradients", false)) model = require_input_gradients(std::move(model));
    ShardingPlan plan = plan_of(config, c.at("units"), model);
    plan.torch = torch;
    if (config.at("name") == "frozen-mixed") {  // all of it as if nothing were frozen: not known here, and refused
      CHECK(testing::holds(testing::refusal([&] { check(plan, model); }), "in one flat parameter of fsdp1"));
      continue;
    }
    check(plan, model);
    const Program program = lower(model, plan, find_implementation("native", false, "test"));
    compare(c.at("first"), program, plan, program.first_step);
    compare(c.at("steady"), program, plan, program.steady_step);
    for (const Json& unit : c.at("layout"))
      compare_layout(unit, program.layouts.at(unit.at("unit").get<std::size_t>()), model);
  }
}

}  // namespace

TEST_CASE("fsdp1 issues what PyTorch's FullyShardedDataParallel issues") {
  compare_with("fsdp1_order.json", TorchVersion{}, 80);
}

TEST_CASE("fsdp1@1.13 issues what PyTorch 1.13 issues") { compare_with("fsdp1_order_1.13.json", {1, 13}, 22); }
