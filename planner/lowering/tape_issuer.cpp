#include "planner/lowering/tape_issuer.h"

#include <algorithm>
#include <utility>

#include "models/index.h"

namespace fsdp {

TapeIssuer::TapeIssuer(const LoweringContext& c, const ModelGraph& model, IgnoredParameters& ignored)
    : c_(c),
      model_(model),
      ignored_(ignored),
      last_uses_(model.parameters.size()),
      over_tensor_(c.implementation.tensor_collectives_recorded) {
  unit_of_ = unit_of_parameters(c.program.layouts, c.model);
  for (std::size_t i = 0; i < c.model.ops.size(); ++i)
    for (const std::int32_t p : c.model.ops[i].params) {
      LastUses& uses = last_uses_[at(p)];
      uses.before = std::exchange(uses.last, static_cast<std::int32_t>(i));
    }
}

void TapeIssuer::begin_forward(const Tape& tape, std::int16_t micro_batch, std::size_t index, std::size_t count) {
  passes_.resize(count);
  Pass& pass = passes_[index];
  pass.tape = &tape;
  pass.micro_batch = micro_batch;
  pass.buffers.assign(tape.values.size(), kNone);
  made_ = 0;
  now_ = index;
}

void TapeIssuer::allocate_late(StepBuilder& b, const TapeOp& op) {
  for (std::uint32_t k = 0; k < op.late_allocs.count; ++k) {
    const std::int32_t v = tape().late_allocs[op.late_allocs.begin + k];
    b.allocate(buffer_of(v) = b.declare(value_info(v)));
  }
}

void TapeIssuer::release_late(StepBuilder& b, const TapeOp& op, std::int32_t unit_begin) {
  for (std::uint32_t k = 0; k < op.late_frees.count; ++k) {
    const std::int32_t v = tape().late_frees[op.late_frees.begin + k];
    if (buffer_of(v) < 0 || tape().values[at(v)].scope <= unit_begin || stays(v)) continue;
    b.release(std::exchange(buffer_of(v), kNone));
  }
}

Buffer TapeIssuer::value_info(std::int32_t v) const {
  const TapeValue& value = tape().values[at(v)];
  Buffer info;
  info.bytes = value.bytes;
  info.kind = value.kind;
  info.dtype = value.dtype;
  info.tensor = value.tensor;
  info.host = value.host;
  info.micro_batch = passes_[now_].micro_batch;
  return info;
}

void TapeIssuer::emit(StepBuilder& b, const TapeOp& t) {
  for (const TapeArg& a : tape().args_of(t))
    if (a.kind == TapeArg::Kind::value) over_tensor_.wait_for(b, buffer_of(a.id));
  if (t.action == Action::recompute)
    for (std::int32_t p : model_.ops[at(t.graph_op)].params)
      if (unit_of_[at(p)] >= 0) dialect_->before_recomputed_op(b, unit_of_[at(p)]);
  if (std::exchange(step_begins_, false)) hold_over_step(b);
  const auto declared = [&](std::int32_t v) {
    buffer_of(v) = declare(b, v);
    if (holds(v)) hold(buffer_of(v));
    return buffer_of(v);
  };
  for (std::uint32_t k = 0; k < t.allocs.count; ++k) b.allocate(declared(tape().allocs[t.allocs.begin + k]));
  for (std::uint32_t k = 0; k < t.inner.count; ++k) {
    const std::int32_t v = tape().inner[t.inner.begin + k];
    if (v >= 0) b.allocate_inside(declared(v));
    else if (!stays(~v)) b.release_inside(buffer_of(~v));
  }
  args_.clear();
  to_add_.clear();
  for (const TapeArg& a : tape().args_of(t)) args_.push_back(resolve(b, t, a));
  if (t.action == Action::load_batch && passes_[now_].micro_batch > 0)
    args_.back() = {};  // the loss is reset once per step
  Operation o = operation(t.action);
  o.graph_op = t.graph_op;
  o.micro_batch = passes_[now_].micro_batch;
  o.part = t.part;
  o.products = t.products;
  if (t.second_stream) o.stream = Stream::tensor;
  if (t.action == Action::share_part || t.action == Action::tensor_barrier) join_streams(b, o);
  else if (!is_collective(t.action)) b.issue(o, args_);
  else emit_over_tensor(b, t, o);
  const bool forward_ends = t.action == Action::forward && at(t.graph_op) + 1 == model_.ops.size();
  if (forward_ends) let_gradients_go(b);
  if (!tape().holds_outputs || forward_ends)
    for (const std::int32_t buffer : std::exchange(replaced_, {})) b.release(buffer);
  if (is_collective(t.action)) return;
  if (t.action == Action::backward) return end_backward_op(b, t);
  release(b, t, /*gradients=*/true);
  release(b, t, /*gradients=*/false);
}

void TapeIssuer::end_backward(StepBuilder& b) {
  over_tensor_.end_micro_batch();
  for (now_ = 0; now_ < passes_.size(); ++now_)
    for (const std::int32_t v : tape().of_graph) b.release(buffer_of(v));
}

bool TapeIssuer::stays(std::int32_t value) const { return holds(value) || tape().values[at(value)].stays; }

bool TapeIssuer::holds(std::int32_t value) const { return passes_.size() == 1 && tape().values[at(value)].until_next; }

std::int32_t TapeIssuer::declare(StepBuilder& b, std::int32_t value) {
  const auto last = static_cast<std::int16_t>(c_.plan.micro_batches.size() - 1);
  if (!holds(value) || passes_[now_].micro_batch != last) return b.declare(value_info(value));
  if (made_ == left_.size()) left_.push_back(b.declare(value_info(value)));
  return left_[made_];
}

void TapeIssuer::hold(std::int32_t buffer) {
  if (made_ < held_.size()) replaced_.push_back(std::exchange(held_[made_], buffer));
  else held_.push_back(buffer);
  ++made_;
}

// What the backward before has made comes behind what forwards make, and no forward replaces it.
void TapeIssuer::let_gradients_go(StepBuilder& b) {
  for (; tape().holds_outputs && held_.size() > made_; held_.pop_back()) b.release(held_.back());
}

// A step of one micro-batch makes anew what it still holds of the step before. That is given another name as the step
// begins: as if it went, and its like came.
void TapeIssuer::hold_over_step(StepBuilder& b) {
  if (held_ != left_ || c_.plan.micro_batches.size() > 1) return;
  for (std::size_t k = 0; k < held_.size(); ++k) {
    b.release_inside(held_[k]);
    b.allocate_inside(held_[k] = b.declare_as(left_[k]));
  }
}

// Products in parts begin on both streams when what the compute stream holds by then has finished, and end there.
void TapeIssuer::join_streams(StepBuilder& b, const Operation& o) {
  in_parts_ = !in_parts_;
  if (!in_parts_) b.wait(Stream::compute, b.last(Stream::tensor));
  const std::int32_t issued = b.issue(o, args_);
  if (in_parts_) b.wait(Stream::tensor, issued);
}

void TapeIssuer::release(StepBuilder& b, const TapeOp& t, bool gradients) {
  for (std::uint32_t k = 0; k < t.frees.count; ++k) {
    const std::int32_t v = tape().frees[t.frees.begin + k];
    const bool gradient = tape().values[at(v)].kind == BufferKind::activation_gradient;
    if (gradient == gradients && !stays(v)) b.release(buffer_of(v));
  }
}

void TapeIssuer::end_backward_op(StepBuilder& b, const TapeOp& t) {
  // Autograd converts gradients as operators return them: with the result's gradient, and what was saved unless the
  // module ran again. That of a transposed weight is returned by a later operator, sums are made later, too, and what
  // an op's first operator returned has been converted (Fsdp2Reduce::gradient) when the op ends.
  const Op& op = model_.ops[at(t.graph_op)];
  const bool again = tape().runs_again(t.graph_op), transposes = is_matmul(op.kind) && !op.shape.transposed;
  if (again) release(b, t, /*gradients=*/false);
  params_.clear();
  later_.clear();
  for (const TapeArg& a : tape().args_of(t))
    if (a.kind == TapeArg::Kind::gradient && !ignored_.holds(a.id)) params_.push_back(a.id);
  if (op.kind == OpKind::linear) std::reverse(params_.begin(), params_.end());  // addmm takes the bias first
  for (const std::int32_t param : params_) {
    const bool added = std::any_of(to_add_.begin(), to_add_.end(), [&](const Sum& s) { return s.param == param; });
    if (added || tape().weight_first[at(t.graph_op)] || (transposes && param == op.params[0])) later_.push_back(param);
    else dialect_->after_gradient(b, param);
  }
  release(b, t, /*gradients=*/true);
  if (transposes && !again) release(b, t, /*gradients=*/false);
  for (const Sum& sum : to_add_) {  // autograd's: kernels of their own
    Operation add = operation(Action::add_gradient);
    add.micro_batch = passes_[now_].micro_batch;
    const std::int32_t third = adds_to_view(sum.param, t.graph_op) ? b.allocate_new(gradient_of(sum.param)) : kNone;
    b.issue(add, {{sum.from, sum.into}});
    b.release(sum.from.buffer);
    if (third >= 0) b.release(third);
  }
  for (const std::int32_t param : later_) dialect_->after_gradient(b, param);
  if (!transposes && !again) release(b, t, /*gradients=*/false);
}

// What a collective reads goes when somebody has waited for it.
void TapeIssuer::emit_over_tensor(StepBuilder& b, const TapeOp& t, const Operation& o) {
  std::vector<std::int32_t> held;
  freed_.clear();
  for (std::uint32_t k = 0; k < t.frees.count; ++k) {
    const std::int32_t buffer = buffer_of(tape().frees[t.frees.begin + k]);
    const bool read = std::any_of(args_.begin(), args_.end(), [&](const Arg& a) { return a.buffer == buffer; });
    (read ? held : freed_).push_back(buffer);
  }
  if (o.action == Action::all_reduce) {
    OverTensor::issue_and_wait(b, o, args_);
    freed_.insert(freed_.end(), held.begin(), held.end());
  } else {
    over_tensor_.issue(b, o, args_, std::move(held));
  }
  for (const std::int32_t buffer : freed_) b.release(buffer);
}

Arg TapeIssuer::resolve(StepBuilder& b, const TapeOp& t, const TapeArg& a) {
  switch (a.kind) {
    case TapeArg::Kind::absent: return {};
    case TapeArg::Kind::value: {
      Arg arg{buffer_of(a.id), a.access};
      if (a.part >= 0) {
        arg.bytes = tape().values[at(a.id)].bytes / t.parts;
        arg.offset = a.part * arg.bytes;
      } else if (t.part >= 0 && t.parts == 1) {
        narrow(t, a.id, arg);
      }
      return arg;
    }
    case TapeArg::Kind::parameter:
      return ignored_.holds(a.id) ? ignored_.parameter(a.id) : dialect_->parameter(b, a.id);
    case TapeArg::Kind::loss: return {loss_, a.access};
    case TapeArg::Kind::gradient: break;
  }
  const Arg g = ignored_.holds(a.id) ? ignored_.gradient(b, a.id) : dialect_->gradient(b, a.id);
  if (g.access == Access::write || c_.implementation.backward_adds_in_place) return g;
  const Arg temp{b.allocate_new(gradient_of(a.id)), Access::write};
  to_add_.push_back({a.id, Arg{temp.buffer, Access::read}, g});
  return temp;
}

void TapeIssuer::narrow(const TapeOp& t, std::int32_t value, Arg& arg) const {
  const TapeValue& v = tape().values[at(value)];
  if (v.tensor < 0 || (v.tensor != model_.targets && v.tensor != model_.ops[at(tape().head)].inputs[0])) return;
  arg.bytes = v.bytes / static_cast<std::int64_t>(tape().parts.size());
  arg.offset = t.part * arg.bytes;
}

Buffer TapeIssuer::gradient_of(std::int32_t param) const {
  const std::int32_t unit = unit_of_[at(param)];
  Buffer info;
  info.dtype = unit >= 0 ? c_.program.layouts[at(unit)].param_dtype : c_.plan.param_dtype;
  const bool uncast = c_.plan.dialect == Dialect::ddp || unit < 0;  // multiplied with as it is kept
  if (uncast && c_.plan.trained_dtype) info.dtype = *c_.plan.trained_dtype;
  info.bytes = model_.gradient_numel(param) * size_of(info.dtype);
  info.kind = BufferKind::gradient;
  info.param = param;
  info.micro_batch = passes_[now_].micro_batch;
  return info;
}

// Of a parameter with several uses the engine adds up the gradients. That of a linear layer is a transposed view of
// what its kernel made, to which the engine cannot add in place: the sum is a third tensor (docs/fsdp-order.md, B5).
bool TapeIssuer::adds_to_view(std::int32_t param, std::int32_t graph_op) const {
  const LastUses& last = last_uses_[at(param)];
  if (model_.ops[at(last.last)].kind != OpKind::linear || c_.implementation.compiled) return false;
  if (last.before < 0) return now_ + 2 == passes_.size();  // used once in each of several forwards
  return graph_op == last.before && now_ + 1 == passes_.size();
}

}  // namespace fsdp
