// Writing a tape down: its operations, their arguments, and the values that they make. For planner/lowering/tape/
// alone.
#pragma once

#include <cstdint>
#include <vector>

#include "models/graph/byte_total.h"
#include "models/index.h"
#include "planner/lowering/tape/inside.h"
#include "planner/lowering/tape/lifetimes.h"
#include "planner/lowering/tape/tape.h"

namespace fsdp {

class TapeWriter {
 protected:
  using Kind = TapeArg::Kind;

  TapeWriter(const ModelGraph& model, const Workload& work, DType dtype)
      : model_(model), work_(work), dtype_(dtype), total_(work) {}

  std::int32_t new_value(std::int64_t bytes, BufferKind kind, DType dtype, std::int32_t tensor) {
    total_.add(bytes);
    tape_.values.push_back({bytes, kind, dtype, tensor});
    return static_cast<std::int32_t>(tape_.values.size()) - 1;
  }

  std::int32_t new_tensor_value(std::int32_t tensor, BufferKind kind, bool wide) {
    const Tensor& t = model_.tensors[at(tensor)];
    const DType dtype = t.kind == TensorKind::ids ? DType::i64 : wide ? DType::f32 : t.dtype.value_or(dtype_);
    return new_value(elements(t, work_) * size_of(dtype), kind, dtype, tensor);
  }

  std::int32_t last_op() const { return static_cast<std::int32_t>(tape_.ops.size()) - 1; }

  void begin(Action action, std::int32_t graph_op) {
    TapeOp op;
    op.action = action;
    op.graph_op = op.turn = graph_op;
    op.part = part_;
    op.args.begin = static_cast<std::uint32_t>(tape_.args.size());
    tape_.ops.push_back(op);
  }

  void arg(Kind kind, std::int32_t id, Access access) {
    tape_.args.push_back({id < 0 && kind != Kind::loss ? Kind::absent : kind, access, kNone, id});
    ++tape_.ops.back().args.count;
  }

  void value_arg(std::int32_t value, Access access) { arg(Kind::value, value, access); }

  void scratch_arg(std::int64_t bytes) {
    value_arg(bytes > 0 ? new_value(bytes, BufferKind::scratch, dtype_, -1) : -1, Access::write);
  }

  // Copies a value into host memory, or back from there; returns the copy.
  std::int32_t copied(Action action, std::int32_t graph_op, std::int32_t from) {
    const TapeValue v = tape_.values[at(from)];
    const bool out = action == Action::offload_activation;
    const std::int32_t to = new_value(v.bytes, out ? BufferKind::saved : BufferKind::activation, v.dtype, v.tensor);
    tape_.values.back().host = out;
    begin(action, graph_op);
    value_arg(from, Access::read);
    value_arg(to, Access::write);
    return to;
  }

  void hold_until_now(std::int32_t value) {
    if (value >= 0) spans_.push_back({value, kNone, last_op()});
  }
  void scratch_now(std::int64_t bytes) {
    spans_.push_back({new_value(bytes, BufferKind::scratch, dtype_, kNone), last_op(), last_op()});
  }

  // Carries out an op's memory script on the op that was begun last. Where temporaries are there, its begin has been.
  void inside(const Inside& in, const ScriptValues& values, const Temporaries& there = no_temporaries()) {
    const std::size_t from = there == no_temporaries() ? 0 : steps_before_saved(in.script);
    const auto more =
        events_inside(in, in.script.steps().subspan(from), last_op(), there, values, [&](std::int64_t bytes) {
          const std::int32_t v = new_value(bytes, BufferKind::scratch, dtype_, kNone);
          spans_.push_back({v, last_op(), last_op()});
          return v;
        });
    events_.insert(events_.end(), more.begin(), more.end());
  }

  // DTensor's functional collectives move dimension 0 alone: parts of sequences are copied one behind the other before
  // a reduce-scatter, and back behind an all-gather, unless there is but one sequence.
  void move_rows(bool gathers, bool copies, std::int32_t i, std::int32_t from, std::int32_t to, const Tensor& whole,
                 bool again) {
    const std::int32_t parts =
        copies ? new_value(elements(whole, work_) * size_of(dtype_), BufferKind::scratch, dtype_, kNone) : kNone;
    const auto step = [&](Action action, std::int32_t reads, std::int32_t writes) {
      begin(action, i);
      tape_.ops.back().recomputed = again;
      value_arg(reads, Access::read);
      value_arg(writes, Access::write);
    };
    if (!gathers && copies) step(Action::reorder_tokens, from, parts);
    step(gathers ? Action::all_gather : Action::reduce_scatter, copies && !gathers ? parts : from,
         copies && gathers ? parts : to);
    if (gathers && copies) step(Action::reorder_tokens, parts, to);
    hold_until_now(from);  // by the function that moves it
  }

  // `values`: by tensor.
  void load_batch(std::vector<std::int32_t>& values) {
    begin(Action::load_batch, -1);
    for (std::int32_t t : {model_.ids, model_.targets})
      value_arg(values[at(t)] = new_tensor_value(t, BufferKind::batch, /*wide=*/false), Access::write);
    arg(TapeArg::Kind::loss, -1, Access::write);
  }

  [[nodiscard]] bool trained(std::int32_t param) const { return model_.parameters[at(param)].trainable; }

  // Of transformers' outputs a value for logits that are cast to fp32, beside what the loss keeps; kNone: they are not.
  std::int32_t logits_of_outputs(LoopHolds held) {
    const Op& loss = model_.ops.back();
    made_outputs_ = loss.kind == OpKind::cross_entropy && tape_.head < 0;
    tape_.holds_outputs = made_outputs_ && held == LoopHolds::outputs;
    if (!made_outputs_ || work_.element_bytes != 2) return kNone;
    const std::int64_t logits = elements(model_.tensors[at(loss.inputs[0])], work_);
    return new_value(logits * size_of(DType::f32), BufferKind::saved, DType::f32, kNone);
  }
  void hold_outputs(std::int32_t cast_logits, const std::vector<std::int32_t>& values) {
    if (!made_outputs_) return;
    const auto forward_ends = static_cast<std::int32_t>(tape_.forward_of.back());
    const auto hold = [&](std::int32_t v) {
      if (tape_.holds_outputs) tape_.values[at(v)].until_next = true;
      else spans_.push_back({v, kNone, forward_ends});
    };
    hold(cast_logits >= 0 ? cast_logits : values[at(model_.ops.back().inputs[0])]);
    for (const Op& op : model_.ops)
      for (std::size_t k = 1; k < 3 && op.kind == OpKind::attention && op.inputs.size() == 3; ++k)
        hold(values[at(op.inputs[k])]);
  }

  // Behind backward, of whole logits: no training loop with metrics computes those in parts. `values`: by tensor.
  void update_metrics(const AfterBackward& metrics, bool holds_logits, const std::vector<std::int32_t>& values) {
    const Op& loss = model_.ops.back();
    if (loss.kind != OpKind::cross_entropy || tape_.head >= 0) return;
    if (holds_logits) tape_.values[at(values[at(loss.inputs[0])])].until_next = true;
    if (metrics.launches == 0) return;
    begin(Action::update_metrics, static_cast<std::int32_t>(model_.ops.size()) - 1);
    for (const std::int32_t in : loss.inputs) value_arg(values[at(in)], Access::read);
    inside(metrics.inside, {});
    tape_.metrics = last_op();
  }

  // A loss of logits that are split: the largest logit of each token, the sum of its exponentials and the target's
  // logit, each over all ranks, in fp32.
  void reduce_statistics(std::int32_t i) {
    const std::int32_t each = new_value(work_.tokens() * size_of(DType::f32), BufferKind::scratch, DType::f32, kNone);
    spans_.push_back({each, last_op(), last_op()});
    for (int k = 0; k < 3; ++k) {
      begin(Action::all_reduce, i);
      value_arg(each, Access::accumulate);
    }
  }

  // The same with our kernels between the reductions (Action::loss_statistic); the first of them has been begun, and
  // its last argument is what is reduced.
  void sum_loss(std::int32_t i, std::int32_t kept, std::int32_t logits, std::int32_t targets) {
    const DType wide = dtype_ == DType::f64 ? DType::f64 : DType::f32;
    const std::int32_t each = new_value(work_.tokens() * size_of(wide), BufferKind::scratch, wide, kNone);
    value_arg(each, Access::write);
    for (int k = 0; k < 3; ++k) {
      begin(Action::all_reduce, i);
      value_arg(each, Access::accumulate);
      begin(Action::loss_statistic, i);
      value_arg(k == 1 ? logits : kNone, Access::read);
      value_arg(k == 1 ? targets : kNone, Access::read);
      value_arg(kept, k < 2 ? Access::accumulate : Access::read);
      value_arg(each, k < 2 ? Access::accumulate : Access::read);
      if (k == 2) arg(Kind::loss, -1, Access::accumulate);
      else value_arg(kNone, Access::accumulate);
    }
  }

  const ModelGraph& model_;
  Workload work_;  // of the ops that are written
  std::int16_t part_ = kNone;
  bool made_outputs_ = false;  // transformers', of a loss that is computed at once
  const DType dtype_;
  ByteTotal total_;
  // Adapters' weights that autocast casts are cast once for a forward: they stay until it returns, kept or not.
  void hold_cast_weights(const std::vector<std::int32_t>& region_of) {
    for (std::size_t i = 0; i < model_.ops.size(); ++i) {
      const OpShape& s = model_.ops[i].shape;
      if (!s.cast_weight || region_of[i] < 0) continue;
      const std::int32_t value = new_value(s.in * s.out * size_of(dtype_), BufferKind::saved, dtype_, kNone);
      spans_.push_back(
          {value, static_cast<std::int32_t>(tape_.forward_of[i]), static_cast<std::int32_t>(tape_.forward_of.back())});
    }
  }

  std::vector<Held> spans_;
  std::vector<MemoryEvent> events_;
  Tape tape_;
};

}  // namespace fsdp
