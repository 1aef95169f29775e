#include "planner/lowering/tape/tape.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "models/graph/op_ranges.h"
#include "models/graph/output_layer.h"
#include "models/index.h"
#include "models/input/error.h"
#include "planner/lowering/tape/frames.h"
#include "planner/lowering/tape/lifetimes.h"
#include "planner/lowering/tape/products_in_parts.h"
#include "planner/lowering/tape/traced.h"

namespace fsdp {
namespace {

class TapeBuilder : private ProductsInParts {
 public:
  TapeBuilder(const ModelGraph& model, const Implementation& impl, const Workload& work, DType dtype)
      : ProductsInParts(model, impl, work, dtype) {
    const std::size_t n = model.ops.size(), t = model.tensors.size();
    facts_.reserve(n);
    for (const Op& op : model.ops) facts_.push_back(facts(impl, op, work, model));
    producer_.assign(t, -1);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; k < model.ops[i].outputs.size(); ++k) {
        producer_[at(model.ops[i].outputs[k])] = static_cast<std::int32_t>(i);
        wide_[at(model.ops[i].outputs[k])] = facts_[i].wide_outputs >> k & 1;
      }
    leave_to_gradients(facts_, model, producer_, work.element_bytes);
    region_of_.assign(n, -1), forward_value_.assign(t, -1), recomputed_value_.assign(t, -1);
    if (impl.frames_hold_inputs) holds_ = {frame_holds(model, impl, work, producer_), producer_, n};
    extra_.assign(n, -1), made_again_.assign(n, -1), beside_.assign(n, -1), kept_.assign(n, 0);
    last_run_.assign(n, kNone), gate_waits_.assign(n, kNone), tape_.recomputed_at.assign(n, kNone);
    tape_.forward_of.resize(n), tape_.backward_begin.resize(n), tape_.backward_end.resize(n);
    for (const OpFacts& f : facts_) tape_.weight_first.push_back(f.saved_for_weight_bytes > 0);
    tape_.ops.reserve(3 * n), tape_.args.reserve(21 * n), tape_.values.reserve(6 * n);
  }

  // The output layer and the loss run once per part of the tokens.
  void split_head(std::int64_t parts) {
    tape_.head = chunked_head(model_);
    if (tape_.head < 0) throw InternalError("tape: the model does not end with an output layer and its loss");
    tape_.parts.resize(static_cast<std::size_t>(parts));
    const Workload part = part_of(work_, parts);
    for (std::size_t i = at(tape_.head); i < model_.ops.size(); ++i)
      facts_[i] = facts(impl_, model_.ops[i], part, model_);
  }

  void add_region(std::int32_t module, CheckpointPolicy policy, bool offloaded, const Reentrant& reentrant) {
    const Module& m = model_.modules[at(module)];
    const auto id = static_cast<std::int32_t>(tape_.regions.size());
    keep_no_copies(facts_, m, model_, impl_, work_);
    Region r = recomputed_region(m.op_begin, m.op_end, model_, impl_, facts_, producer_);
    if (reentrant.used) make_reentrant(r, module, reentrant);
    if (offloaded && r.runs()) r.offloaded = inputs_from_before(model_, r.begin, r.end);
    tape_.regions.push_back(r);
    if (r.runs()) tape_.recomputed_at[at(r.needed_by)] = id;
    std::int64_t matmuls = 0;
    for (std::int32_t i = r.begin; i < r.end; ++i) {
      region_of_[at(i)] = id;
      const Op& op = model_.ops[at(i)];
      if (counts_as_matmul(op)) ++matmuls;
      kept_[at(i)] = policy == CheckpointPolicy::selective_op && keeps_result(impl_, op, facts_[at(i)], matmuls);
      if (policy == CheckpointPolicy::selective_op && impl_.keeps_beside)
        if (const std::int64_t bytes = impl_.keeps_beside(op, work_, model_, matmuls); bytes > 0)
          beside_[at(i)] = new_value(bytes, BufferKind::saved, dtype_, -1);
    }
  }

  Tape build() {
    load_batch(forward_value_);
    if (gives_outputs(impl_)) beside_.back() = logits_of_outputs(impl_.loop_holds);
    const std::int32_t n = tape_.head >= 0 ? tape_.head : static_cast<std::int32_t>(model_.ops.size());
    for (std::int32_t i = 0; i < n; ++i) {
      if (region_of_[at(i)] >= 0) offload_inputs(tape_.regions[at(region_of_[at(i)])], i);
      run_forward(i, Action::forward);
      tape_.forward_of[at(i)] = static_cast<std::uint32_t>(last_op());
    }
    std::fill(tape_.forward_of.begin() + n, tape_.forward_of.end(), tape_.forward_of[at(n - 1)]);
    const std::int32_t cast_logits = gives_outputs(impl_) ? std::exchange(beside_.back(), -1) : -1;
    run_parts();
    hold_cast_weights(region_of_);
    hold_frames(holds_.all(), forward_value_, looked_up_, tape_.forward_of, spans_);
    for (std::int32_t i = n - 1; i >= 0; --i) {
      tape_.backward_begin[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
      if (tape_.recomputed_at[at(i)] >= 0) recompute(tape_.regions[at(tape_.recomputed_at[at(i)])]);
      run_backward(i);
      if (region_of_[at(i)] >= 0 && tape_.regions[at(region_of_[at(i)])].begin == i)
        end_region(tape_.regions[at(region_of_[at(i)])]);
      tape_.backward_end[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
    }
    hold_outputs(cast_logits, forward_value_);
    update_metrics(facts_.back().after_backward, impl_.loop_holds == LoopHolds::logits, forward_value_);
    place_lifetimes(tape_, spans_, events_), leave_to_regions(tape_);
    tape_.region_of = std::move(region_of_);
    return std::move(tape_);
  }

 private:
  // Each part's forward is followed by its backward, which ends with its part of the gradient of what the layer reads.
  void run_parts() {
    if (tape_.head < 0) return;
    const Workload whole = std::exchange(work_, part_of(work_, static_cast<std::int64_t>(tape_.parts.size())));
    const std::int32_t head = tape_.head, logits = model_.ops[at(head)].outputs[0];
    for (std::size_t p = 0; p < tape_.parts.size(); ++p) {
      part_ = static_cast<std::int16_t>(p);
      const auto here = [&] { return static_cast<std::uint32_t>(tape_.ops.size()); };
      auto& at_op = tape_.parts[p];
      at_op[0] = here(), run_forward(head, Action::forward);
      at_op[1] = here(), run_forward(head + 1, Action::forward);
      at_op[2] = here(), run_backward(head + 1);
      at_op[3] = here(), run_backward(head);
      at_op[4] = here();
      gradients_.forget(logits);
    }
    part_ = kNone;
    work_ = whole;
  }

  // The value of a tensor as this phase of op i sees it: inside a region that runs again, the recomputed one.
  std::int32_t seen(std::int32_t tensor, bool recomputing) const {
    const std::int32_t r = recomputed_value_[at(tensor)];
    return recomputing && r >= 0 ? r : forward_value_[at(tensor)];
  }

  // A gather with the products that read it. Whole rows are made where something else reads them: another layer, or a
  // backward before which nothing runs again.
  void gather_and_multiply_all(std::int32_t i, const Readers& readers, bool again) {
    const Op& op = model_.ops[at(i)];
    std::vector<std::int32_t>& values = again ? recomputed_value_ : forward_value_;
    std::vector<Product> products;
    for (const std::int32_t k : readers.in_parts) {
      const std::int32_t out = model_.ops[at(k)].outputs[0];
      products.push_back({k, values[at(out)] = new_tensor_value(out, BufferKind::activation, wide_[at(out)])});
    }
    std::optional<BufferKind> kind;
    if (again || region_of_[at(i)] < 0 || readers.others) kind = BufferKind::activation;
    values[at(op.outputs[0])] = gather_and_multiply(i, again ? Action::recompute : Action::forward,
                                                    seen(op.inputs[0], again), op.outputs[0], kind, products);
    last_run_[at(i)] = last_op();
    for (const Product& p : products) last_run_[at(p.layer)] = last_op();
  }

  void redistribute(std::int32_t i, bool again) {
    const Op& op = model_.ops[at(i)];
    const bool scatters = op.shape.redistribution == Redistribution::scatter,
               columns = op.shape.redistribution == Redistribution::gather_columns;
    const std::int32_t in = op.inputs[0], out = op.outputs[0];
    const std::int32_t v = new_tensor_value(out, BufferKind::activation, /*wide=*/false), from = seen(in, again);
    (again ? recomputed_value_ : forward_value_)[at(out)] = v;
    if (scatters && scattered_in_parts(producer_[at(in)])) {
      const std::int32_t layer = producer_[at(in)], input = seen(model_.ops[at(layer)].inputs[0], again);
      multiply_and_scatter(i, again ? Action::recompute : Action::forward, layer, input, v);
      last_run_[at(layer)] = last_run_[at(i)] = last_op();
      return;
    }
    move_rows(!scatters, scatters || columns || work_.sequences > 1, i, from, v,
              model_.tensors[at(scatters ? in : out)], again);
    last_run_[at(i)] = last_op();
  }

  void run_forward(std::int32_t i, Action action) {
    const Op& op = model_.ops[at(i)];
    const OpFacts& f = facts_[at(i)];
    const bool again = action == Action::recompute;
    if (op.kind == OpKind::redistribute) {
      if (kept_[at(i)] && again) return;
      const Readers readers = again ? readers_of(i, tape_.regions[at(region_of_[at(i)])].last, &kept_) : readers_of(i);
      return readers.in_parts.empty() ? redistribute(i, again) : gather_and_multiply_all(i, readers, again);
    }
    const bool elsewhere = has_multiplied(i) || scattered_in_parts(i);  // with others
    if (!again && beside_[at(i)] >= 0) spans_.push_back({beside_[at(i)], last_op() + (elsewhere ? 0 : 1), kNone});
    if (elsewhere) return;
    const bool stopped = again && tape_.regions[at(region_of_[at(i)])].ends_inside(i, f);
    const bool split = op.kind == OpKind::cross_entropy && op.shape.vocab_parts > 1,
               in_parts = split && impl_.memory == MemorySource::arena;  // by our kernels
    begin(action, i);
    tape_.ops.back().recomputed = again;
    if (stopped && f.forward_scattered > 0) tape_.ops.back().products = Products::saved;
    last_run_[at(i)] = last_op();
    for (std::int32_t in : op.inputs) value_arg(seen(in, again), Access::read);
    for (std::int32_t p : op.params) arg(Kind::parameter, p, Access::read);
    for (std::int32_t out : op.outputs) {
      if (model_.tensors[at(out)].kind == TensorKind::loss) {
        if (in_parts) value_arg(kNone, Access::write);
        else arg(Kind::loss, -1, Access::accumulate);
        continue;
      }
      const std::int32_t v = stopped ? kNone : new_tensor_value(out, BufferKind::activation, wide_[at(out)]);
      (again ? recomputed_value_ : forward_value_)[at(out)] = v;
      value_arg(v, Access::write);
    }
    const std::int32_t gate = f.extra_replaces_input ? producer_[at(op.inputs[0])] : kNone;
    const bool discarded =
        !again && region_of_[at(i)] >= 0 && f.extra_replaces_input && !(gate >= 0 && kept_[at(gate)]);
    const std::int64_t extra = kept_[at(i)] ? f.result_extra_bytes : discarded ? 0 : f.saved_extra_bytes;
    extra_[at(i)] = extra > 0 ? new_value(extra, BufferKind::saved, DType::f32, -1) : -1;
    value_arg(extra_[at(i)], Access::write);
    const Inside& script = stopped ? f.forward_stopped : f.forward_inside;
    const bool detailed = !script.script.empty() && !kept_[at(i)];
    if (in_parts) return sum_loss(i, extra_[at(i)], seen(op.inputs[0], again), seen(op.inputs[1], again));
    const std::int64_t unkept = kept_[at(i)] ? f.saved_extra_bytes - f.variable_saved_bytes - extra : 0;
    scratch_arg(detailed || discarded ? 0 : f.forward_scratch_bytes + std::max<std::int64_t>(0, unkept));
    if (op.kind == OpKind::position_embedding) looked_up_ = tape_.args.back().id;
    // gelu(gate) or silu(gate) is there before `up` is computed.
    const std::int32_t activated = extra_[at(i)] >= 0 ? extra_[at(i)] : tape_.args.back().id;
    if (activated >= 0 && gate >= 0) spans_.push_back({activated, last_run_[at(gate)], -1, kNone, /*after=*/true});
    if (detailed) {
      ScriptValues values{.extra = extra_[at(i)]};
      for (std::int32_t o : op.outputs) values.results.push_back((again ? recomputed_value_ : forward_value_)[at(o)]);
      for (std::int32_t in : op.inputs) values.inputs.push_back(seen(in, again));
      inside(script, values);
    }
    hold_variables(i, again);
    if (split) reduce_statistics(i);
  }

  void hold_variables(std::int32_t i, bool again) {
    const bool discarded = !again && region_of_[at(i)] >= 0;
    for (const ModuleVariable& v : module_variables(model_, facts_[at(i)], i, wide_, discarded)) {
      const std::int32_t value = new_value(v.bytes, v.kind, DType::i64, kNone);
      spans_.push_back({value, last_op() - (v.before_hook ? 1 : 0), kNone, kNone, v.before_hook || v.after});
      if (again) variables_again_.push_back({value, v.end, v.scope});
      else spans_.push_back({value, kNone, last_op() + v.end - 1 - i, v.scope});
      if (v.kind == BufferKind::saved && !discarded) passed_to_.emplace_back(v.end - 1, value);
    }
  }

  void hold_recomputed(const Region& r) {
    hold_variables_again(std::exchange(variables_again_, {}), r, last_run_, last_op(), spans_);
    hold_frames_again(holds_.near(r), r, recomputed_value_, last_run_, spans_);
    if (!impl_.frames_hold_inputs) return;
    for (const std::int32_t t : held_by_recomputation(model_, r, holds_.near(r), producer_))
      hold_until_now(kept_[at(producer_[at(t)])] ? seen(t, true) : recomputed_value_[at(t)]);
  }

  const Inside& backward_script(std::int32_t i) const {
    const OpFacts& f = facts_[at(i)];
    return region_of_[at(i)] >= 0 && !f.backward_again.script.empty() ? f.backward_again : f.backward_inside;
  }

  // What op i's backward has made when it first reads what forward saved: it is there while the module runs again.
  void begin_backward(std::int32_t i) {
    const Inside& in = backward_script(i);
    const auto there = there_after(in.script.steps().first(steps_before_saved(in.script)));
    for (std::size_t k = 0; k < there.size(); ++k) {
      if (!there[k] || in.bytes[k] == 0) continue;
      begun_[k] = new_value(in.bytes[k], BufferKind::scratch, dtype_, kNone);
      spans_.push_back({begun_[k], last_op(), kNone, kNone, /*after=*/true});
    }
  }

  void offload_inputs(Region& r, std::int32_t i) {
    for (std::size_t k = 0; k < r.offloaded.size() && r.begin == i; ++k)
      r.in_host.push_back(copied(Action::offload_activation, i, forward_value_[at(r.offloaded[k])]));
  }

  // A kept result is taken as it is; what its op makes for backward beside it is made again, with the op before.
  void recompute(Region& r) {
    if (r.reentrant) begin_reentrant(r);
    else begin_backward(r.needed_by);
    for (std::size_t k = 0; k < r.offloaded.size(); ++k)
      recomputed_value_[at(r.offloaded[k])] = copied(Action::fetch_activation, r.begin, r.in_host[k]);
    const std::size_t first = tape_.ops.size();
    for (std::int32_t i = r.begin; i <= r.last; ++i) {
      if (!kept_[at(i)]) {
        run_forward(i, Action::recompute);
        continue;
      }
      const std::int32_t here = last_run_[at(i)] = static_cast<std::int32_t>(std::max(first, tape_.ops.size() - 1));
      if (impl_.keeps_unneeded_results)
        for (std::int32_t out : model_.ops[at(i)].outputs) spans_.push_back({forward_value_[at(out)], -1, here});
      if (extra_[at(i)] >= 0) spans_.push_back({extra_[at(i)], -1, here});
      const std::int64_t again = facts_[at(i)].saved_extra_bytes - facts_[at(i)].result_extra_bytes;
      if (again <= 0) continue;
      made_again_[at(i)] = new_value(again, BufferKind::saved, DType::f32, -1);
      spans_.push_back({made_again_[at(i)], here, -1});
      for (std::int32_t in : model_.ops[at(i)].inputs) spans_.push_back({seen(in, true), -1, here});
    }
    hold_recomputed(r);
  }

  // A Python module's checkpoint holds its inputs, and kept results not asked for, until its backward has ended.
  void end_region(Region& r) {
    if (r.reentrant) return end_reentrant(r, forward_value_, recomputed_value_);
    for (const std::int32_t v : r.in_host) hold_until_now(v);
    for (const std::int32_t t : r.offloaded) recomputed_value_[at(t)] = -1;
    if (r.last < r.begin) return;
    std::int32_t here = last_op();
    while (here > 0 && tape_.ops[at(here)].action == Action::add_gradient) --here;
    for (std::int32_t i = r.begin; i < r.end && impl_.frames_hold_inputs && r.offloaded.empty(); ++i)
      for (std::int32_t in : model_.ops[at(i)].inputs)
        if (producer_[at(in)] >= 0 && producer_[at(in)] < r.begin) spans_.push_back({forward_value_[at(in)], -1, here});
    if (!impl_.keeps_unneeded_results || !impl_.recompute_stops_early) return;
    for (std::int32_t i = std::max(r.begin, r.last + 1); i < r.end; ++i)
      if (kept_[at(i)])
        for (std::int32_t out : model_.ops[at(i)].outputs) spans_.push_back({forward_value_[at(out)], -1, here});
  }

  void run_backward(std::int32_t i) {
    const Op& op = model_.ops[at(i)];
    // Of several results the first has a gradient, and decides whether this op is needed; the others may be ids.
    const std::int32_t out_gradient = gradients_.of(op.outputs[0]);
    const Tensor& out = model_.tensors[at(op.outputs[0])];
    if (!out.requires_grad || (out_gradient < 0 && out.kind != TensorKind::loss)) return;  // not needed
    if (op.kind == OpKind::redistribute) {
      const std::int32_t layer = producer_[at(op.inputs[0])];
      if (gathers_in_parts() && scattered_in_parts(layer) && gradients_.of(model_.ops[at(layer)].inputs[0]) < 0)
        return gather_and_multiply_gradient(i, layer, out_gradient);
      return redistribute_gradient(i, out_gradient);
    }
    if (passes_gradient_through(op) || sum_before(op) >= 0) pass_through(i, out_gradient);
    const bool trains = std::any_of(op.params.begin(), op.params.end(), [&](std::int32_t p) { return trained(p); });
    if (op.kind == OpKind::embedding && !trains) return leave_gradient(forward_value_[at(op.outputs[0])], out_gradient);
    if (passes_gradient_through(op) && !trains) return gradients_.read(out_gradient);
    const bool again = region_of_[at(i)] >= 0;
    const OpFacts& f = facts_[at(i)];
    begin(Action::backward, i);
    const bool weight_alone = has_multiplied(i);
    if (weight_alone) tape_.ops.back().products = Products::weight;
    for (std::int32_t o : op.outputs) value_arg(gradients_.of(o), Access::read);
    for (std::size_t k = 0; k < op.inputs.size(); ++k)
      value_arg(keeps(f.saved_inputs, k) ? seen(op.inputs[k], again) : -1, Access::read);
    for (std::size_t k = 0; k < op.outputs.size(); ++k)
      value_arg(keeps(f.saved_outputs, k) ? seen(op.outputs[k], again) : -1, Access::read);
    for (std::int32_t p : op.params) arg(Kind::parameter, p, Access::read);
    value_arg(extra_[at(i)], Access::read);
    const Inside& script = backward_script(i);
    const bool detailed = !script.script.empty();
    scratch_arg(detailed ? 0 : f.backward_scratch_bytes);
    hold_until_now(made_again_[at(i)]);
    hold_until_now(beside_[at(i)]);
    std::vector<std::pair<std::int32_t, std::int32_t>> to_add;
    const std::size_t gradients = tape_.args.size();
    for (std::int32_t in : op.inputs)
      if (!weight_alone) input_gradient(in, op, to_add);
    if (weight_alone) value_arg(kNone, Access::write);
    if (detailed) {
      ScriptValues values{.extra = extra_[at(i)]};
      for (std::int32_t o : op.outputs) values.output_gradients.push_back(gradients_.of(o));
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        values.results.push_back(tape_.args[gradients + k].id);
        values.inputs.push_back(keeps(f.saved_inputs, k) ? seen(op.inputs[k], again) : -1);
      }
      if (f.saved_outputs & 1) values.saved_output = seen(op.outputs[0], again);
      const Temporaries there = std::exchange(begun_, no_temporaries());
      for (const std::int32_t v : there) hold_until_now(v);
      inside(script, values, there);
    }
    for (; !passed_to_.empty() && passed_to_.back().first == i; passed_to_.pop_back())
      hold_until_now(passed_to_.back().second);
    for (std::int32_t p : op.params)
      arg(trained(p) ? Kind::gradient : Kind::absent, trained(p) ? p : -1, Access::write);
    if (gate_waits_[at(i)] >= 0) spans_.push_back({gate_waits_[at(i)], -1, last_op(), /*scope=*/0});
    if (op.inputs.size() == 2 && f.extra_replaces_input && model_.tensors[at(op.inputs[0])].requires_grad) {
      const std::int32_t gate = producer_[at(op.inputs[0])], up = producer_[at(op.inputs[1])];
      if (up > gate && gate >= 0) gate_waits_[at(gate + 1)] = seen(op.inputs[0], again);  // where up's backward ends
      else scratch_now(f.saved_extra_bytes);
    }
    for (auto [from, into] : to_add) add(from, into);
    for (std::int32_t o : op.outputs) gradients_.read(gradients_.of(o));
  }

  std::vector<OpFacts> facts_;
  std::vector<std::int32_t> producer_, region_of_;              // by tensor, by op
  std::vector<std::int32_t> forward_value_, recomputed_value_;  // by tensor
  std::vector<std::int32_t> extra_, made_again_;  // by op: the latest run's; what a kept op's recomputation makes
  std::vector<std::int32_t> beside_;              // by op: what is kept beside its result (keeps_beside)
  std::vector<char> kept_;                        // by op: its result survives until backward
  std::vector<std::int32_t> last_run_;            // by op: the latest tape op of its forward
  std::vector<std::int32_t> gate_waits_;  // by op: the gate kept while it runs backward, for silu's that follows
  std::vector<std::pair<std::int32_t, std::int32_t>> passed_to_;  // (op, value): for the op's backward
  std::vector<FrameHold> variables_again_;                        // values, of modules of a recomputation
  Temporaries begun_ = no_temporaries();                          // of the backward for which a module runs again
  FrameHolds holds_;
  std::int32_t looked_up_ = kNone;  // the value of the positions' rows
};

}  // namespace

Tape make_tape(const ModelGraph& model, const Implementation& impl, const Workload& work, DType compute_dtype,
               const std::vector<std::int32_t>& checkpointed, CheckpointPolicy policy, std::int64_t parts,
               const std::vector<std::int32_t>& offload_activations, const Reentrant& reentrant) {
  if (policy == CheckpointPolicy::selective_op && !checkpointed.empty() && !impl.keeps_selectively)
    throw InputError({"plan", "checkpoint_policy"},
                     std::string(impl.name) + (impl.compiled ? ", compiled," : "") + " has no selective checkpointing",
                     "use full");
  if (!model.trace.empty()) return traced_tape(model, impl, work, checkpointed, policy);
  TapeBuilder builder(model, impl, work, compute_dtype);
  if (parts > 1) builder.split_head(parts);
  const std::set<std::int32_t> offloaded(offload_activations.begin(), offload_activations.end());
  for (const std::int32_t id : checkpointed) builder.add_region(id, policy, offloaded.contains(id), reentrant);
  return builder.build();
}

}  // namespace fsdp
