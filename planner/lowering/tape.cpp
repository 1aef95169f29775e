#include "planner/lowering/tape.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace fsdp {
namespace {

using Kind = TapeArg::Kind;

struct Region { std::int32_t begin = 0, end = 0; };   // graph ops of one checkpointed module

class TapeBuilder {
 public:
  TapeBuilder(const ModelGraph& model, const Implementation& impl, const Workload& work, DType dtype)
      : model_(model), impl_(impl), work_(work), dtype_(dtype) {
    const std::size_t n = model.ops.size(), t = model.tensors.size();
    facts_.reserve(n);
    for (const Op& op : model.ops) facts_.push_back(facts(impl, op, work));
    producer_.assign(t, -1);
    for (std::size_t i = 0; i < n; ++i)
      for (std::int32_t out : model.ops[i].outputs) producer_[at(out)] = static_cast<std::int32_t>(i);
    region_of_.assign(n, -1);
    forward_value_.assign(t, -1);
    recomputed_value_.assign(t, -1);
    gradient_.assign(t, -1);
    extra_.assign(n, -1);
    tape_.forward_of.resize(n);
    tape_.backward_begin.resize(n);
    tape_.backward_end.resize(n);
    const std::size_t guess = n * 3;
    tape_.ops.reserve(guess);
    tape_.args.reserve(guess * 7);
    tape_.values.reserve(guess * 2);
  }

  void add_region(Region r) {
    const auto id = static_cast<std::int32_t>(regions_.size());
    regions_.push_back(r);
    for (std::int32_t i = r.begin; i < r.end; ++i) region_of_[at(i)] = id;
  }

  Tape build() {
    load_batch();
    const auto n = static_cast<std::int32_t>(model_.ops.size());
    for (std::int32_t i = 0; i < n; ++i) {
      tape_.forward_of[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
      run_forward(i, Action::forward);
    }
    for (std::int32_t i = n - 1; i >= 0; --i) {
      tape_.backward_begin[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
      if (region_of_[at(i)] >= 0 && regions_[at(region_of_[at(i)])].end == i + 1) recompute(regions_[at(region_of_[at(i)])]);
      run_backward(i);
      tape_.backward_end[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
    }
    place_lifetimes();
    return std::move(tape_);
  }

 private:
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  std::int32_t new_value(std::int64_t bytes, BufferKind kind, DType dtype, std::int32_t tensor) {
    tape_.values.push_back({bytes, kind, dtype, tensor});
    return static_cast<std::int32_t>(tape_.values.size()) - 1;
  }

  std::int32_t new_tensor_value(std::int32_t tensor, BufferKind kind) {
    const Tensor& t = model_.tensors[at(tensor)];
    const DType dtype = t.kind == TensorKind::ids ? DType::i64 : dtype_;
    return new_value(elements(t, work_) * size_of(dtype), kind, dtype, tensor);
  }

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

  // The value of a tensor as this phase of op i sees it: inside a checkpointed region being recomputed, the recomputed one.
  std::int32_t seen(std::int32_t tensor, bool recomputing) const {
    const std::int32_t r = recomputed_value_[at(tensor)];
    return recomputing && r >= 0 ? r : forward_value_[at(tensor)];
  }

  void run_forward(std::int32_t i, Action action) {
    const Op& op = model_.ops[at(i)];
    const OpFacts& f = facts_[at(i)];
    const bool again = action == Action::recompute;
    begin(action, i);
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
    extra_[at(i)] = f.saved_extra_bytes > 0 ? new_value(f.saved_extra_bytes, BufferKind::saved, DType::f32, -1) : -1;
    value_arg(extra_[at(i)], Access::write);
    scratch_arg(f.forward_scratch_bytes);
  }

  // Recomputes a region up to the last op whose result its backward needs (PyTorch's early stop).
  void recompute(const Region& r) {
    std::int32_t last = r.begin - 1;
    for (std::int32_t i = r.begin; i < r.end; ++i) {
      const Op& op = model_.ops[at(i)];
      const OpFacts& f = facts_[at(i)];
      if (f.saved_extra_bytes > 0 || f.saved_outputs != 0) last = std::max(last, i);
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        const std::int32_t p = producer_[at(op.inputs[k])];
        if ((f.saved_inputs >> k & 1) && p >= r.begin && p < r.end) last = std::max(last, p);
      }
    }
    for (std::int32_t i = r.begin; i <= last; ++i) run_forward(i, Action::recompute);
  }

  static bool passes_gradient_through(OpKind k) { return k == OpKind::add || k == OpKind::position_embedding; }

  void run_backward(std::int32_t i) {
    const Op& op = model_.ops[at(i)];
    const std::int32_t out_gradient = gradient_[at(op.outputs[0])];
    if (out_gradient < 0 && model_.tensors[at(op.outputs[0])].kind != TensorKind::loss) return;   // nobody needs it
    if (passes_gradient_through(op.kind)) pass_through(i, out_gradient);
    const bool kernel = !passes_gradient_through(op.kind) || !op.params.empty();
    if (!kernel) {
      if (out_gradient >= 0) --unread_[at(out_gradient)];
      return;
    }
    const bool again = region_of_[at(i)] >= 0;
    const OpFacts& f = facts_[at(i)];
    begin(Action::backward, i);
    value_arg(out_gradient, Access::read);
    for (std::size_t k = 0; k < op.inputs.size(); ++k)
      value_arg(f.saved_inputs >> k & 1 ? seen(op.inputs[k], again) : -1, Access::read);
    for (std::size_t k = 0; k < op.outputs.size(); ++k)
      value_arg(f.saved_outputs >> k & 1 ? seen(op.outputs[k], again) : -1, Access::read);
    for (std::int32_t p : op.params) arg(Kind::parameter, p, Access::read);
    value_arg(extra_[at(i)], Access::read);
    scratch_arg(f.backward_scratch_bytes);
    std::vector<std::pair<std::int32_t, std::int32_t>> to_add;
    for (std::int32_t in : op.inputs) input_gradient(in, passes_gradient_through(op.kind), to_add);
    for (std::int32_t p : op.params)
      arg(model_.parameters[at(p)].trainable ? Kind::gradient : Kind::absent, model_.parameters[at(p)].trainable ? p : -1, Access::write);
    for (auto [from, into] : to_add) add(from, into);
    if (out_gradient >= 0) --unread_[at(out_gradient)];
  }

  void input_gradient(std::int32_t tensor, bool passed, std::vector<std::pair<std::int32_t, std::int32_t>>& to_add) {
    if (!model_.tensors[at(tensor)].requires_grad || passed) return value_arg(-1, Access::write);
    const std::int32_t g = gradient_[at(tensor)];
    if (g >= 0 && impl_.backward_adds_in_place && exclusive(g)) return value_arg(g, Access::accumulate);
    const std::int32_t fresh = new_tensor_value(tensor, BufferKind::activation_gradient);
    value_arg(fresh, Access::write);
    if (g >= 0 && exclusive(g)) {
      to_add.emplace_back(fresh, g);
      return;
    }
    if (g >= 0) to_add.emplace_back(g, fresh);   // somebody still reads g under another name: add it into the new one instead
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
        throw std::logic_error("tape: a shared gradient is added to while others still read it");
      }
    }
  }

  // May `value` be overwritten on behalf of one tensor? Yes when no other tensor whose gradient it also is still has to be
  // read: a pass-through op gives one value to several tensors, each of which is read when its producer runs backward.
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
  }

  // Allocation before the first op that names a value, free after the last.
  void place_lifetimes() {
    const std::size_t n = tape_.values.size();
    std::vector<std::int32_t> first(n, -1), last(n, -1);
    for (std::size_t o = 0; o < tape_.ops.size(); ++o)
      for (const TapeArg& a : tape_.args_of(tape_.ops[o])) {
        if (a.kind != Kind::value) continue;
        if (first[at(a.id)] < 0) first[at(a.id)] = static_cast<std::int32_t>(o);
        last[at(a.id)] = static_cast<std::int32_t>(o);
      }
    tape_.allocs.reserve(n);
    tape_.frees.reserve(n);
    for (std::size_t o = 0; o < tape_.ops.size(); ++o) {
      TapeOp& op = tape_.ops[o];
      op.allocs.begin = static_cast<std::uint32_t>(tape_.allocs.size());
      op.frees.begin = static_cast<std::uint32_t>(tape_.frees.size());
      for (const TapeArg& a : tape_.args_of(op)) {
        if (a.kind != Kind::value) continue;
        if (first[at(a.id)] == static_cast<std::int32_t>(o)) {
          tape_.allocs.push_back(a.id);
          ++op.allocs.count;
          first[at(a.id)] = -1;              // named twice by one op: allocate once
        }
        if (last[at(a.id)] == static_cast<std::int32_t>(o)) {
          tape_.frees.push_back(a.id);
          ++op.frees.count;
          last[at(a.id)] = -1;
        }
      }
    }
  }

  const ModelGraph& model_;
  const Implementation& impl_;
  const Workload work_;
  const DType dtype_;
  std::vector<OpFacts> facts_;
  std::vector<Region> regions_;
  std::vector<std::int32_t> producer_, region_of_;                       // by tensor, by op
  std::vector<std::int32_t> forward_value_, recomputed_value_, gradient_;  // by tensor
  std::vector<std::int32_t> unread_;                                     // by value: tensors whose gradient it is and that are still to be read
  std::vector<std::int32_t> extra_;                                      // by op: the latest run's
  Tape tape_;
};

}  // namespace

Tape make_tape(const ModelGraph& model, const Implementation& impl, const Workload& work, DType compute_dtype,
               const std::vector<std::string>& checkpointed) {
  TapeBuilder builder(model, impl, work, compute_dtype);
  for (const std::string& name : checkpointed) {
    const Module& m = model.modules[static_cast<std::size_t>(model.find_module(name))];
    builder.add_region({m.op_begin, m.op_end});
  }
  return builder.build();
}

}  // namespace fsdp
