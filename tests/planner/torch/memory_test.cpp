// Replayed memory of lowered programs against what PyTorch's fully_shard really holds
// (tests/torch/golden/fsdp2_memory.json, recorded by tests/torch/record_memory.py): bytes by category after every
// all-gather, copy-out, reshard and reduction of every unit, after forward, backward, the optimizer and zero_grad, and
// the peak, in a first and in a steady step. `-s` prints a table.
#include "simulator/engine/memory.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/tensor/local_model.h"
#include "tests/planner/torch/recorded_llama.h"

using namespace fsdp;
using Json = nlohmann::json;
using Names = std::vector<std::string>;

namespace {

// The categories of the recording, in its order.
enum Category {
  sharded_param,
  optimizer,
  optimizer_step,
  sharded_grad,
  cast_shard,
  all_gather,
  unsharded_param,
  post_forward_shard,
  unsharded_grad,
  reduce_scatter,
  reduce_output,
  activation,
  temp,
  input,
  scalar,
  kCategories
};
using Sizes = std::array<std::int64_t, kCategories>;

Category category(BufferKind kind) {
  switch (kind) {
    case BufferKind::parameter_shard: return sharded_param;
    case BufferKind::optimizer_state: return optimizer;
    case BufferKind::sharded_gradient: return sharded_grad;
    case BufferKind::cast_shard: return cast_shard;
    case BufferKind::gather: return all_gather;
    case BufferKind::unsharded_parameter: return unsharded_param;
    case BufferKind::kept_shard: return post_forward_shard;
    case BufferKind::gradient:
    case BufferKind::gradient_accumulator: return unsharded_grad;
    case BufferKind::reduce_input: return reduce_scatter;
    case BufferKind::reduce_output: return reduce_output;
    case BufferKind::activation:
    case BufferKind::saved: return activation;
    case BufferKind::batch: return input;
    case BufferKind::scalar: return scalar;
    default: return temp;
  }
}

struct Moment {
  std::string name;
  std::int32_t unit = -1;
  Sizes sizes{};
};

std::int64_t total(const Sizes& s) {
  std::int64_t sum = 0;
  for (std::int64_t v : s) sum += v;
  return sum - s[scalar];  // see Replay
}

// Walks a step in host order and notes memory where the recording does.
//
// PyTorch holds a little that a Program does not. Each such thing is added here by name, in full, so that everything
// can be compared exactly:
//  batch       the training loop holds ids and targets to the end of a micro-batch; a Program frees them after their
//              last use
//  counters    AdamW counts steps in a 4-byte tensor per trained parameter
//  norms       with 2-byte parameters and a wider reduce_dtype autograd may leave a gradient in the type that it was
//              computed in: fp32
//              for the weights of the CPU's rms_norm (PyTorch 2.15; GPUs have a fused kernel, which casts)
//  unsaved     where a norm's input needs no gradient (frozen below), the CPU's rms_norm does not save what only that
//              gradient needs
//  tied        the first gradient of a tied weight waits inside autograd for the second, as a temporary: another
//              category
//  one rank    without sharding PyTorch casts one parameter at a time, a Program a unit at once
// Never compared: scalars (the loss and the sum of its weights are 4 bytes each; a Program has one accumulator of 8).
class Replay {
 public:
  Replay(const Program& program, const ModelGraph& model, const ShardingPlan& plan)
      : p_(program), model_(model), plan_(plan) {
    for (const Op& op : model.ops)
      for (std::int32_t param : op.params) ++uses_[param];
    run(program.init);
  }

  [[nodiscard]] Sizes now() const {
    Sizes s = now_;
    if (batch_) s[input] = 2 * 8 * plan_.micro_batches[0] * plan_.seq_len;
    if (stepped_)
      for (const Parameter& p : model_.parameters) s[optimizer_step] += p.trainable ? 4 : 0;
    s[unsharded_grad] += norms_;
    s[unsharded_grad] -= waiting_;
    s[temp] += waiting_;
    s[activation] -= unsaved_;
    return s;
  }

  struct StepMemory {
    std::vector<Moment> moments;
    Sizes at_peak{};
    std::int64_t program_peak = 0;  // without what is added here
  };
  StepMemory run(const Step& step) {
    out_ = {};
    step_ = &step;
    const std::size_t n = step.ops.size();
    if (n == 0 || step.ops[0].action != Action::zero_gradients) note("zero", -1);
    for (std::size_t i = 0; i < n; ++i) {
      const Operation& op = step.ops[i];
      if (op.action == Action::load_batch) batch_ = true;
      for (std::int32_t b : step.allocs_of(op)) change(b, +1);
      out_.program_peak = std::max(out_.program_peak, std::accumulate(now_.begin(), now_.end(), std::int64_t{0}));
      const Sizes here =
          op.action == Action::gather_copy_out && plan_.shard() == 1 ? one_by_one(step.args_of(op)) : now();
      if (total(here) > total(out_.at_peak) && op.action != Action::cast_shard) out_.at_peak = here;
      if (op.action == Action::forward) note_unsaved(op, +1);
      if (op.action == Action::add_gradient && category(buffer(step.args_of(op)[1].buffer).kind) == unsharded_grad)
        waiting_ = 0;
      if (op.action == Action::all_gather) note("gather", op.unit);
      if (op.action == Action::backward) note_unsaved(op, -1);
      frees(i);
      const Action next = i + 1 < n ? step.ops[i + 1].action : Action::reduce_loss;
      if (op.action == Action::zero_gradients) note("zero", -1);
      if (ends_copy_out(i)) note("unshard", op.unit);
      if (op.action == Action::forward && op.graph_op + 1 == static_cast<std::int32_t>(model_.ops.size()))
        note("forward", -1);
      const bool ends = next == Action::load_batch || next == Action::init_optimizer || next == Action::optimizer;
      if (ends && op.action != Action::init_optimizer && op.action != Action::optimizer &&
          op.action != Action::zero_gradients) {
        batch_ = false;
        note("backward", -1);
      }
      if (next == Action::optimizer) stepped_ = true;
      if (op.action == Action::optimizer && next != Action::optimizer) note("step", -1);
    }
    return out_;
  }

 private:
  const Buffer& buffer(std::int32_t b) const { return p_.buffers[static_cast<std::size_t>(b)]; }
  void note(const char* name, std::int32_t unit) { out_.moments.push_back({name, unit, now()}); }

  void change(std::int32_t id, int sign) {
    const Buffer& b = buffer(id);
    now_[category(b.kind)] += sign * b.bytes;
    if (b.kind == BufferKind::gradient_accumulator && uses_[b.param] > 1 && sign > 0) {
      waiting_ = b.bytes;
      waits_in_ = id;
    }
    if (b.kind != BufferKind::gradient) return;
    const bool vector = model_.parameters[static_cast<std::size_t>(b.param)].shape.size() == 1;
    if (vector && b.dtype == DType::bf16 && reduce_dtype_of(b.param) == DType::f32) norms_ += sign * b.bytes;
    if (sign > 0 && uses_[b.param] > 1 && waiting_ == 0) {
      waiting_ = b.bytes;
      waits_in_ = id;
    } else if (sign < 0 && waits_in_ == id) {
      waiting_ = 0;
    }
  }

  DType reduce_dtype_of(std::int32_t param) const {
    for (const UnitLayout& layout : p_.layouts)
      for (const ShardedParam& p : layout.params)
        if (p.param == param) return layout.reduce_dtype;
    return plan_.reduce_dtype;
  }

  // One rank: parameter after parameter is cast, copied, and the cast is freed.
  Sizes one_by_one(std::span<const Arg> args) const {
    Sizes most{}, s = now();
    s[cast_shard] = 0;
    for (const Arg& a : args)
      if (a.buffer >= 0 && buffer(a.buffer).kind == BufferKind::unsharded_parameter)
        s[unsharded_param] -= buffer(a.buffer).bytes;
    for (const Arg& a : args) {
      if (a.buffer < 0 || buffer(a.buffer).kind != BufferKind::unsharded_parameter) continue;
      s[unsharded_param] += buffer(a.buffer).bytes;
      s[cast_shard] = plan_.param_dtype == plan_.master_dtype ? 0 : buffer(a.buffer).bytes;
      if (total(s) > total(most)) most = s;
    }
    return most;
  }

  // What the CPU's rms_norm in 2-byte types does not save where its input needs no gradient: its input in fp32 and
  // 1/rms.
  void note_unsaved(const Operation& op, int sign) {
    const Op& norm = model_.ops[static_cast<std::size_t>(op.graph_op)];
    if (norm.kind != OpKind::rms_norm || norm.shape.dtype.value_or(plan_.param_dtype) == DType::f32) return;
    if (!model_.parameters[static_cast<std::size_t>(norm.params[0])].trainable) return;
    const Tensor& in = model_.tensors[static_cast<std::size_t>(norm.inputs[0])];
    if (!in.requires_grad)
      unsaved_ += sign * 4 * plan_.micro_batches[0] * plan_.seq_len * (in.width + norm.shape.groups);
  }

  // Whether operation i is the last of a unit's copy-out: some parameters are put in order afterwards.
  bool ends_copy_out(std::size_t i) const {
    const auto reorders = [&](std::size_t k) {
      return k < step_->ops.size() && step_->ops[k].action == Action::reorder_shards;
    };
    std::size_t begin = i;
    while (begin > 0 && reorders(begin)) --begin;
    return step_->ops[begin].action == Action::gather_copy_out && !reorders(i + 1);
  }

  // Whether operation i is the last of a unit's reduction.
  bool ends_reduction(std::size_t i) const {
    const auto belongs = [&](const Operation& op) {
      return op.action == Action::reduce_scatter || op.action == Action::all_reduce ||
             op.action == Action::finish_gradient || op.action == Action::divide_gradient ||
             (op.action == Action::add_gradient && op.stream == Stream::reduce_scatter);
    };
    const Operation& op = step_->ops[i];
    if (!belongs(op)) return false;
    const Operation* next = i + 1 < step_->ops.size() ? &step_->ops[i + 1] : nullptr;
    return next == nullptr || !belongs(*next) || next->unit != op.unit;
  }

  // In the order in which the host frees; what belongs to a reduction comes before what later hooks free.
  void frees(std::size_t i) {
    const Operation& op = step_->ops[i];
    const auto list = step_->frees_of(op);
    bool open = ends_reduction(i);
    for (std::size_t k = 0; k < list.size(); ++k) {
      const Buffer& b = buffer(list[k]);
      if (open && b.kind != BufferKind::reduce_output && b.kind != BufferKind::scratch) {  // foreach_reduce's own
        note("reduce", op.unit);
        open = false;
      }
      change(list[k], -1);
      if (b.kind != BufferKind::unsharded_parameter) continue;
      const Buffer* following = k + 1 < list.size() ? &buffer(list[k + 1]) : nullptr;
      const bool more =
          following != nullptr && following->kind == BufferKind::unsharded_parameter && following->unit == b.unit;
      const Operation* next =
          i + 1 < step_->ops.size() ? &step_->ops[i + 1] : nullptr;  // integer reshard: one per parameter
      if (!more && (next == nullptr || next->action != Action::keep_shard || op.action != Action::keep_shard ||
                    next->unit != b.unit))
        note("reshard", b.unit);
    }
    if (open) note("reduce", op.unit);
  }

  const Program& p_;
  const ModelGraph& model_;
  const ShardingPlan& plan_;
  const Step* step_ = nullptr;
  Sizes now_{};
  StepMemory out_;
  std::map<std::int32_t, int> uses_;  // by parameter
  bool batch_ = false, stepped_ = false;
  std::int64_t norms_ = 0, waiting_ = 0, unsaved_ = 0;
  std::int32_t waits_in_ = -1;
};

ModelGraph model_of(const Json& c) {
  const ModelGraph model = recorded_llama(c);
  Names frozen;
  for (const std::string& start : c.value("frozen", Names{}))
    for (const Parameter& p : model.parameters)
      if (p.name.starts_with(start)) frozen.push_back(p.name);
  return freeze(model, frozen, "golden");
}

ShardingPlan plan_of(const Json& c, const ModelGraph& model) {
  ShardingPlan plan;
  plan.model_name = model.name;
  plan.model_digest = model.digest();
  plan.mesh = {{"replicate", c["replicate"]}, {"shard", c["shard"]}};
  const Reshard reshard = parse_reshard(c["reshard"].get<std::string>(), "golden");
  for (const Json& u : c["units"]) {
    Unit unit;
    unit.modules = u.get<std::vector<std::string>>();
    unit.reshard_after_forward = reshard;
    unit.reshard_after_backward = c.value("reshard_after_backward", true);
    const Names whole = c.value("not_unsharded_in_backward", Names{});
    const Json own = c.value("unit_dtypes", Json::object()).value(unit.modules[0], Json::object());
    const auto dtype = [&](const char* key) {
      return own.contains(key) ? std::optional(parse_dtype(own[key].get<std::string>(), "golden")) : std::nullopt;
    };
    unit.param_dtype = dtype("param_dtype");
    unit.reduce_dtype = dtype("reduce_dtype");
    unit.output_dtype = dtype("output_dtype");
    const std::string place = std::to_string(plan.units.size());
    if (const Json further = c.value("further", Json::object()); further.contains(place)) {
      unit = {unit.modules};
      unit.shard = c.at("own_shard");
      unit.group_of = further.at(place).get<std::string>();
    }
    unit.unshard_in_backward = std::find(whole.begin(), whole.end(), unit.modules[0]) == whole.end();
    plan.units.push_back(unit);
  }
  plan.micro_batches.assign(c["micro_batches"].get<std::size_t>(), c["sequences"]);
  plan.seq_len = c["seq_len"];
  plan.param_dtype = parse_dtype(c["param_dtype"].get<std::string>(), "golden");
  plan.reduce_dtype = parse_dtype(c["reduce_dtype"].get<std::string>(), "golden");
  plan.grad_sync = parse_grad_sync(c["grad_sync"].get<std::string>(), "golden");
  plan.forward_prefetch = c["forward_prefetch"];
  plan.backward_prefetch = c["backward_prefetch"];
  plan.reduce_scatter_buffers = c.value("reduce_scatter_buffers", 1);
  const Json dims = c.value("shard_dims", Json::object());
  for (const auto& [parameter, dim] : dims.items()) plan.shard_dims.push_back({parameter, dim.get<std::int64_t>()});
  if (c["checkpoint"].get<bool>())
    for (int b = 0; b < c["layers"].get<int>(); ++b) plan.checkpointed.push_back("model.layers." + std::to_string(b));
  check(plan, model, "golden");
  return plan;
}

// What an operation is about to make or has just unmade is named differently in the middle of it: a weight's gradient
// is a temporary of autograd until it is the parameter's, a temporary of one op may be the saved tensor of another that
// is gone by then, an optimizer state is a temporary until the optimizer owns it, a reduce output becomes the sharded
// gradients. At the peak, which is always in the middle of an operation, these are compared together; everything else,
// and everything between operations, one by one.
std::vector<std::vector<Category>> groups_at_peak() {
  return {{activation, temp, unsharded_grad, optimizer},
          {sharded_grad, reduce_output},
          {sharded_param},
          {optimizer_step},
          {cast_shard},
          {all_gather},
          {unsharded_param},
          {post_forward_shard},
          {reduce_scatter},
          {input}};
}

}  // namespace

TEST_CASE("memory of fsdp2 by category is what PyTorch's fully_shard holds") {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/fsdp2_memory.json");
  REQUIRE(file);
  const Json golden = Json::parse(file);
  const std::vector<std::string> names = golden["categories"];
  REQUIRE(names.size() == kCategories);
  REQUIRE(golden["cases"].size() >= 60);
  int compared = 0;
  for (const Json& g : golden["cases"]) {
    const Json& config = g["config"];
    const std::string name = config["name"];
    CAPTURE(name);
    const ModelGraph model = model_of(config);
    const ShardingPlan plan = plan_of(config, model);
    const ModelGraph local = local_model(model, plan);
    const Program program = lower(local, plan, find_implementation("torch-cpu", false, "test"));
    Replay replay(program, local, plan);
    const ProgramMemory replayed = replay_memory(program);
    CHECK(replay.now() == g["init"].get<Sizes>());
    for (const std::string which : {"first", "steady"}) {
      CAPTURE(which);
      auto memory = replay.run(which == "first" ? program.first_step : program.steady_step);
      const Json& theirs = g[which];
      if (which == "first") std::erase_if(memory.moments, [](const Moment& m) { return m.unit >= 0; });
      std::string order, their_order;
      for (const Moment& m : memory.moments) order += fmt::format("{} {}, ", m.name, m.unit);
      for (const Json& m : theirs["moments"])
        their_order += fmt::format("{} {}, ", m[0].get<std::string>(), m[1].get<int>());
      REQUIRE(order == their_order);
      for (std::size_t i = 0; i < memory.moments.size(); ++i) {
        const Moment& m = memory.moments[i];
        const Sizes expected = theirs["moments"][i][2].get<Sizes>();
        CAPTURE(i);
        CAPTURE(m.name);
        CAPTURE(m.unit);
        for (std::size_t k = 0; k < kCategories; ++k) {
          CAPTURE(names[k]);
          if (k == scalar) continue;
          CHECK(m.sizes[k] == expected[k]);
        }
        CHECK(expected[scalar] <= 12);
      }
      const Sizes peak = theirs["at_peak"].get<Sizes>();
      for (const auto& group : groups_at_peak()) {
        std::int64_t ours = 0, expected = 0;
        for (Category k : group) ours += memory.at_peak[k], expected += peak[k];
        CAPTURE(names[group[0]]);
        CHECK(ours == expected);
      }
      const std::int64_t ours = total(memory.at_peak), expected = total(peak);
      CHECK(memory.program_peak == (which == "first" ? replayed.first_step : replayed.steady_step).peak());
      CHECK(std::accumulate(peak.begin(), peak.end(), std::int64_t{0}) == theirs["peak"].get<std::int64_t>());
      CHECK_MESSAGE(
          ours == expected,
          fmt::format("{:26} {:6} order matched, our peak {:12}, PyTorch's {:12}, difference {:+} ({:+.2f} %)", name,
                      which, ours, expected, ours - expected,
                      100.0 * static_cast<double>(ours - expected) / static_cast<double>(expected)));
      ++compared;
    }
  }
  CHECK(compared >= 60);
}
