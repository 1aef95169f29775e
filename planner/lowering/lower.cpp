// Walks the tape of every micro-batch and calls the dialect's hooks around it; adds what a step has besides: the batch,
// clipping, the optimizer, the loss.
#include "planner/lower.h"
#include "models/index.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/input/error.h"
#include "planner/lowering/dialect.h"
#include "planner/lowering/ignored.h"
#include "planner/lowering/optimizer.h"
#include "planner/lowering/step/clipping.h"
#include "planner/lowering/step/over_tensor.h"
#include "planner/lowering/tape/tape.h"
#include "planner/lowering/unit_hooks.h"

namespace fsdp {
namespace {

Operation simple(Action action, Communicator comm = Communicator::none) {
  Operation o = operation(action);
  o.comm = comm;
  return o;
}

std::unique_ptr<DialectHooks> make_dialect(const LoweringContext& c) {
  switch (c.plan.dialect) {
    case Dialect::fsdp2: break;
    case Dialect::fsdp1: return make_fsdp1(c);
    case Dialect::ddp: return make_ddp(c);
  }
  return make_fsdp2(c);
}

constexpr int kSettlingSteps = 64;  // until what is left for the next step repeats

class Lowering {
 public:
  Lowering(const ModelGraph& model, const ShardingPlan& plan, const PlanIds& ids, const Implementation& impl,
           std::int64_t rank, Program& program)
      : cast_(with_cast_inputs(model, plan, ids)),
        model_(cast_ ? *cast_ : model),
        plan_(plan),
        impl_(impl),
        program_(program),
        ignored_({model, plan, ids, impl, program}),
        optimizer_({model, plan, ids, impl, program}, plan.shard_index(rank)),
        hooks_(unit_hooks(model, ids, program.layouts)) {
    const LoweringContext context{model, plan, ids, impl, program};
    dialect_ = make_dialect(context);
    for (std::int64_t sequences : plan.micro_batches) {
      if (tapes_.contains(sequences)) continue;
      const Workload work{sequences, plan.seq_len, size_of(plan.param_dtype), plan.loss_chunks};
      tapes_.emplace(sequences,
                     make_tape(model_, impl, work, plan.param_dtype, ids.checkpointed, plan.checkpoint_policy));
    }
    unit_of_ = unit_of_parameters(program.layouts, model);
    last_uses_.resize(model.parameters.size());
    for (std::size_t i = 0; i < model.ops.size(); ++i)
      for (const std::int32_t p : model.ops[i].params) {
        LastUses& uses = last_uses_[at(p)];
        uses.before = std::exchange(uses.last, static_cast<std::int32_t>(i));
      }
  }

  void lower() {
    {
      StepBuilder b(program_, program_.init);
      dialect_->init(b);
      ignored_.init(b);
    }
    (void)lower_step(program_.first_step, /*first=*/true);
    const std::size_t buffers = program_.buffers.size();
    for (int tries = 0; !lower_step(program_.steady_step, /*first=*/false); ++tries) {
      if (tries == kSettlingSteps) throw InternalError("broken lowering: steps never repeat");
      program_.steady_step = {};
      program_.buffers.resize(buffers);
    }
  }

 private:
  bool lower_step(Step& step, bool first) {
    reserve(step);
    StepBuilder b(program_, step);
    dialect_->begin_step(b);
    ignored_.begin_step(b);
    loss_ = b.declare(scalar_buffer());
    for (std::size_t m = 0; m < plan_.micro_batches.size(); ++m) micro_batch(b, static_cast<std::int16_t>(m));
    if (plan_.clip_norm) clip_gradients(b, plan_, gradients_of(*dialect_, program_, ignored_), micro_batch_);
    optimizer_.lower(b, *dialect_, ignored_, first);
    dialect_->after_optimizer(b);
    Operation reduce = simple(Action::reduce_loss, Communicator::world);
    b.issue(reduce, {{Arg{loss_, Access::accumulate}}});
    if (impl_.loss_read_every_step) b.issue(simple(Action::read_loss), {{Arg{loss_}}});
    b.release(loss_);
    return dialect_->end_step(b);
  }

  void reserve(Step& step) const {
    std::size_t ops = 0, args = 0, values = 0;
    for (std::int64_t sequences : plan_.micro_batches) {
      const Tape& t = tapes_.at(sequences);
      ops += t.ops.size() + 12 * program_.layouts.size();
      args += t.args.size() + 6 * model_.parameters.size();
      values += t.values.size() + 4 * model_.parameters.size();
    }
    step.ops.reserve(ops);
    step.args.reserve(args);
    step.waits.reserve(16 * program_.layouts.size() * plan_.micro_batches.size());
    step.allocs.reserve(values);
    step.frees.reserve(values);
    program_.buffers.reserve(program_.buffers.size() + values);
  }

  void micro_batch(StepBuilder& b, std::int16_t m) {
    micro_batch_ = m;
    tape_ = &tapes_.at(plan_.micro_batches[static_cast<std::size_t>(m)]);
    value_buffer_.assign(tape_->values.size(), -1);
    dialect_->begin_micro_batch(b, m);
    if (m == 0) b.allocate(loss_);
    emit(b, tape_->ops[0]);
    const std::int32_t batch = b.last(Stream::compute);
    std::uint32_t next = 1;  // tape op
    const auto n = static_cast<std::int32_t>(model_.ops.size());
    for (std::int32_t i = 0; i < n; ++i) {
      for (const UnitHooks::Begin& begin : hooks_.begins[at(i)]) dialect_->before_forward(b, begin.unit);
      if (i == 0 && impl_.batch_read_every_forward) b.host_wait({&batch, 1}, m);
      for (; next < tape_->forward_of[at(i)]; ++next) emit(b, tape_->ops[next]);
      const TapeOp& op = tape_->ops[next++];
      emit(b, op);
      for (auto end = hooks_.ends[at(i)].rbegin(); end != hooks_.ends[at(i)].rend(); ++end) {
        release_late(b, op, end->op_begin);
        dialect_->after_forward(b, end->unit);
      }
      release_late(b, op, -1);
      allocate_late(b, op);
    }
    for (std::int32_t i = n - 1; i >= 0; --i) {
      // Units that end here share the output, whose hooks run as they were registered: after forward, inner before
      // outer.
      for (auto end = hooks_.ends[at(i)].rbegin(); end != hooks_.ends[at(i)].rend(); ++end)
        dialect_->before_backward(b, end->unit);
      dialect_->outputs_ready(b);
      std::uint32_t o = tape_->backward_begin[at(i)];
      if (tape_->recomputed_at[at(i)] >= 0) o = recompute(b, tape_->regions[at(tape_->recomputed_at[at(i)])], o);
      const auto emit_to = [&](std::uint32_t end) {
        for (; o < end; ++o) emit(b, tape_->ops[o]);
      };
      emit_to(sums_of(i, o));
      for (auto begin = hooks_.begins[at(i)].rbegin(); begin != hooks_.begins[at(i)].rend(); ++begin) {
        if (sums_inside(i, *begin)) emit_to(tape_->backward_end[at(i)]);
        if (begin->inputs_require_grad) dialect_->after_backward(b, begin->unit);
      }
      for (std::uint32_t k = tape_->backward_begin[at(i)]; k < o; ++k) release_late(b, tape_->ops[k], -1);
      emit_to(tape_->backward_end[at(i)]);
      dialect_->backward_passed(b, i);
    }
    dialect_->end_backward(b);
    over_tensor_.end_micro_batch();
  }

  void allocate_late(StepBuilder& b, const TapeOp& op) {
    for (std::uint32_t k = 0; k < op.late_allocs.count; ++k) {
      const std::int32_t v = tape_->late_allocs[op.late_allocs.begin + k];
      b.allocate(value_buffer_[at(v)] = b.declare(value_info(v)));
    }
  }

  // Values that go before the post-forward hook of a unit that begins with this graph op; -1: all that are left.
  void release_late(StepBuilder& b, const TapeOp& op, std::int32_t unit_begin) {
    for (std::uint32_t k = 0; k < op.late_frees.count; ++k) {
      const std::int32_t v = tape_->late_frees[op.late_frees.begin + k];
      if (value_buffer_[at(v)] < 0 || tape_->values[at(v)].scope <= unit_begin) continue;
      b.release(std::exchange(value_buffer_[at(v)], kNone));
    }
  }

  // Where, from `o` on, the backward of op i adds the gradient of its only input to those of the tensor's other
  // readers. If a unit begins with the op, autograd does that after its post-backward hook, unless the others are in
  // the unit.
  std::uint32_t sums_of(std::int32_t i, std::uint32_t o) const {
    std::uint32_t end = tape_->backward_end[at(i)];
    if (plan_.dialect != Dialect::fsdp2 || hooks_.begins[at(i)].empty() || model_.ops[at(i)].inputs.size() != 1)
      return end;
    while (end > o && tape_->ops[end - 1].action == Action::add_gradient) --end;
    return end;
  }

  bool sums_inside(std::int32_t i, const UnitHooks::Begin& unit) const {
    for (std::int32_t k = i + 1; k < unit.op_end; ++k)
      for (const std::int32_t in : model_.ops[at(k)].inputs)
        if (in == model_.ops[at(i)].inputs[0]) return true;
    return false;
  }

  // Runs a checkpointed module again, with the hooks of the units inside. `o`: its first tape op; returns the one
  // behind its last.
  std::uint32_t recompute(StepBuilder& b, const Region& r, std::uint32_t o) {
    const std::int32_t end = r.stops_early ? r.needed_by + 1 : r.end;
    if (o - 1 > tape_->forward_of.back()) allocate_late(b, tape_->ops[o - 1]);
    for (std::int32_t i = r.begin; i < end; ++i) {
      for (const std::int32_t u : hooks_.again_begins[at(i)]) dialect_->before_recompute(b, u);
      bool emitted = false;
      for (; o < tape_->ops.size() && tape_->ops[o].recomputed && tape_->ops[o].graph_op == i; ++o) {
        emit(b, tape_->ops[o]);
        emitted = true;
      }
      if (r.completes(i)) {
        for (auto u = hooks_.again_ends[at(i)].rbegin(); u != hooks_.again_ends[at(i)].rend(); ++u) {
          if (emitted) release_late(b, tape_->ops[o - 1], u->op_begin);
          dialect_->after_recompute(b, u->unit);
        }
        if (emitted) release_late(b, tape_->ops[o - 1], -1);
      }
      if (emitted) allocate_late(b, tape_->ops[o - 1]);
      if (!r.completes(i)) break;
    }
    return o;
  }

  Buffer value_info(std::int32_t v) const {
    const TapeValue& value = tape_->values[at(v)];
    Buffer info;
    info.bytes = value.bytes;
    info.kind = value.kind;
    info.dtype = value.dtype;
    info.tensor = value.tensor;
    info.micro_batch = micro_batch_;
    return info;
  }

  void emit(StepBuilder& b, const TapeOp& t) {
    for (const TapeArg& a : tape_->args_of(t))
      if (a.kind == TapeArg::Kind::value) over_tensor_.wait_for(b, value_buffer_[at(a.id)]);
    if (t.action == Action::recompute)
      for (std::int32_t p : model_.ops[at(t.graph_op)].params)
        if (unit_of_[at(p)] >= 0) dialect_->before_recomputed_op(b, unit_of_[at(p)]);
    for (std::uint32_t k = 0; k < t.allocs.count; ++k) {
      const std::int32_t v = tape_->allocs[t.allocs.begin + k];
      b.allocate(value_buffer_[at(v)] = b.declare(value_info(v)));
    }
    for (std::uint32_t k = 0; k < t.inner.count; ++k) {
      const std::int32_t v = tape_->inner[t.inner.begin + k];
      if (v >= 0) b.allocate_inside(value_buffer_[at(v)] = b.declare(value_info(v)));
      else b.release_inside(value_buffer_[at(~v)]);
    }
    args_.clear();
    to_add_.clear();
    for (const TapeArg& a : tape_->args_of(t)) args_.push_back(resolve(b, a));
    if (t.action == Action::load_batch && micro_batch_ > 0) args_.back() = {};  // the loss is reset once per step
    Operation o = simple(t.action);
    o.graph_op = t.graph_op;
    o.micro_batch = micro_batch_;
    if (is_collective(t.action)) return emit_over_tensor(b, t, o);
    b.issue(o, args_);
    const auto release = [&](bool gradients) {
      for (std::uint32_t k = 0; k < t.frees.count; ++k) {
        const std::int32_t v = tape_->frees[t.frees.begin + k];
        if ((tape_->values[at(v)].kind == BufferKind::activation_gradient) == gradients)
          b.release(value_buffer_[at(v)]);
      }
    };
    if (t.action != Action::backward) {
      release(/*gradients=*/true);
      return release(/*gradients=*/false);
    }
    // Autograd converts gradients as operators return them: with the result's gradient, and what was saved unless the
    // module ran again. That of a transposed weight is returned by a later operator, sums are made later, too, and what
    // an op's first operator returned has been converted (Fsdp2Reduce::gradient) when the op ends.
    const Op& op = model_.ops[at(t.graph_op)];
    const bool again = tape_->runs_again(t.graph_op), transposes = is_matmul(op.kind) && !op.shape.transposed;
    if (again) release(/*gradients=*/false);
    std::vector<std::int32_t> params, later;
    for (const TapeArg& a : tape_->args_of(t))
      if (a.kind == TapeArg::Kind::gradient && !ignored_.holds(a.id)) params.push_back(a.id);
    if (op.kind == OpKind::linear) std::reverse(params.begin(), params.end());  // addmm takes the bias first
    for (const std::int32_t param : params) {
      const bool added = std::any_of(to_add_.begin(), to_add_.end(), [&](const Sum& s) { return s.param == param; });
      if (added || tape_->weight_first[at(t.graph_op)] || (transposes && param == op.params[0])) later.push_back(param);
      else dialect_->after_gradient(b, param);
    }
    release(/*gradients=*/true);
    if (transposes && !again) release(/*gradients=*/false);
    for (const Sum& sum : to_add_) {  // autograd's: kernels of their own
      Operation add = simple(Action::add_gradient);
      add.micro_batch = micro_batch_;
      const std::int32_t third = adds_to_view(sum.param, t.graph_op) ? b.allocate_new(gradient_of(sum.param)) : kNone;
      b.issue(add, {{sum.from, sum.into}});
      b.release(sum.from.buffer);
      if (third >= 0) b.release(third);
    }
    for (const std::int32_t param : later) dialect_->after_gradient(b, param);
    if (!transposes && !again) release(/*gradients=*/false);
  }

  // What a collective reads goes when somebody has waited for it.
  void emit_over_tensor(StepBuilder& b, const TapeOp& t, const Operation& o) {
    std::vector<std::int32_t> held, freed;
    for (std::uint32_t k = 0; k < t.frees.count; ++k) {
      const std::int32_t buffer = value_buffer_[at(tape_->frees[t.frees.begin + k])];
      const bool read = std::any_of(args_.begin(), args_.end(), [&](const Arg& a) { return a.buffer == buffer; });
      (read ? held : freed).push_back(buffer);
    }
    if (o.action == Action::all_reduce) {
      OverTensor::issue_and_wait(b, o, args_);
      freed.insert(freed.end(), held.begin(), held.end());
    } else {
      over_tensor_.issue(b, o, args_, std::move(held));
    }
    for (const std::int32_t buffer : freed) b.release(buffer);
  }

  Arg resolve(StepBuilder& b, const TapeArg& a) {
    switch (a.kind) {
      case TapeArg::Kind::absent: return {};
      case TapeArg::Kind::value: return {value_buffer_[at(a.id)], a.access};
      case TapeArg::Kind::parameter:
        return ignored_.holds(a.id) ? ignored_.parameter(a.id) : dialect_->parameter(b, a.id);
      case TapeArg::Kind::loss: return {loss_, a.access};
      case TapeArg::Kind::gradient: break;
    }
    const Arg g = ignored_.holds(a.id) ? ignored_.gradient(b, a.id) : dialect_->gradient(b, a.id);
    if (g.access == Access::write || impl_.backward_adds_in_place) return g;
    const Arg temp{b.allocate_new(gradient_of(a.id)), Access::write};
    to_add_.push_back({a.id, Arg{temp.buffer, Access::read}, g});
    return temp;
  }

  Buffer gradient_of(std::int32_t param) const {
    Buffer info;
    info.bytes = model_.gradient_numel(param) * size_of(plan_.param_dtype);
    info.kind = BufferKind::gradient;
    info.dtype = plan_.param_dtype;
    info.param = param;
    info.micro_batch = micro_batch_;
    return info;
  }

  // Of a parameter with several uses the engine adds up the gradients. That of a linear layer is a transposed view of
  // what its kernel made, to which the engine cannot add in place: the sum is a third tensor (docs/fsdp-order.md, B5).
  bool adds_to_view(std::int32_t param, std::int32_t graph_op) const {
    const LastUses& last = last_uses_[at(param)];
    return graph_op == last.before && model_.ops[at(last.last)].kind == OpKind::linear && !impl_.compiled;
  }

  const std::optional<ModelGraph> cast_;
  const ModelGraph& model_;
  const ShardingPlan& plan_;
  const Implementation& impl_;
  Program& program_;
  IgnoredParameters ignored_;
  OptimizerLowering optimizer_;
  std::unique_ptr<DialectHooks> dialect_;
  std::map<std::int64_t, Tape> tapes_;  // by sequences of a micro-batch
  UnitHooks hooks_;
  std::vector<std::int32_t> unit_of_;
  const Tape* tape_ = nullptr;
  OverTensor over_tensor_{impl_.tensor_collectives_recorded};
  std::vector<std::int32_t> value_buffer_;
  std::vector<Arg> args_;
  struct Sum {
    std::int32_t param = kNone;
    Arg from, into;
  };
  std::vector<Sum> to_add_;
  struct LastUses {  // ops of the forward; none: kNone
    std::int32_t last = kNone, before = kNone;
  };
  std::vector<LastUses> last_uses_;  // by parameter
  std::int32_t loss_ = -1;
  std::int16_t micro_batch_ = 0;
};

}  // namespace

Program lower(const ModelGraph& model, const ShardingPlan& plan, const PlanIds& ids, const Implementation& impl,
              std::int64_t rank) {
  Program program;
  program.model_digest = plan.model_digest;
  program.plan_digest = plan.digest();
  program.implementation = std::string(impl.name) + (impl.compiled ? "+compile" : "");
  program.dialect = plan.dialect;
  program.rank = rank;
  if (model.tensor_ranks != plan.tensor() || model.float8 != plan.float8.recipe)
    throw InternalError("lowering: the model is not that of the plan's ranks");
  program.layouts = unit_layouts(plan, ids, model);
  Lowering(model, plan, ids, impl, rank, program).lower();
  return program;
}

Program lower(const ModelGraph& model, const ShardingPlan& plan, const Implementation& impl, std::int64_t rank) {
  return lower(model, plan, resolve_ids(plan, model), impl, rank);
}

}  // namespace fsdp
