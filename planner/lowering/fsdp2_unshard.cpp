#include "planner/lowering/fsdp2_unshard.h"

#include <utility>

namespace fsdp {

void Fsdp2Unshard::unshard(StepBuilder& b, std::int32_t u, bool by_hand) {
  Fsdp2Unit& s = units_[u];
  if (units_.layout(u).params.empty() || s.gathered || s.pending) return;
  s.pending = true;
  if (units_.copies_alone(u)) return;  // wait copies the shard
  b.wait(Stream::copy_in, s.reshard_event);
  b.wait(Stream::all_gather, s.reshard_event);
  s.reshard_event = -1;
  const UnitLayout& l = units_.layout(u);
  s.on_compute = by_hand || units_.c.plan.loop.unshard_async;  // F2e
  const Stream copies = s.on_compute ? Stream::compute : Stream::copy_in;
  Source source = gather_source(b, u, copies);
  // Of parts in 8 and in 16 bits: bytes.
  const DType dtype = units_.gathers_float8(u) ? DType::f8 : units_.param_dtype(u);
  const std::int64_t bytes = l.gathered_bytes() * l.shards;
  s.gather = b.allocate_new(units_.buffer(bytes / size_of(dtype), dtype, BufferKind::gather, copies, u));
  source.args.push_back({s.gather, Access::write});
  const std::int32_t copy = b.issue(units_.op(Action::gather_copy_in, copies, u), source.args);
  Fsdp2Units::release_all(b, source.temporaries);
  b.wait(Stream::all_gather, copy);
  Operation gather = units_.op(Action::all_gather, Stream::all_gather, u);
  gather.comm = s.kept ? Communicator::reshard : l.own_mesh ? Communicator::own_shard : Communicator::shard;
  s.gather_op = b.issue(gather, {{Arg{s.gather, Access::accumulate}}});
}

// The source of the all-gather, in the compute dtype: the shard, the parts kept after forward, or temporaries made of
// them on `stream`.
Fsdp2Unshard::Source Fsdp2Unshard::gather_source(StepBuilder& b, std::int32_t u, Stream stream) {
  const Fsdp2Unit& s = units_[u];
  const UnitLayout& l = units_.layout(u);
  if (s.kept) {  // in the compute dtype already, but mixed precision copies nevertheless
    std::vector<Arg> parts;
    for (const std::int32_t kept : s.kept_shards) parts.push_back({kept});
    if (units_.casts_shards(u) && !units_.c.plan.offload)
      return cast_all(b, u, stream, parts, l.shards / s.small_group);
    return {parts, {}};
  }
  if (units_.gathers_float8(u)) return with_float8(b, u, stream);
  if (units_.c.plan.offload) return from_host(b, u, stream);
  if (!units_.casts_shards(u)) return {{Arg{s.shard}}, {}};
  if (l.cast_elements() == l.shard_elements) return cast_all(b, u, stream, {Arg{s.shard}}, 1);
  std::vector<Arg> parts;
  for (std::size_t i = 0; i < l.params.size(); ++i)
    parts.push_back({s.shard, Access::read, l.shard_begin(i), l.shard_begin(i + 1) - l.shard_begin(i)});
  return cast_all(b, u, stream, parts, 1);
}

// `from`: one part, or one per parameter, of `times` their shards. Those that are in the compute dtype stay as they
// are, the others are cast in one copy (PyTorch's foreach copy).
Fsdp2Unshard::Source Fsdp2Unshard::cast_all(StepBuilder& b, std::int32_t u, Stream stream, const std::vector<Arg>& from,
                                            std::int64_t times) {
  const UnitLayout& l = units_.layout(u);
  std::vector<Arg> args, others;
  for (std::size_t i = 0; i < from.size(); ++i)
    (from.size() == 1 || l.params[i].kept != units_.param_dtype(u) ? args : others).push_back(from[i]);
  const std::int32_t cast = b.allocate_new(
      units_.buffer(l.cast_elements() * times, units_.param_dtype(u), BufferKind::cast_shard, stream, u));
  args.push_back({cast, Access::write});
  b.issue(units_.op(Action::cast_shard, stream, u), args);
  others.push_back({cast});
  return {others, {cast}};
}

// Weights gathered in 8 bits first, then all others in one copy.
Fsdp2Unshard::Source Fsdp2Unshard::with_float8(StepBuilder& b, std::int32_t u, Stream stream) {
  const ShardingPlan& plan = units_.c.plan;
  Source source;
  source.temporaries = float8_.cast(b, {&units_.layout(u), u, units_[u].shard, plan.master_dtype}, units_.micro_batch);
  const std::int64_t item = size_of(plan.master_dtype);
  std::vector<Arg> others;
  std::int64_t elements = 0;
  for (const ShardedParam& p : units_.layout(u).params) {
    if (p.float8) continue;
    others.push_back({units_[u].shard, Access::read, p.offset * item, p.padded_shard() * item});
    elements += p.padded_shard();
  }
  const bool casts = units_.casts_shards(u);
  if (!others.empty() && casts) {
    const std::int32_t cast =
        b.allocate_new(units_.buffer(elements, units_.param_dtype(u), BufferKind::cast_shard, stream, u));
    others.push_back({cast, Access::write});
    b.issue(units_.op(Action::cast_shard, stream, u), others);
    source.temporaries.push_back(cast);
  }
  for (const std::int32_t t : source.temporaries) source.args.push_back({t});
  if (!casts) source.args.insert(source.args.end(), others.begin(), others.end());
  return source;
}

// One parameter after the other: its shard over the host link, then its cast; the copy before the cast is freed at
// once.
Fsdp2Unshard::Source Fsdp2Unshard::from_host(StepBuilder& b, std::int32_t u, Stream stream) {
  const UnitLayout& l = units_.layout(u);
  Source source;
  for (std::size_t i = 0; i < l.params.size(); ++i) {
    const ShardedParam& p = l.params[i];
    std::int32_t here =
        b.allocate_new(units_.buffer(p.padded_shard(), p.kept, BufferKind::cast_shard, stream, u, p.param));
    const Arg shard{units_[u].shard, Access::read, l.shard_begin(i), p.padded_shard() * size_of(p.kept)};
    b.issue(units_.op(Action::shard_to_device, stream, u), {{shard, Arg{here, Access::write}}});
    if (p.kept != units_.param_dtype(u)) {
      const std::int32_t cast = b.allocate_new(
          units_.buffer(p.padded_shard(), units_.param_dtype(u), BufferKind::cast_shard, stream, u, p.param));
      b.issue(units_.op(Action::cast_shard, stream, u), {{Arg{here}, Arg{cast, Access::write}}});
      b.release(here);
      here = cast;
    }
    source.args.push_back({here});
    source.temporaries.push_back(here);
  }
  return source;
}

void Fsdp2Unshard::wait(StepBuilder& b, std::int32_t u, bool forward) {
  Fsdp2Unit& s = units_[u];
  if (!s.pending) return;
  s.pending = false;
  if (units_.copies_alone(u)) {
    if (forward) drop_held(b);  // of a unit with another mesh
    copy_alone(b, u);
    s.gathered = true;
    return;
  }
  const std::int32_t previous = forward ? pass_held(b) : kNone;  // F3a
  if (previous >= 0 && !units_.before(15)) b.release(previous);
  b.wait(Stream::compute, s.gather_op);                       // F3b
  const std::int32_t done = copy_out(b, u, {Arg{s.gather}});  // F3c
  s.gathered = true;
  if (s.kept) Fsdp2Units::release_all(b, s.kept_shards);
  s.kept = false;
  if (previous >= 0 && units_.before(15)) b.release(previous);
  if (forward && !s.on_compute) {
    held_gather_ = s.gather;
    held_copy_out_ = done;
  } else {
    b.wait(Stream::copy_in, done);
    b.wait(Stream::all_gather, done);
    b.release(s.gather);
  }
  s.gather = -1;
}

// One shard: D casts it where that is needed and copies it.
void Fsdp2Unshard::copy_alone(StepBuilder& b, std::int32_t u) {
  b.wait(Stream::compute, units_[u].reshard_event);
  Source source = gather_source(b, u, Stream::compute);
  copy_out(b, u, source.args);
  Fsdp2Units::release_all(b, source.temporaries);
}

// F3c and F3d. A parameter sharded on a dimension d > 0 arrives as W slabs one after the other, which then are put side
// by side.
std::int32_t Fsdp2Unshard::copy_out(StepBuilder& b, std::int32_t u, const std::vector<Arg>& source) {
  Fsdp2Unit& s = units_[u];
  const UnitLayout& l = units_.layout(u);
  std::vector<Arg> args(source);
  std::vector<std::int32_t> slabs(s.full.size(), -1);
  for (std::size_t i = 0; i < s.full.size(); ++i) {
    const ShardedParam& p = l.params[i];
    const std::int64_t elements = p.padded_shard() * l.shards;
    const DType dtype = p.float8 ? DType::f8 : units_.param_dtype(u);
    s.full[i] =
        b.allocate_new(units_.buffer(elements, dtype, BufferKind::unsharded_parameter, Stream::compute, u, p.param));
    if (p.dim > 0 && l.shards > 1)
      slabs[i] = b.allocate_new(units_.buffer(elements, dtype, BufferKind::scratch, Stream::compute, u, p.param));
    args.push_back({slabs[i] >= 0 ? slabs[i] : s.full[i], Access::write, 0, units_.gathered_bytes_of(u, p)});
  }
  std::int32_t done = b.issue(units_.op(Action::gather_copy_out, Stream::compute, u), args);
  for (std::size_t i = 0; i < s.full.size(); ++i)
    if (slabs[i] >= 0)
      done = b.issue(units_.op(Action::reorder_shards, Stream::compute, u),
                     {{Arg{slabs[i]}, Arg{s.full[i], Access::write}}});
  Fsdp2Units::release_all(b, slabs);
  return done;
}

void Fsdp2Unshard::reshard_after_forward(StepBuilder& b, std::int32_t u) {
  const Fsdp2Unit& s = units_[u];
  if (!s.reshard_after_forward || !s.gathered) return;
  if (s.small_group > 1) return keep_parts(b, u);
  reshard(b, u);
}

// Parameter by parameter: this rank's part over the small group is cloned, then the whole is freed.
void Fsdp2Unshard::keep_parts(StepBuilder& b, std::int32_t u) {
  Fsdp2Unit& s = units_[u];
  const UnitLayout& l = units_.layout(u);
  for (std::size_t i = 0; i < s.full.size(); ++i) {
    const ShardedParam& p = l.params[i];
    const std::int64_t elements = p.padded_shard() * l.shards / s.small_group;
    const std::int64_t bytes = elements * size_of(units_.param_dtype(u));
    s.kept_shards[i] = b.allocate_new(
        units_.buffer(elements, units_.param_dtype(u), BufferKind::kept_shard, Stream::compute, u, p.param));
    const Arg part{s.full[i], Access::read, units_.shard_rank(u) % s.small_group * bytes, bytes};
    s.reshard_event =
        b.issue(units_.op(Action::keep_shard, Stream::compute, u), {{part, Arg{s.kept_shards[i], Access::write}}});
    if (s.old_shards[i] >= 0) b.release(std::exchange(s.old_shards[i], kNone));
    b.release(s.full[i]);
    s.full[i] = -1;
  }
  s.gathered = false;
  s.kept = true;
}

// Parts that no backward gathered stay, unused, until the next forward keeps others. A step has to end with the buffers
// that it began with: over its end they take the place of the last ones.
void Fsdp2Unshard::leave_parts(StepBuilder& b, std::int32_t u, bool last) {
  Fsdp2Unit& s = units_[u];
  for (std::size_t i = 0; i < s.kept_shards.size(); ++i) {
    const std::int32_t kept = std::exchange(s.kept_shards[i], kNone);
    s.old_shards[i] = kept;
    if (kept < 0 || !last) continue;
    b.release(kept);
    if (s.resting_shards[i] < 0) s.resting_shards[i] = b.declare_as(kept);
    b.allocate(s.old_shards[i] = s.resting_shards[i]);
  }
}

void Fsdp2Unshard::reshard(StepBuilder& b, std::int32_t u) {
  Fsdp2Unit& s = units_[u];
  if (s.gathered) Fsdp2Units::release_all(b, s.full);
  s.gathered = false;
}

std::int32_t Fsdp2Unshard::pass_held(StepBuilder& b) {
  if (held_gather_ < 0) return kNone;
  b.wait(Stream::copy_in, held_copy_out_);
  b.wait(Stream::all_gather, held_copy_out_);
  return std::exchange(held_gather_, kNone);
}

void Fsdp2Unshard::drop_held(StepBuilder& b) {
  const std::int32_t held = pass_held(b);
  if (held >= 0) b.release(held);
}

void Fsdp2Unshard::drop_unused(StepBuilder& b, std::int32_t u, bool last) {
  Fsdp2Unit& s = units_[u];
  if (s.pending && s.gather >= 0) {
    b.wait(Stream::compute, s.gather_op);
    // Where the host steps the shards, it must not overtake the copy that still reads them. (PyTorch's host does not
    // wait here.)
    if (units_.c.plan.offload) b.host_wait({{s.gather_op}}, units_.micro_batch);
    b.release(s.gather);
  }
  s.pending = false;
  s.gather = -1;
  // Parts of a unit whose backward never needed them. The next micro-batch gathers from them again if backward does
  // not reshard.
  if (s.kept && !last && !units_.switches(u).reshard_after_backward) return;
  if (s.kept) leave_parts(b, u, last);
  s.kept = false;
  s.reshard_event = -1;
}

void Fsdp2Unshard::after_optimizer(StepBuilder& b) {
  if (!units_.c.plan.float8.precomputed_scales) return;
  std::vector<ShardOfUnit> shards;
  for (const std::int32_t u : units_.module_order)
    shards.push_back({&units_.layout(u), u, units_[u].shard, units_.c.plan.master_dtype});
  float8_.compute_scales(b, shards);
}

void Fsdp2Unshard::end_backward(StepBuilder& b) {
  if (held_gather_ >= 0) b.release(held_gather_);  // of a recomputation that stopped early; D itself copied it out
  held_gather_ = -1;
}

}  // namespace fsdp
