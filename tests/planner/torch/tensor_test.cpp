// Lowered programs against what PyTorch issues for tensor parallelism beside fully_shard (recorded by
// tests/torch/record_tensor.py): every collective over `tensor`, `shard` and `replicate` with its size and dtype, where
// the compute stream waits for it, every matrix product with its shape, copy-outs, frees of units, shapes of shards,
// and the bytes that are alive at every collective over `tensor`.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/job.h"
#include "planner/plan/naive_plan.h"
#include "simulator/engine/memory.h"
#include "simulator/engine/race.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

ModelGraph model_of(const Json& c) {
  const std::string family = c.at("family");
  return model_from_config(
      fmt::format(R"({{"model_type": "{}", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {},
                       "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},
                       "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                       "hidden_act": "silu", "tie_word_embeddings": false}})",
                  family, c["vocab"].get<int>(), c["hidden"].get<int>(), c["inner"].get<int>(), c["layers"].get<int>(),
                  c["heads"].get<int>(), c["kv_heads"].get<int>(), c["hidden"].get<int>() / c["heads"].get<int>()),
      "golden");
}

ShardingPlan plan_of(const Json& c, const Json& units, const ModelGraph& model) {
  const std::int64_t replicate = c.value("replicate", 1), shard = c.at("shard"), tensor = c.at("tensor");
  PlanOptions options;
  options.ranks = replicate * shard * tensor, options.replicate = replicate, options.tensor = tensor;
  options.seq_len = c.at("seq_len");
  options.micro_batches.assign(c.value("micro_batches", std::size_t{1}), c.at("sequences"));
  ShardingPlan plan = naive_plan(model, options);
  plan.units.clear();
  for (const Json& u : units)
    plan.units.push_back({u.get<std::vector<std::string>>(), parse_reshard(c.value("reshard", "auto"), "golden")});
  plan.tensor_plan.loss_parallel = c.value("loss_parallel", true);
  plan.param_dtype = parse_dtype(c.at("param_dtype").get<std::string>(), "golden");
  plan.reduce_dtype = parse_dtype(c.at("reduce_dtype").get<std::string>(), "golden");
  plan.grad_sync = parse_grad_sync(c.value("grad_sync", "every"), "golden");
  if (c.contains("clip")) plan.clip_norm = c.at("clip").get<double>();
  for (int b = 0; c.value("checkpoint", false) && b < c.at("layers").get<int>(); ++b)
    plan.checkpointed.push_back(fmt::format("model.layers.{}", b));
  check(plan, model, "golden");
  return plan;
}

// What a program issues, in the words of the recording.
class Events {
 public:
  Events(const Program& program, const Job& job) : program_(program), step_(program.steady_step), job_(job) {
    for (std::size_t i = 0; i < step_.ops.size(); ++i) {
      waits(step_.ops[i]);
      issued(step_.ops[i], i);
      frees(step_.ops[i]);
    }
  }
  Json events = Json::array();
  bool waits_at_once = true;  // for every all-reduce over tensor ranks

 private:
  const Buffer& buffer(const Arg& a) const { return program_.buffers[static_cast<std::size_t>(a.buffer)]; }
  std::int64_t elements(const Arg& a) const { return buffer(a).bytes / size_of(buffer(a).dtype); }
  std::string type(const Arg& a) const { return std::string(name(buffer(a).dtype)); }

  void waits(const Operation& op) {
    if (op.stream != Stream::compute) return;
    for (const std::int32_t w : step_.waits_of(op)) {
      if (w < 0) continue;
      const Operation& other = step_.ops[static_cast<std::size_t>(w)];
      if (other.stream == Stream::tensor && !summed(other.action))
        events.push_back({"wait", elements(step_.args_of(other).back()), number_.contains(w) ? number_.at(w) : 0});
    }
  }
  static bool summed(Action a) { return a == Action::all_reduce || a == Action::clip_reduce; }

  void issued(const Operation& op, std::size_t i) {
    const auto args = step_.args_of(op);
    if (op.comm == Communicator::tensor) number_[static_cast<std::int32_t>(i)] = static_cast<int>(number_.size()) + 1;
    if (op.comm == Communicator::tensor && summed(op.action)) {
      const auto next = std::find_if(step_.ops.begin() + static_cast<std::ptrdiff_t>(i) + 1, step_.ops.end(),
                                     [](const Operation& o) { return o.stream == Stream::compute && !o.host_only; });
      const auto waited = next == step_.ops.end() ? std::span<const std::int32_t>() : step_.waits_of(*next);
      waits_at_once =
          waits_at_once && std::find(waited.begin(), waited.end(), static_cast<std::int32_t>(i)) != waited.end();
    }
    const ShardingPlan& plan = job_.plan;
    if (op.action == Action::clip_reduce) {
      const bool tensor = op.comm == Communicator::tensor;
      events.push_back({tensor ? "tensor all_reduce" : "shard all_reduce", job_.model.parameters.size(), "fp32",
                        tensor ? plan.tensor() : plan.shard()});
      return;
    }
    if (op.comm == Communicator::tensor) {
      const Arg whole = op.action == Action::all_gather ? args.back() : args.front();
      events.push_back({"tensor " + std::string(name(op.action)), elements(whole), type(whole), plan.tensor()});
      return;
    }
    switch (op.action) {
      case Action::all_gather:
        events.push_back({"all_gather", op.unit, elements(args[0]), type(args[0]), "shard", plan.shard()});
        break;
      case Action::gather_copy_out: events.push_back({"copy_out", op.unit, 0, ""}); break;
      case Action::reduce_scatter:
        if (plan.shard() > 1)
          events.push_back(
              {"reduce_scatter", op.unit, elements(args[0]), type(args[0]), "shard", plan.shard(), "average"});
        break;
      case Action::all_reduce:
        events.push_back(
            {"all_reduce", op.unit, elements(args[0]), type(args[0]), "replicate", plan.replicate(), "average"});
        break;
      case Action::forward:
      case Action::recompute:
      case Action::backward: products(op); break;
      default: break;
    }
  }

  void products(const Operation& op) {
    const Op& linear = job_.model.ops[static_cast<std::size_t>(op.graph_op)];
    if (linear.kind != OpKind::linear) return;
    const std::int64_t rows = job_.plan.micro_batches[static_cast<std::size_t>(op.micro_batch)] * job_.plan.seq_len;
    const std::int64_t in = linear.shape.in, out = linear.shape.out;
    if (op.action != Action::backward) return events.push_back({"mm", rows, in, out});
    const Json weight = {"mm", out, rows, in}, input = {"mm", rows, out, in};
    const bool bias = linear.params.size() > 1;  // addmm makes the gradient of its input first
    events.push_back(bias ? input : weight);
    events.push_back(bias ? weight : input);
  }

  void frees(const Operation& op) {
    std::int32_t unit = kNone;
    for (const std::int32_t b : step_.frees_of(op)) {
      const Buffer& info = program_.buffers[static_cast<std::size_t>(b)];
      if (info.kind != BufferKind::unsharded_parameter || info.unit == unit) continue;
      unit = info.unit;
      events.push_back({"free", unit, 0, ""});
    }
  }

  const Program& program_;
  const Step& step_;
  const Job& job_;
  std::map<std::int32_t, int> number_;  // of operations over tensor ranks, in their order
};

// Collectives of one communicator end in their order: waiting for one that began before another that has been waited
// for changes nothing, and our streams leave it out.
Json without_implied_waits(const Json& events) {
  Json kept = Json::array();
  int last = 0;
  for (const Json& e : events) {
    const bool wait = e[0] == "wait";
    if (wait && e[2].get<int>() < last) continue;
    if (wait) last = e[2];
    kept.push_back(e);
  }
  return kept;
}

std::string difference(const Json& ours, const Json& theirs) {
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const Json a = i < ours.size() ? ours[i] : Json(), b = i < theirs.size() ? theirs[i] : Json();
    if (a != b) return fmt::format("event {}: ours {}, PyTorch's {}", i, a.dump(), b.dump());
  }
  return {};
}

Json golden() {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/tensor_order.json");
  return Json::parse(file).at("cases");
}

Job job_of(const Json& recorded) {
  const ModelGraph model = model_of(recorded.at("config"));
  return resolve(model, plan_of(recorded.at("config"), recorded.at("units"), model), torch_cpu_implementation(), {});
}

// Whether it joins parts of sequences (aten::cat). Of gathered columns a rank takes its part of the gradient, a copy.
bool joins(const Program& program, const ModelGraph& model, const Operation& op) {
  if (op.action != Action::reorder_tokens) return false;
  const Redistribution of = model.ops[static_cast<std::size_t>(op.graph_op)].shape.redistribution;
  const auto reads = program.buffers[static_cast<std::size_t>(program.steady_step.args_of(op)[0].buffer)].kind;
  return of != Redistribution::gather_columns || reads != BufferKind::activation_gradient;
}

}  // namespace

TEST_CASE("tensor parallelism beside fully_shard: PyTorch's order, sizes, groups and waits") {
  const Json cases = golden();
  CHECK(cases.size() >= 20);
  for (const Json& recorded : cases) {
    CAPTURE(recorded.at("config").at("name").get<std::string>());
    Programs programs(job_of(recorded));
    const Program& program = programs.of(0);
    const Events ours(program, programs.job());
    CHECK(difference(ours.events, without_implied_waits(recorded.at("events"))) == "");
    CHECK(ours.waits_at_once);
    CHECK(find_races(program).empty());
  }
}

// What the training loop holds beside a Program: ids, which are the targets, too. Scalars are not compared, nor what a
// loss of split logits holds while it reduces: it is one operation here.
TEST_CASE(
    "tensor parallelism beside fully_shard: PyTorch's bytes alive at every collective over tensor ranks and copy") {
  for (const Json& recorded : golden()) {
    CAPTURE(recorded.at("config").at("name").get<std::string>());
    Programs programs(job_of(recorded));
    const Program& program = programs.of(0);
    const Job& job = programs.job();
    std::int64_t live = size_of(DType::i64) * job.plan.micro_batches[0] * job.plan.seq_len;
    const auto change = [&](std::int32_t b, std::int64_t sign) {
      const Buffer& info = program.buffers[static_cast<std::size_t>(b)];
      if (info.kind != BufferKind::scalar && info.kind != BufferKind::batch) live += sign * info.bytes;
    };
    std::size_t collective = 0, reordered = 0, compared = 0;
    const Json &theirs = recorded.at("live"), &copies = recorded.at("reordered");
    for (const Step* step : {&program.init, &program.first_step, &program.steady_step})
      for (const Operation& op : step->ops) {
        for (const std::int32_t b : step->allocs_of(op)) change(b, +1);
        const bool compares = step == &program.steady_step && op.comm == Communicator::tensor;
        const bool loss = op.graph_op + 1 == static_cast<std::int32_t>(job.model.ops.size());
        if (compares && op.action != Action::clip_reduce && !loss) {
          REQUIRE(collective < theirs.size());
          CAPTURE(collective);
          CHECK(live == theirs[collective].get<std::int64_t>());
          ++compared;
        }
        if (compares) ++collective;
        if (step == &program.steady_step && joins(program, job.model, op)) {
          REQUIRE(reordered < copies.size());
          CAPTURE(reordered);
          CHECK(live == copies[reordered++].get<std::int64_t>());
        }
        for (const std::int32_t b : step->inner_of(op)) change(b >= 0 ? b : ~b, b >= 0 ? +1 : -1);
        for (const std::int32_t b : step->frees_of(op)) change(b, -1);
      }
    CHECK(compared >= 20);
    CHECK(reordered == copies.size());
  }
}

TEST_CASE("tensor parallelism beside fully_shard: the local shapes of rank 0's shards") {
  for (const Json& recorded : golden()) {
    CAPTURE(recorded.at("config").at("name").get<std::string>());
    Programs programs(job_of(recorded));
    const ModelGraph& model = programs.job().model;
    std::size_t compared = 0;
    for (const UnitLayout& layout : programs.of(0).layouts)
      for (const ShardedParam& p : layout.params) {
        const Parameter& parameter = model.parameters[static_cast<std::size_t>(p.param)];
        std::vector<std::int64_t> local = parameter.shape;
        local[0] = p.local_rows(0);
        CHECK_MESSAGE(recorded.at("local_shapes").at(parameter.name) == Json(local), parameter.name);
        ++compared;
      }
    CHECK(compared == model.parameters.size());
  }
}

TEST_CASE("tensor parallelism beside fully_shard: the comparison sees a step that is wrong in one place") {
  const Json recorded = golden().at(0);
  const Json theirs = without_implied_waits(recorded.at("events"));
  Programs programs(job_of(recorded));
  const Program right = programs.of(0);
  const auto found = [&](Action action, Communicator comm) {
    for (std::size_t i = 0; i < right.steady_step.ops.size(); ++i)
      if (right.steady_step.ops[i].action == action && right.steady_step.ops[i].comm == comm) return i;
    return right.steady_step.ops.size();
  };
  const auto differs = [&](const std::function<void(Step&)>& change) {
    Program wrong = right;
    change(wrong.steady_step);
    const Events events(wrong, programs.job());
    return !difference(events.events, theirs).empty() || !events.waits_at_once;
  };
  CHECK_FALSE(differs([](Step&) {}));
  const std::size_t scatter = found(Action::reduce_scatter, Communicator::tensor);
  const std::size_t sum = found(Action::all_reduce, Communicator::tensor);
  REQUIRE(scatter < right.steady_step.ops.size());
  REQUIRE(sum < right.steady_step.ops.size());
  CHECK(differs([&](Step& s) { s.ops[scatter].comm = Communicator::shard; }));      // over other ranks
  CHECK(differs([&](Step& s) { s.ops[sum].action = Action::add_gradient; }));       // a norm's gradient not summed
  CHECK(differs([&](Step& s) { std::swap(s.ops[scatter], s.ops[scatter + 1]); }));  // after the next block's copy-in
  const auto waits = std::find_if(right.steady_step.ops.begin(), right.steady_step.ops.end(), [&](const Operation& o) {
    const auto list = right.steady_step.waits_of(o);
    return o.stream == Stream::compute &&
           std::find(list.begin(), list.end(), static_cast<std::int32_t>(scatter)) != list.end();
  });
  REQUIRE(waits != right.steady_step.ops.end());
  const auto waiter = static_cast<std::size_t>(waits - right.steady_step.ops.begin());
  CHECK(differs([&](Step& s) {  // the residual's wait moved to the copy-out of the block before it
    std::size_t before = waiter - 1;
    while (s.ops[before].stream != Stream::compute) --before;
    std::swap(s.ops[before].waits, s.ops[waiter].waits);
  }));
}
