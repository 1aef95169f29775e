// Writing down which value is the gradient of which tensor, and how gradients of one tensor add up. For
// planner/lowering/tape/ alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "models/graph/op_ranges.h"
#include "models/graph/output_layer.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "planner/lowering/tape/gradient_values.h"
#include "planner/lowering/tape/writer.h"

namespace fsdp {

class GradientWriter : protected TapeWriter {
 protected:
  GradientWriter(const ModelGraph& model, const Implementation& impl, const Workload& work, DType dtype)
      : TapeWriter(model, work, dtype), impl_(impl), wide_(model.tensors.size(), 0), gradients_(model.tensors.size()) {}

  // The gradient of a gather is scattered, and the other way round. Of gathered columns each rank takes its own.
  void redistribute_gradient(std::int32_t i, std::int32_t out_gradient) {
    const Op& op = model_.ops[at(i)];
    const std::int32_t in = op.inputs[0];
    const Redistribution kind = op.shape.redistribution;
    const std::int32_t g = gradients_.of(in),
                       fresh = new_tensor_value(in, BufferKind::activation_gradient, /*wide=*/false);
    if (kind == Redistribution::gather_columns) {
      begin(Action::reorder_tokens, i);
      value_arg(out_gradient, Access::read);
      value_arg(fresh, Access::write);
    } else {
      const bool gathers = kind == Redistribution::scatter;
      move_rows(gathers, !gathers || work_.sequences > 1, i, out_gradient, fresh,
                model_.tensors[at(gathers ? in : op.outputs[0])], /*again=*/false);
    }
    gradients_.read(out_gradient);
    if (g < 0) gradients_.set(in, fresh);
    else add(fresh, g);
  }

  // Of all that it reads, or of the sum that an expert alone is added to.
  static bool passes_gradient_through(const Op& op) {
    return op.kind == OpKind::add || op.kind == OpKind::position_embedding || joins_experts(op);
  }
  static std::int32_t sum_before(const Op& op) {
    return op.kind == OpKind::moe_combine && op.inputs.size() == 4 ? op.inputs[3] : kNone;
  }
  static bool passes_gradient_to(const Op& op, std::int32_t tensor) {
    return passes_gradient_through(op) || sum_before(op) == tensor;
  }

  // Of what a frozen embedding has made (require_input_gradients): a leaf of autograd's graph, which keeps its
  // gradient, or a copy of one that somebody else holds. Both go with the graph: with the loss when backward has ended,
  // or with transformers' outputs, where the training loop holds them.
  void leave_gradient(std::int32_t made, std::int32_t gradient) {
    gradients_.read(gradient);
    if (tape_.values[at(gradient)].stays) {
      const TapeValue& held = tape_.values[at(gradient)];
      gradient = new_value(held.bytes, held.kind, held.dtype, held.tensor);
      spans_.push_back({gradient, last_op(), kNone});
    }
    if (!tape_.holds_outputs) return hold_with_graph({made, gradient});
    for (const std::int32_t v : {made, gradient}) tape_.values[at(v)].until_next = true;
  }

  void hold_with_graph(std::initializer_list<std::int32_t> values) {
    for (const std::int32_t v : values) {
      TapeValue& value = tape_.values[at(v)];
      if (std::exchange(value.stays, true)) continue;
      tape_.of_graph.push_back(v);
    }
  }

  // The function of a reentrant checkpoint holds what it was called with, what it has made again, and the gradients of
  // that, of which autograd then overwrites none. Values by tensor: of forward, and of the recomputation.
  void begin_reentrant(Region& r) {
    for (const std::int32_t out : model_.ops[at(r.end - 1)].outputs)
      if (gradients_.of(out) >= 0) gradients_.hold(gradients_.of(out)), hold_with_region(r, gradients_.of(out));
  }
  void end_reentrant(Region& r, const std::vector<std::int32_t>& forward, const std::vector<std::int32_t>& again) {
    for (const std::int32_t out : model_.ops[at(r.end - 1)].outputs) {
      if (gradients_.of(out) >= 0) gradients_.read(gradients_.of(out));  // held no longer
      hold_with_region(r, again[at(out)]);
    }
    for (const std::int32_t t : inputs_from_before(model_, r.begin, r.end)) {
      if (r.leaves_held && gradients_.of(t) >= 0) hold_with_graph({forward[at(t)], gradients_.of(t)});
      hold_with_region(r, forward[at(t)]);
    }
    for (const std::int32_t v : r.held) hold_until_now(v);
    r.last_backward = last_op();
  }
  void hold_with_region(Region& r, std::int32_t value) {
    if (value >= 0 && std::find(r.held.begin(), r.held.end(), value) == r.held.end()) r.held.push_back(value);
  }

  // Of what a split output layer reads: one value for all parts.
  std::int32_t gradient_of_parts(std::int32_t tensor) {
    if (part_ > 0) return gradients_.of(tensor);
    const Workload part = std::exchange(work_, whole_of(work_, static_cast<std::int64_t>(tape_.parts.size())));
    gradients_.set(tensor, new_tensor_value(tensor, BufferKind::activation_gradient, wide_[at(tensor)]));
    work_ = part;
    return gradients_.of(tensor);
  }

  void input_gradient(std::int32_t tensor, const Op& of, std::vector<std::pair<std::int32_t, std::int32_t>>& to_add) {
    if (!model_.tensors[at(tensor)].requires_grad || passes_gradient_to(of, tensor))
      return value_arg(-1, Access::write);
    if (part_ >= 0 && of.kind == OpKind::linear) return value_arg(gradient_of_parts(tensor), Access::write);
    const std::int32_t g = gradients_.of(tensor);
    if (g >= 0 && impl_.backward_adds_in_place && gradients_.exclusive(g)) return value_arg(g, Access::accumulate);
    const std::int32_t fresh = new_tensor_value(tensor, BufferKind::activation_gradient,
                                                wide_[at(tensor)] && (of.shape.wide_weight || impl_.autocast));
    value_arg(fresh, Access::write);
    if (of.kind == OpKind::linear && !impl_.compiled) gradients_.set_view(fresh);
    if (g >= 0 && gradients_.exclusive(g)) {
      to_add.emplace_back(fresh, g);
      return;
    }
    if (g >= 0) to_add.emplace_back(g, fresh);  // g is still read under another name: add it into the new one
    gradients_.set(tensor, fresh);
  }

  // The gradient of a sum is the gradient of each term: no kernel, the terms share the value. A term that is narrower
  // than the sum (under autocast, or beside an adapter in fp32) gets a copy in its own type.
  bool narrower(std::int32_t term, std::int32_t sum) const {
    if (impl_.autocast) return wide_[at(sum)] && !wide_[at(term)];
    const auto type = [&](std::int32_t tensor) { return model_.tensors[at(tensor)].dtype.value_or(dtype_); };
    return size_of(type(term)) < size_of(type(sum));
  }

  void pass_through(std::int32_t i, std::int32_t out_gradient) {
    const std::int32_t out = model_.ops[at(i)].outputs[0];
    for (std::int32_t in : model_.ops[at(i)].inputs) {
      if (!model_.tensors[at(in)].requires_grad || !passes_gradient_to(model_.ops[at(i)], in)) continue;
      if (narrower(in, out)) {
        if (gradients_.of(in) >= 0) throw InternalError("tape: a term that is cast has a gradient already");
        gradients_.set(in, narrow(i, out_gradient, in));
        continue;
      }
      const std::int32_t g = gradients_.of(in);
      if (g >= 0 && !gradients_.exclusive(g))
        throw InternalError("tape: a shared gradient is added to while others still read it");
      if (g < 0) gradients_.set(in, out_gradient);
      else add(out_gradient, g);
    }
  }

  std::int32_t narrow(std::int32_t i, std::int32_t gradient, std::int32_t in) {
    const std::int32_t fresh = new_tensor_value(in, BufferKind::activation_gradient, /*wide=*/false);
    begin(Action::backward, i);
    value_arg(gradient, Access::read);
    for (std::size_t k = 0; k < model_.ops[at(i)].inputs.size() + 3; ++k) value_arg(kNone, Access::read);
    for (const std::int32_t other : model_.ops[at(i)].inputs) value_arg(other == in ? fresh : kNone, Access::write);
    return fresh;
  }

  void add(std::int32_t from, std::int32_t into) {
    begin(Action::add_gradient, -1);
    value_arg(from, Access::read);
    value_arg(into, Access::accumulate);
    if (gradients_.take_view(into)) scratch_now(tape_.values[at(into)].bytes);
  }

  const Implementation& impl_;
  std::vector<char> wide_;  // by tensor: fp32, whatever activations are
  GradientValues gradients_;
};

}  // namespace fsdp
