#include "planner/lowering/fsdp2_reduce.h"

#include <utility>

namespace fsdp {

Fsdp2Reduce::Fsdp2Reduce(Fsdp2Units& units)
    : units_(units),
      master_dtype_(units.c.plan.kept_dtype(/*trained=*/true)),
      early_(!units.c.plan.torch.before(2, 15)),
      uses_(units.c.model.parameters.size(), 0),
      comes_first_(uses_.size(), 0) {
  const ShardingPlan& plan = units.c.plan;
  const Workload work{plan.micro_batches.front(), plan.seq_len, size_of(plan.param_dtype), plan.loss_chunks};
  for (const Op& op : units.c.model.ops) {
    for (std::int32_t p : op.params) ++uses_[at(p)];
    if (op.kind == OpKind::rms_norm && !op.params.empty())
      comes_first_[at(op.params[0])] = facts(units.c.implementation, op, work).saved_for_weight_bytes > 0;
  }
}

void Fsdp2Reduce::init(StepBuilder& b, std::int32_t u) {
  const UnitLayout& l = units_.layout(u);
  if (!l.trained()) return;
  Fsdp2Unit& s = units_[u];
  if (units_.c.plan.offload) {
    Buffer info = units_.buffer(l.local_trained_elements(units_.shard_rank(u)), master_dtype_,
                                BufferKind::sharded_gradient, Stream::compute, u);
    info.host = true;
    s.sharded_gradient = b.declare(info);
    return;
  }
  // A sharded gradient is the reduce-scatter's own output, or its cast where the dtypes differ.
  const Stream pool = reduce_dtype(u) != master_dtype_ ? last_stream(u) : Stream::reduce_scatter;
  s.sharded_gradient =
      b.declare(units_.buffer(l.reduce_elements, master_dtype_, BufferKind::sharded_gradient, pool, u));
}

Arg Fsdp2Reduce::gradient(StepBuilder& b, std::int32_t u, std::size_t i) {
  Fsdp2Unit& s = units_[u];
  const ShardedParam& p = units_.layout(u).params[i];
  // Autograd adds up all uses before it adds the sum to what earlier micro-batches left (B5).
  const bool first_use = s.uses[i] == uses_of(p.param);
  const bool waits = !casts_each_use(u, i) && (s.waiting[i] >= 0 || (first_use && s.uses[i] > 1 && s.gradient[i] >= 0 &&
                                                                     !units_.c.implementation.backward_adds_in_place));
  std::int32_t& g = waits ? s.waiting[i] : s.gradient[i];
  if (g >= 0) return {g, Access::accumulate};
  const BufferKind kind = waits ? BufferKind::scratch : BufferKind::gradient;
  g = b.allocate_new(units_.buffer(gradient_elements(u, i), gradient_dtype(u), kind, Stream::compute, u, p.param));
  const std::int64_t wider = size_of(reduce_dtype(u)) / size_of(gradient_dtype(u)) - 1;
  if (comes_first_[at(p.param)] && wider > 0 && s.accumulator[i] < 0 && accumulates_now(u, i))
    wider_ = b.allocate_new(units_.buffer(wider * gradient_elements(u, i), gradient_dtype(u), BufferKind::scratch,
                                          Stream::compute, u, p.param));
  return {g, Access::write};
}

// Gradients that do not go into a reduction of this micro-batch are kept in the reduce dtype; a narrower one is never
// made wider first (param_dtype fp32, reduce_dtype bf16). What is summed over tensor ranks is summed in the reduce
// dtype.
bool Fsdp2Reduce::accumulates_now(std::int32_t u, std::size_t i) const {
  if (!early_ || reduce_dtype(u) == gradient_dtype(u)) return false;
  if (parameter_of(u, i).tensor_gradient == TensorGradient::partial) return true;
  return size_of(reduce_dtype(u)) <= size_of(gradient_dtype(u)) || !units_[u].sync || units_[u].accumulator[i] >= 0;
}

// Where autograd hands gradients over in the reduce dtype, it casts the gradient of each use before that waits for
// those of other uses, and before it is added to what earlier micro-batches left.
bool Fsdp2Reduce::casts_each_use(std::int32_t u, std::size_t i) const {
  const Fsdp2Unit& s = units_[u];
  if (!early_ || reduce_dtype(u) == gradient_dtype(u) || units_.c.implementation.backward_adds_in_place) return false;
  const bool several = uses_of(units_.layout(u).params[i].param) > 1, left = s.accumulator[i] >= 0;
  if (size_of(reduce_dtype(u)) <= size_of(gradient_dtype(u))) return several || left;
  return several && !left && !s.sync;
}

void Fsdp2Reduce::cast_use(StepBuilder& b, std::int32_t u, std::size_t i) {
  Fsdp2Unit& s = units_[u];
  const BufferKind kind = s.accumulator[i] < 0 ? BufferKind::gradient_accumulator : BufferKind::scratch;
  const ShardedParam& p = units_.layout(u).params[i];
  const std::int32_t cast =
      b.allocate_new(units_.buffer(gradient_elements(u, i), reduce_dtype(u), kind, Stream::compute, u, p.param));
  b.issue(units_.op(Action::accumulate_gradient, Stream::compute, u), {{Arg{s.gradient[i]}, Arg{cast, Access::write}}});
  b.release(s.gradient[i]);
  s.gradient[i] = kNone;
  if (s.waiting[i] < 0) {
    s.waiting[i] = cast;
    return;
  }
  b.issue(units_.op(Action::add_gradient, Stream::compute, u), {{Arg{cast}, Arg{s.waiting[i], Access::accumulate}}});
  b.release(cast);
}

void Fsdp2Reduce::after_gradient(StepBuilder& b, std::int32_t u, std::size_t i) {
  Fsdp2Unit& s = units_[u];
  if (wider_ >= 0) b.release(std::exchange(wider_, kNone));
  if (casts_each_use(u, i)) {
    cast_use(b, u, i);
    if (--s.uses[i] > 0) return;
    if (s.accumulator[i] < 0) {
      s.accumulator[i] = std::exchange(s.waiting[i], kNone);
      return;
    }
    b.issue(units_.op(Action::add_gradient, Stream::compute, u),
            {{Arg{s.waiting[i]}, Arg{s.accumulator[i], Access::accumulate}}});
    b.release(s.waiting[i]);
    s.waiting[i] = kNone;
    return;
  }
  if (--s.uses[i] > 0) return;
  if (s.waiting[i] >= 0) {
    b.issue(units_.op(Action::add_gradient, Stream::compute, u),
            {{Arg{s.waiting[i]}, Arg{s.gradient[i], Access::accumulate}}});
    b.release(s.waiting[i]);
    s.waiting[i] = kNone;
  }
  if (accumulates_now(u, i)) accumulate(b, u, static_cast<std::ptrdiff_t>(i));
}

void Fsdp2Reduce::accumulate_late(StepBuilder& b, std::int32_t u, bool only_into_existing) {
  const Fsdp2Unit& s = units_[u];
  if (early_ || reduce_dtype(u) == gradient_dtype(u) || !Fsdp2Units::any_live(s.gradient)) return;
  if (!only_into_existing || Fsdp2Units::any_live(s.accumulator)) accumulate(b, u, -1);
}

// Converts gradients into accumulators of the reduce dtype, or adds them to those that exist. One parameter, or (-1)
// all of them.
void Fsdp2Reduce::accumulate(StepBuilder& b, std::int32_t u, std::ptrdiff_t only) {
  Fsdp2Unit& s = units_[u];
  std::vector<Arg> args;
  for (std::size_t i = 0; i < s.gradient.size(); ++i) {
    const bool now = s.gradient[i] >= 0 && (only < 0 || static_cast<std::size_t>(only) == i);
    const bool fresh = s.accumulator[i] < 0;
    if (fresh && now) {
      const ShardedParam& p = units_.layout(u).params[i];
      s.accumulator[i] = b.allocate_new(units_.buffer(gradient_elements(u, i), reduce_dtype(u),
                                                      BufferKind::gradient_accumulator, Stream::compute, u, p.param));
    }
    args.push_back({now ? s.gradient[i] : -1});
    args.push_back({now ? s.accumulator[i] : -1, fresh ? Access::write : Access::accumulate});
  }
  b.issue(units_.op(Action::accumulate_gradient, Stream::compute, u), args);
  for (std::size_t i = 0; i < s.gradient.size(); ++i) {
    if (s.gradient[i] < 0 || (only >= 0 && static_cast<std::size_t>(only) != i)) continue;
    b.release(s.gradient[i]);
    s.gradient[i] = -1;
  }
}

void Fsdp2Reduce::limit_inputs(StepBuilder& b, std::size_t at_most) {
  while (inputs_.size() > at_most) {
    b.wait(Stream::compute, inputs_.front().op);
    if (units_.before(12) || !units_.before(13)) b.release(inputs_.front().buffer);
    else late_.push_back(inputs_.front().buffer);
    inputs_.pop_front();
  }
}

void Fsdp2Reduce::reduce(StepBuilder& b, std::int32_t u) {
  const Fsdp2Unit& s = units_[u];
  bool incomplete = false;  // autograd hands a gradient over when it has added up all uses of the parameter
  for (std::size_t i = 0; i < s.gradient.size(); ++i) incomplete = incomplete || (s.gradient[i] >= 0 && s.uses[i] > 0);
  const bool nothing = !Fsdp2Units::any_live(s.accumulator) && (incomplete || !Fsdp2Units::any_live(s.gradient));
  if (nothing && units_.before(12)) return;
  if (u == units_.groups(units_.state_of(u)).back())  // B6c; the inputs of a unit's groups may be there together
    limit_inputs(b, static_cast<std::size_t>(units_.c.plan.reduce_scatter_buffers - 1));
  if (!nothing) reduce_gradients(b, u);
  Fsdp2Units::release_all(b, late_);
  late_.clear();
}

// Before PyTorch 2.15 a loop over the gradients leaves the last one in a variable of foreach_reduce, and the last one
// that is sharded on another dimension than 0, too. Before 2.10 the loop runs for one shard as well.
bool Fsdp2Reduce::stays(const std::vector<std::int32_t>& source, std::int32_t u, std::size_t i) const {
  const UnitLayout& l = units_.layout(u);
  if (!units_.before(15) || (l.shards == 1 && !units_.before(10))) return false;
  bool last = true, last_reordered = l.params[i].dim > 0;
  for (std::size_t k = i + 1; k < source.size(); ++k) {
    if (source[k] < 0) continue;
    last = false;
    last_reordered = last_reordered && l.params[k].dim == 0;
  }
  return last || last_reordered;
}

void Fsdp2Reduce::reduce_gradients(StepBuilder& b, std::int32_t u) {
  Fsdp2Unit& s = units_[u];
  const UnitLayout& l = units_.layout(u);
  b.wait(Stream::compute, s.post_reduce_op);  // B6d
  if (early_) release_outputs(b, u);
  std::vector<std::int32_t>& source = Fsdp2Units::any_live(s.accumulator) ? s.accumulator : s.gradient;
  reorder(b, u, source, &source == &s.accumulator);  // B6e
  std::int32_t input = b.declare(
      units_.buffer(l.reduce_elements * l.shards, reduce_dtype(u), BufferKind::reduce_input, Stream::compute, u));
  const std::int32_t copied = copy_in(b, u, input);  // B6f

  // The output becomes the sharded gradient itself when nothing has to be cast, added or moved.
  const bool final_here = !units_.hsdp(u) || s.all_reduce;
  const bool keeps =
      reduce_dtype(u) == master_dtype_ && !s.has_sharded_gradient && final_here && !units_.c.plan.offload;
  std::int32_t out = s.sharded_gradient;
  if (!keeps)
    out = b.declare(
        units_.buffer(l.reduce_elements, reduce_dtype(u), BufferKind::reduce_output, Stream::reduce_scatter, u));
  b.allocate(out);
  b.wait(Stream::reduce_scatter, copied);
  divide(b, u, Stream::reduce_scatter, input, l.scale.divide_before);
  s.post_reduce_op = scatter(b, u, input, out);  // B6g
  inputs_.push_back({input, s.post_reduce_op});
  if (units_.hsdp(u) && !replicate_sum(b, u, out)) return;  // B6h
  divide(b, u, last_stream(u), out, l.scale.divide_after);
  if (units_.c.plan.offload) return finish_on_host(b, u, out);
  finish(b, u, out, keeps);  // B6i
}

// A gradient whose parameter is sharded on a dimension d > 0: its W slabs are put one after the other, in a copy.
void Fsdp2Reduce::reorder(StepBuilder& b, std::int32_t u, std::vector<std::int32_t>& source, bool accumulated) {
  const UnitLayout& l = units_.layout(u);
  for (std::size_t i = 0; i < source.size(); ++i) {
    const ShardedParam& p = l.params[i];
    if (source[i] < 0 || p.dim == 0 || (l.shards == 1 && !units_.before(10))) continue;
    const BufferKind kind = accumulated ? BufferKind::gradient_accumulator : BufferKind::gradient;
    const DType dtype = accumulated ? reduce_dtype(u) : gradient_dtype(u);
    const std::int32_t copy = b.allocate_new(units_.buffer(p.numel(), dtype, kind, Stream::compute, u, p.param));
    b.issue(units_.op(Action::reorder_shards, Stream::compute, u), {{Arg{source[i]}, Arg{copy, Access::write}}});
    if (stays(source, u, i)) late_.push_back(source[i]);
    else b.release(source[i]);
    source[i] = copy;
  }
}

// Widening happens while copying. Where the reduce dtype is narrower (before 2.15), the copy is made in the gradients'
// dtype first.
std::int32_t Fsdp2Reduce::copy_in(StepBuilder& b, std::int32_t u, std::int32_t input) {
  Fsdp2Unit& s = units_[u];
  const UnitLayout& l = units_.layout(u);
  const bool accumulated = Fsdp2Units::any_live(s.accumulator);
  std::vector<std::int32_t>& source = accumulated ? s.accumulator : s.gradient;
  b.allocate(input);
  std::vector<Arg> args;
  for (std::int32_t g : source) args.push_back({g});
  args.push_back({input, Access::write});
  std::int32_t whole = -1;
  if (!accumulated && size_of(reduce_dtype(u)) < size_of(gradient_dtype(u))) {
    whole = b.allocate_new(
        units_.buffer(l.reduce_elements * l.shards, gradient_dtype(u), BufferKind::scratch, Stream::compute, u));
    args.push_back({whole, Access::write});
  }
  const std::int32_t op = b.issue(units_.op(Action::scatter_copy_in, Stream::compute, u), args);
  if (whole >= 0) b.release(whole);
  for (std::size_t i = 0; i < source.size(); ++i)
    if (source[i] >= 0 && l.params[i].dim == 0 && stays(source, u, i)) late_.push_back(std::exchange(source[i], kNone));
  Fsdp2Units::release_all(b, source);
  return op;
}

void Fsdp2Reduce::divide(StepBuilder& b, std::int32_t u, Stream stream, std::int32_t buffer, double by) {
  if (by == 1) return;
  units_[u].post_reduce_op =
      b.issue(units_.op(Action::divide_gradient, stream, u), {{Arg{buffer, Access::accumulate}}});
}

std::int32_t Fsdp2Reduce::scatter(StepBuilder& b, std::int32_t u, std::int32_t input, std::int32_t out) {
  const UnitLayout& l = units_.layout(u);
  Operation scatter = units_.op(Action::reduce_scatter, Stream::reduce_scatter, u);
  scatter.comm = l.own_mesh                              ? Communicator::own_shard
                 : units_.c.plan.separate_reduce_scatter ? Communicator::shard_reduce
                                                         : Communicator::shard;
  if (!units_.copies_alone(u) || l.scale.divide_copy == 1)
    return b.issue(scatter, {{Arg{input}, Arg{out, Access::write}}});
  const std::int32_t part =
      b.allocate_new(units_.buffer(l.reduce_elements, reduce_dtype(u), BufferKind::scratch, Stream::reduce_scatter, u));
  b.issue(units_.op(Action::divide_gradient, Stream::reduce_scatter, u), {{Arg{input}, Arg{part, Access::write}}});
  const std::int32_t op = b.issue(scatter, {{Arg{part}, Arg{out, Access::write}}});
  b.release(part);
  return op;
}

// HSDP: keeps a partial sum until the all-reduce is due. False: it is not due in this micro-batch.
bool Fsdp2Reduce::replicate_sum(StepBuilder& b, std::int32_t u, std::int32_t out) {
  Fsdp2Unit& s = units_[u];
  const auto add = [&](std::int32_t from, std::int32_t into) {
    s.post_reduce_op = b.issue(units_.op(Action::add_gradient, Stream::reduce_scatter, u),
                               {{Arg{from}, Arg{into, Access::accumulate}}});
  };
  if (!s.all_reduce) {
    if (s.partial < 0) {
      s.partial = out;
    } else {
      add(out, s.partial);
      b.release(out);
    }
    return false;
  }
  if (s.partial >= 0) {
    add(s.partial, out);
    late_.push_back(std::exchange(s.partial, kNone));  // a variable of foreach_reduce
  }
  b.wait(Stream::all_reduce, s.post_reduce_op);
  Operation reduce = units_.op(Action::all_reduce, Stream::all_reduce, u);
  reduce.comm = units_.layout(u).own_mesh ? Communicator::own_replicate : Communicator::replicate;
  s.post_reduce_op = b.issue(reduce, {{Arg{out, Access::accumulate}}});
  return true;
}

void Fsdp2Reduce::finish(StepBuilder& b, std::int32_t u, std::int32_t out, bool keeps) {
  Fsdp2Unit& s = units_[u];
  if (!keeps) {
    const Access access = s.has_sharded_gradient ? Access::accumulate : Access::write;
    if (!s.has_sharded_gradient) b.allocate(s.sharded_gradient);
    // What PyTorch adds to an existing gradient is cast first.
    const bool casts =
        s.has_sharded_gradient && reduce_dtype(u) != master_dtype_ && !units_.c.implementation.backward_adds_in_place;
    const std::int32_t cast = casts ? b.allocate_new(units_.buffer(units_.layout(u).reduce_elements, master_dtype_,
                                                                   BufferKind::scratch, last_stream(u), u))
                                    : kNone;
    s.post_reduce_op =
        b.issue(units_.op(Action::finish_gradient, last_stream(u), u), {{Arg{out}, Arg{s.sharded_gradient, access}}});
    if (cast >= 0) b.release(cast);
    if (units_.hsdp(u)) held_outputs_.push_back({u, out});
    else b.release(out);
  }
  s.has_sharded_gradient = true;
}

// One parameter after the other. If host memory holds gradients already, the host waits and adds.
void Fsdp2Reduce::finish_on_host(StepBuilder& b, std::int32_t u, std::int32_t out) {
  Fsdp2Unit& s = units_[u];
  std::int32_t from = out;
  if (reduce_dtype(u) != master_dtype_) {
    from = b.allocate_new(
        units_.buffer(units_.layout(u).reduce_elements, master_dtype_, BufferKind::reduce_output, last_stream(u), u));
    s.post_reduce_op =
        b.issue(units_.op(Action::finish_gradient, last_stream(u), u), {{Arg{out}, Arg{from, Access::write}}});
    if (!units_.hsdp(u)) b.release(out);
  }
  if (units_.hsdp(u)) held_outputs_.push_back({u, out});
  const std::int64_t item = size_of(master_dtype_);
  std::int64_t device_at = 0, host_at = 0;
  bool allocated = s.has_sharded_gradient;
  for (const ShardedParam& p : units_.layout(u).params) {
    if (!p.trainable) continue;
    const std::int64_t bytes = p.local_elements(units_.shard_rank(u)) * item;
    const Arg source{from, Access::read, device_at, bytes};
    if (!allocated) b.allocate(s.sharded_gradient);
    allocated = true;
    if (!s.has_sharded_gradient) {
      const Arg into{s.sharded_gradient, Access::write, host_at, bytes};
      s.post_reduce_op = b.issue(units_.op(Action::gradient_to_host, last_stream(u), u), {{source, into}});
      to_host_.push_back({u, s.post_reduce_op});
    } else {
      Buffer info =
          units_.buffer(bytes / item, master_dtype_, BufferKind::sharded_gradient, Stream::compute, u, p.param);
      info.host = true;
      const std::int32_t arrived = b.allocate_new(info);
      s.post_reduce_op =
          b.issue(units_.op(Action::gradient_to_host, last_stream(u), u), {{source, Arg{arrived, Access::write}}});
      b.host_wait({{s.post_reduce_op}}, units_.micro_batch);
      b.issue(units_.on_host(Action::add_gradient, u),
              {{Arg{arrived}, Arg{s.sharded_gradient, Access::accumulate, host_at, bytes}}});
      b.release(arrived);
    }
    device_at += p.padded_shard() * item;
    host_at += bytes;
  }
  if (from != out || !units_.hsdp(u)) b.release(from);
  s.has_sharded_gradient = true;
}

void Fsdp2Reduce::finalize(StepBuilder& b, std::int32_t u) {
  b.wait(Stream::compute, units_[u].post_reduce_op);
  std::vector<std::int32_t> copies;
  for (const Copy& copy : to_host_)
    if (copy.unit == u) copies.push_back(copy.op);
  std::erase_if(to_host_, [u](const Copy& copy) { return copy.unit == u; });
  b.host_wait(copies, units_.micro_batch);
  if (!early_) release_outputs(b, u);
}

void Fsdp2Reduce::release_outputs(StepBuilder& b, std::int32_t u) {
  std::erase_if(held_outputs_, [&](const Held& held) {
    if (held.unit == u) b.release(held.buffer);
    return held.unit == u;
  });
}

// Inputs are those of all roots, outputs those of the root's own units.
void Fsdp2Reduce::end_backward(StepBuilder& b, std::int32_t root) {
  for (const Input& input : inputs_) b.wait(Stream::compute, input.op);
  for (std::size_t i = inputs_.size(); i-- > 1;)
    b.release(inputs_[i - 1].buffer);  // Python's order: the last goes last
  if (!inputs_.empty()) b.release(inputs_.back().buffer);
  inputs_.clear();
  std::erase_if(held_outputs_, [&](const Held& held) {
    const bool here = units_.root_of(held.unit) == root;
    if (here) b.release(held.buffer);
    return here;
  });
}

}  // namespace fsdp
