#include "planner/lowering/tape/tape.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "models/graph/byte_total.h"
#include "models/index.h"
#include "models/input/error.h"
#include "planner/lowering/tape/frames.h"
#include "planner/lowering/tape/lifetimes.h"

namespace fsdp {
namespace {

using Kind = TapeArg::Kind;

class TapeBuilder {
 public:
  TapeBuilder(const ModelGraph& model, const Implementation& impl, const Workload& work, DType dtype)
      : model_(model), impl_(impl), work_(work), dtype_(dtype), total_(work) {
    const std::size_t n = model.ops.size(), t = model.tensors.size();
    facts_.reserve(n);
    for (const Op& op : model.ops) facts_.push_back(facts(impl, op, work, model));
    producer_.assign(t, -1);
    for (std::size_t i = 0; i < n; ++i)
      for (std::int32_t out : model.ops[i].outputs) producer_[at(out)] = static_cast<std::int32_t>(i);
    region_of_.assign(n, -1);
    forward_value_.assign(t, -1);
    recomputed_value_.assign(t, -1);
    if (impl.frames_hold_inputs) holds_ = frame_holds(model, impl, producer_);
    gradient_.assign(t, -1);
    extra_.assign(n, -1);
    made_again_.assign(n, -1);
    kept_.assign(n, 0);
    last_run_.assign(n, kNone);
    gate_waits_.assign(n, kNone);
    tape_.forward_of.resize(n);
    tape_.backward_begin.resize(n);
    tape_.backward_end.resize(n);
    tape_.recomputed_at.assign(n, kNone);
    const std::size_t guess = n * 3;
    tape_.ops.reserve(guess);
    tape_.args.reserve(guess * 7);
    tape_.values.reserve(guess * 2);
  }

  void add_region(const Module& m, CheckpointPolicy policy) {
    const auto id = static_cast<std::int32_t>(tape_.regions.size());
    const Region r = recomputed_region(m.op_begin, m.op_end, model_, impl_, facts_, producer_);
    tape_.regions.push_back(r);
    if (r.runs()) tape_.recomputed_at[at(r.needed_by)] = id;
    std::int64_t matmuls = 0;
    for (std::int32_t i = r.begin; i < r.end; ++i) {
      region_of_[at(i)] = id;
      const Op& op = model_.ops[at(i)];
      if (op.kind == OpKind::linear && op.params.size() == 1) ++matmuls;
      kept_[at(i)] =
          policy == CheckpointPolicy::selective_op && impl_.keeps_selectively && impl_.keeps_selectively(op, matmuls);
    }
  }

  Tape build() {
    load_batch();
    const auto n = static_cast<std::int32_t>(model_.ops.size());
    for (std::int32_t i = 0; i < n; ++i) {
      tape_.forward_of[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
      run_forward(i, Action::forward);
    }
    hold_frames();
    for (std::int32_t i = n - 1; i >= 0; --i) {
      tape_.backward_begin[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
      if (tape_.recomputed_at[at(i)] >= 0) recompute(tape_.regions[at(tape_.recomputed_at[at(i)])]);
      run_backward(i);
      if (region_of_[at(i)] >= 0 && tape_.regions[at(region_of_[at(i)])].begin == i)
        end_region(tape_.regions[at(region_of_[at(i)])]);
      tape_.backward_end[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
    }
    place_lifetimes(tape_, spans_, events_);
    return std::move(tape_);
  }

 private:
  std::int32_t new_value(std::int64_t bytes, BufferKind kind, DType dtype, std::int32_t tensor) {
    total_.add(bytes);
    tape_.values.push_back({bytes, kind, dtype, tensor});
    return static_cast<std::int32_t>(tape_.values.size()) - 1;
  }

  std::int32_t new_tensor_value(std::int32_t tensor, BufferKind kind) {
    const Tensor& t = model_.tensors[at(tensor)];
    const DType dtype = t.kind == TensorKind::ids ? DType::i64 : dtype_;
    return new_value(elements(t, work_) * size_of(dtype), kind, dtype, tensor);
  }

  std::int32_t last_op() const { return static_cast<std::int32_t>(tape_.ops.size()) - 1; }

  void begin(Action action, std::int32_t graph_op) {
    TapeOp op;
    op.action = action;
    op.graph_op = graph_op;
    op.args.begin = static_cast<std::uint32_t>(tape_.args.size());
    tape_.ops.push_back(op);
  }

  void arg(Kind kind, std::int32_t id, Access access) {
    tape_.args.push_back({id < 0 && kind != Kind::loss ? Kind::absent : kind, access, id});
    ++tape_.ops.back().args.count;
  }

  void value_arg(std::int32_t value, Access access) { arg(Kind::value, value, access); }

  void scratch_arg(std::int64_t bytes) {
    value_arg(bytes > 0 ? new_value(bytes, BufferKind::scratch, dtype_, -1) : -1, Access::write);
  }

  void load_batch() {
    begin(Action::load_batch, -1);
    for (std::int32_t t : {model_.ids, model_.targets}) {
      forward_value_[at(t)] = new_tensor_value(t, BufferKind::batch);
      value_arg(forward_value_[at(t)], Access::write);
    }
    arg(Kind::loss, -1, Access::write);
  }

  // The value of a tensor as this phase of op i sees it: inside a checkpointed region being recomputed, the recomputed
  // one.
  std::int32_t seen(std::int32_t tensor, bool recomputing) const {
    const std::int32_t r = recomputed_value_[at(tensor)];
    return recomputing && r >= 0 ? r : forward_value_[at(tensor)];
  }

  void run_forward(std::int32_t i, Action action) {
    const Op& op = model_.ops[at(i)];
    const OpFacts& f = facts_[at(i)];
    const bool again = action == Action::recompute;
    begin(action, i);
    last_run_[at(i)] = last_op();
    for (std::int32_t in : op.inputs) value_arg(seen(in, again), Access::read);
    for (std::int32_t p : op.params) arg(Kind::parameter, p, Access::read);
    for (std::int32_t out : op.outputs) {
      if (model_.tensors[at(out)].kind == TensorKind::loss) {
        arg(Kind::loss, -1, Access::accumulate);
        continue;
      }
      const std::int32_t v = new_tensor_value(out, BufferKind::activation);
      (again ? recomputed_value_ : forward_value_)[at(out)] = v;
      value_arg(v, Access::write);
    }
    const bool discarded = !again && region_of_[at(i)] >= 0 && f.extra_replaces_input && !reads_kept(op);
    const std::int64_t extra = kept_[at(i)] ? f.result_extra_bytes : discarded ? 0 : f.saved_extra_bytes;
    extra_[at(i)] = extra > 0 ? new_value(extra, BufferKind::saved, DType::f32, -1) : -1;
    value_arg(extra_[at(i)], Access::write);
    const bool detailed = !f.forward_inside.script.empty() && !kept_[at(i)];
    scratch_arg(detailed ? 0 : f.forward_scratch_bytes + (kept_[at(i)] ? f.saved_extra_bytes - extra : 0));
    if (op.kind == OpKind::position_embedding) looked_up_ = tape_.args.back().id;
    // gelu(gate) or silu(gate) is there before `up` is computed.
    const std::int32_t gate = f.extra_replaces_input ? producer_[at(op.inputs[0])] : kNone;
    if (extra_[at(i)] >= 0 && gate >= 0 && !(again && kept_[at(gate)]))
      spans_.push_back({extra_[at(i)], last_run_[at(gate)], -1, kNone, /*after=*/true});
    if (detailed)
      inside(f.forward_inside, op.outputs.size() == 1 ? one(output_value(op, again)) : Values{}, -1, {}, -1,
             extra_[at(i)]);
  }

  using Values = std::vector<std::int32_t>;
  static Values one(std::int32_t v) { return {v}; }
  std::int32_t output_value(const Op& op, bool again) const {
    return (again ? recomputed_value_ : forward_value_)[at(op.outputs[0])];
  }

  // Carries out an op's memory script on the values of the op that was begun last.
  void inside(const Inside& in, const Values& results, std::int32_t gradient, const Values& inputs, std::int32_t output,
              std::int32_t extra) {
    const std::int32_t o = last_op();
    std::array<std::int32_t, MemoryScript::kTemporaries> temporaries;
    temporaries.fill(kNone);
    const auto say = [&](std::int32_t value, bool appears) {
      if (value >= 0) events_.push_back({o, appears ? value : ~value});
    };
    for (const MemoryScript::Step& step : in.script.steps()) {
      const std::size_t k = step.index;
      switch (step.what) {
        case MemoryScript::What::temporary:
          if (step.appears && in.bytes[k] > 0) {
            temporaries[k] = new_value(in.bytes[k], BufferKind::scratch, dtype_, kNone);
            spans_.push_back({temporaries[k], o, o});
          }
          say(temporaries[k], step.appears);
          break;
        case MemoryScript::What::result:
          if (k < results.size()) say(results[k], step.appears);
          break;
        case MemoryScript::What::all_results:
          for (const std::int32_t r : results) say(r, step.appears);
          break;
        case MemoryScript::What::extra: say(extra, step.appears); break;
        case MemoryScript::What::output_gradient: say(gradient, step.appears); break;
        case MemoryScript::What::saved_input:
          if (k < inputs.size()) say(inputs[k], step.appears);
          break;
        case MemoryScript::What::saved_output: say(output, step.appears); break;
      }
    }
  }

  bool reads_kept(const Op& op) const {
    return std::any_of(op.inputs.begin(), op.inputs.end(),
                       [&](std::int32_t in) { return producer_[at(in)] >= 0 && kept_[at(producer_[at(in)])]; });
  }

  void hold_frames() {
    for (const FrameHold& h : holds_) {
      const std::int32_t value = h.tensor >= 0 ? forward_value_[at(h.tensor)] : looked_up_;
      if (value >= 0)
        spans_.push_back({value, -1, static_cast<std::int32_t>(tape_.forward_of[at(h.end - 1)]), h.scope});
    }
  }

  void hold_recomputed(const Region& r) {
    if (!impl_.frames_hold_inputs) return;
    for (const std::int32_t t : held_by_recomputation(model_, r, holds_, producer_))
      if (recomputed_value_[at(t)] >= 0) spans_.push_back({recomputed_value_[at(t)], -1, last_op()});
  }

  // A kept result is taken as it is. What its op makes for backward beside it is made again, at the end of the op
  // before (copies of k and v for all heads: the time of the copies is not counted).
  void recompute(const Region& r) {
    const std::size_t first = tape_.ops.size();
    for (std::int32_t i = r.begin; i <= r.last; ++i) {
      if (!kept_[at(i)]) {
        run_forward(i, Action::recompute);
        continue;
      }
      const auto here = static_cast<std::int32_t>(std::max(first, tape_.ops.size() - 1));
      if (impl_.keeps_unneeded_results)
        for (std::int32_t out : model_.ops[at(i)].outputs) spans_.push_back({forward_value_[at(out)], -1, here});
      const std::int64_t again = facts_[at(i)].saved_extra_bytes - facts_[at(i)].result_extra_bytes;
      if (again == 0) continue;
      made_again_[at(i)] = new_value(again, BufferKind::saved, DType::f32, -1);
      spans_.push_back({made_again_[at(i)], here, -1});
      for (std::int32_t in : model_.ops[at(i)].inputs) spans_.push_back({seen(in, true), -1, here});
    }
    hold_recomputed(r);
  }

  // The checkpoint of a Python module holds what the module was called with, and kept results that were not asked for,
  // until its backward has ended.
  void end_region(const Region& r) {
    if (r.last < r.begin) return;
    std::int32_t here = last_op();
    while (here > 0 && tape_.ops[at(here)].action == Action::add_gradient) --here;
    for (std::int32_t i = r.begin; i < r.end && impl_.frames_hold_inputs; ++i)
      for (std::int32_t in : model_.ops[at(i)].inputs)
        if (producer_[at(in)] >= 0 && producer_[at(in)] < r.begin) spans_.push_back({forward_value_[at(in)], -1, here});
    if (!impl_.keeps_unneeded_results || !impl_.recompute_stops_early) return;
    for (std::int32_t i = std::max(r.begin, r.last + 1); i < r.end; ++i)
      if (kept_[at(i)])
        for (std::int32_t out : model_.ops[at(i)].outputs) spans_.push_back({forward_value_[at(out)], -1, here});
  }

  static bool passes_gradient_through(OpKind k) { return k == OpKind::add || k == OpKind::position_embedding; }

  void run_backward(std::int32_t i) {
    const Op& op = model_.ops[at(i)];
    // Of several results the first has a gradient, and decides whether this op is needed; the others may be ids.
    const std::int32_t out_gradient = gradient_[at(op.outputs[0])];
    const Tensor& out = model_.tensors[at(op.outputs[0])];
    if (!out.requires_grad || (out_gradient < 0 && out.kind != TensorKind::loss)) return;  // not needed
    if (passes_gradient_through(op.kind)) pass_through(i, out_gradient);
    const bool trains = std::any_of(op.params.begin(), op.params.end(),
                                    [&](std::int32_t p) { return model_.parameters[at(p)].trainable; });
    const bool kernel = !passes_gradient_through(op.kind) || trains;
    if (!kernel) {
      if (out_gradient >= 0) --unread_[at(out_gradient)];
      return;
    }
    const bool again = region_of_[at(i)] >= 0;
    const OpFacts& f = facts_[at(i)];
    begin(Action::backward, i);
    for (std::int32_t o : op.outputs) value_arg(gradient_[at(o)], Access::read);
    for (std::size_t k = 0; k < op.inputs.size(); ++k)
      value_arg(f.saved_inputs >> k & 1 ? seen(op.inputs[k], again) : -1, Access::read);
    for (std::size_t k = 0; k < op.outputs.size(); ++k)
      value_arg(f.saved_outputs >> k & 1 ? seen(op.outputs[k], again) : -1, Access::read);
    for (std::int32_t p : op.params) arg(Kind::parameter, p, Access::read);
    value_arg(extra_[at(i)], Access::read);
    const bool detailed = !f.backward_inside.script.empty();
    scratch_arg(detailed ? 0 : f.backward_scratch_bytes);
    if (made_again_[at(i)] >= 0) spans_.push_back({made_again_[at(i)], -1, last_op()});
    std::vector<std::pair<std::int32_t, std::int32_t>> to_add;
    const std::size_t gradients = tape_.args.size();
    for (std::int32_t in : op.inputs)
      input_gradient(in, passes_gradient_through(op.kind), op.kind == OpKind::linear, to_add);
    if (detailed) {
      Values results, saved;
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        results.push_back(tape_.args[gradients + k].id);
        saved.push_back(f.saved_inputs >> k & 1 ? seen(op.inputs[k], again) : -1);
      }
      inside(f.backward_inside, results, out_gradient, saved, f.saved_outputs & 1 ? seen(op.outputs[0], again) : -1,
             extra_[at(i)]);
    }
    for (std::int32_t p : op.params)
      arg(model_.parameters[at(p)].trainable ? Kind::gradient : Kind::absent,
          model_.parameters[at(p)].trainable ? p : -1, Access::write);
    if (gate_waits_[at(i)] >= 0) spans_.push_back({gate_waits_[at(i)], -1, last_op(), /*scope=*/0});
    if (op.inputs.size() == 2 && f.extra_replaces_input) {
      const std::int32_t gate = producer_[at(op.inputs[0])], up = producer_[at(op.inputs[1])];
      if (up > gate && gate >= 0) gate_waits_[at(gate + 1)] = seen(op.inputs[0], again);  // where up's backward ends
      else spans_.push_back({new_value(f.saved_extra_bytes, BufferKind::scratch, dtype_, kNone), last_op(), last_op()});
    }
    for (auto [from, into] : to_add) add(from, into);
    for (std::int32_t o : op.outputs)
      if (gradient_[at(o)] >= 0) --unread_[at(gradient_[at(o)])];
  }

  // view: PyTorch's gradient is a view, as that of a linear layer's input is, which has three dimensions.
  void input_gradient(std::int32_t tensor, bool passed, bool view,
                      std::vector<std::pair<std::int32_t, std::int32_t>>& to_add) {
    if (!model_.tensors[at(tensor)].requires_grad || passed) return value_arg(-1, Access::write);
    const std::int32_t g = gradient_[at(tensor)];
    if (g >= 0 && impl_.backward_adds_in_place && exclusive(g)) return value_arg(g, Access::accumulate);
    const std::int32_t fresh = new_tensor_value(tensor, BufferKind::activation_gradient);
    value_arg(fresh, Access::write);
    is_view_.resize(tape_.values.size());
    is_view_[at(fresh)] = view && !impl_.compiled && !impl_.backward_adds_in_place;
    if (g >= 0 && exclusive(g)) {
      to_add.emplace_back(fresh, g);
      return;
    }
    if (g >= 0) to_add.emplace_back(g, fresh);  // g is still read under another name: add it into the new one
    set_gradient(tensor, fresh);
  }

  // The gradient of a sum is the gradient of each term: no kernel, the terms share the value.
  void pass_through(std::int32_t i, std::int32_t out_gradient) {
    for (std::int32_t in : model_.ops[at(i)].inputs) {
      if (!model_.tensors[at(in)].requires_grad) continue;
      const std::int32_t g = gradient_[at(in)];
      if (g < 0) {
        set_gradient(in, out_gradient);
      } else if (exclusive(g)) {
        add(out_gradient, g);
      } else {
        throw InternalError("tape: a shared gradient is added to while others still read it");
      }
    }
  }

  // May `value` be overwritten on behalf of one tensor? Yes when no other tensor whose gradient it also is still has to
  // be read: a pass-through op gives one value to several tensors, each of which is read when its producer runs
  // backward.
  bool exclusive(std::int32_t value) const { return unread_[at(value)] == 1; }

  void set_gradient(std::int32_t tensor, std::int32_t value) {
    std::int32_t& g = gradient_[at(tensor)];
    if (g >= 0) --unread_[at(g)];
    g = value;
    unread_.resize(tape_.values.size(), 0);
    ++unread_[at(value)];
  }

  void add(std::int32_t from, std::int32_t into) {
    begin(Action::add_gradient, -1);
    value_arg(from, Access::read);
    value_arg(into, Access::accumulate);
    if (std::exchange(is_view_[at(into)], false))  // a third tensor is made (docs/fsdp-order.md, B5)
      spans_.push_back(
          {new_value(tape_.values[at(into)].bytes, BufferKind::scratch, dtype_, kNone), last_op(), last_op()});
  }

  const ModelGraph& model_;
  const Implementation& impl_;
  const Workload work_;
  const DType dtype_;
  ByteTotal total_;
  std::vector<OpFacts> facts_;
  std::vector<std::int32_t> producer_, region_of_;                         // by tensor, by op
  std::vector<std::int32_t> forward_value_, recomputed_value_, gradient_;  // by tensor
  std::vector<char> is_view_;         // by value: gradients that PyTorch's engine cannot add to in place
  std::vector<std::int32_t> unread_;  // by value: tensors whose gradient it is and that are still to be read
  std::vector<std::int32_t> extra_, made_again_;  // by op: the latest run's; what a kept op's recomputation makes
  std::vector<char> kept_;                        // by op: its result survives until backward
  std::vector<std::int32_t> last_run_;            // by op: the latest tape op of its forward
  std::vector<std::int32_t>
      gate_waits_;  // by op: the gate that is kept while it runs backward, for silu's that follows
  std::vector<MemoryEvent> events_;
  std::vector<Held> spans_;
  std::vector<FrameHold> holds_;
  std::int32_t looked_up_ = kNone;  // the value of the positions' rows
  Tape tape_;
};

}  // namespace

Tape make_tape(const ModelGraph& model, const Implementation& impl, const Workload& work, DType compute_dtype,
               const std::vector<std::int32_t>& checkpointed, CheckpointPolicy policy) {
  if (policy == CheckpointPolicy::selective_op && !checkpointed.empty() && !impl.keeps_selectively)
    throw InputError({"plan", "checkpoint_policy"}, std::string(impl.name) + " has no selective checkpointing",
                     "use full");
  TapeBuilder builder(model, impl, work, compute_dtype);
  for (const std::int32_t id : checkpointed) {
    builder.add_region(model.modules[static_cast<std::size_t>(id)], policy);
  }
  return builder.build();
}

}  // namespace fsdp
