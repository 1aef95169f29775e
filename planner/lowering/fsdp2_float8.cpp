#include "planner/lowering/fsdp2_float8.h"

namespace fsdp {
namespace {

Buffer scalar(Stream pool, std::int64_t count) {
  Buffer info;
  info.bytes = count * size_of(DType::f32);
  info.kind = BufferKind::scalar;
  info.pool = pool;
  return info;
}

}  // namespace

// The absolute values are a copy of the shard, of which the largest is taken.
std::int32_t Fsdp2Float8::reduce_largest(StepBuilder& b, std::int32_t u, const Arg& weight) {
  const std::int32_t largest = b.allocate_new(scalar(Stream::copy_in, 1));
  const std::int32_t absolute =
      b.declare(units_.buffer(weight.bytes / size_of(DType::f32), DType::f32, BufferKind::scratch, Stream::copy_in, u));
  b.allocate_inside(absolute);
  b.release_inside(absolute);
  const std::int32_t found =
      b.issue(units_.op(Action::largest_value, Stream::copy_in, u), {{weight, Arg{largest, Access::write}}});
  b.wait(Stream::all_gather, found);
  Operation reduce = units_.op(Action::reduce_largest, Stream::all_gather, u);
  reduce.comm = Communicator::shard;
  b.wait(Stream::copy_in, b.issue(reduce, {{Arg{largest, Access::accumulate}}}));
  return largest;
}

// The scaled shard in fp32, its clamped copy, then the cast.
std::vector<std::int32_t> Fsdp2Float8::cast(StepBuilder& b, std::int32_t u) {
  std::vector<std::int32_t> casts;
  const std::int64_t item = size_of(units_.c.plan.master_dtype);
  for (const ShardedParam& p : units_.layout(u).params) {
    if (!p.float8) continue;
    const std::int64_t elements = p.padded_shard();
    const Arg weight{units_[u].shard, Access::read, p.offset * item, elements * item};
    const std::int32_t largest = scales_ >= 0 ? kNone : reduce_largest(b, u, weight);
    const auto temporary = [&](DType type, BufferKind kind) {
      const std::int32_t id = b.declare(units_.buffer(elements, type, kind, Stream::copy_in, u, p.param));
      b.allocate_inside(id);
      return id;
    };
    const std::int32_t scaled = temporary(DType::f32, BufferKind::scratch),
                       clamped = temporary(DType::f32, BufferKind::scratch),
                       cast = temporary(DType::f8, BufferKind::cast_shard);
    b.release_inside(clamped);
    b.release_inside(scaled);
    b.issue(units_.op(Action::cast_shard, Stream::copy_in, u),
            {{weight, Arg{scales_ >= 0 ? scales_ : largest}, Arg{cast, Access::write}}});
    if (largest >= 0) b.release(largest);
    casts.push_back(cast);
  }
  return casts;
}

void Fsdp2Float8::compute_scales(StepBuilder& b) {
  std::vector<Arg> args;
  std::int64_t count = 0;
  const std::int64_t item = size_of(units_.c.plan.master_dtype);
  for (const std::int32_t u : units_.module_order)
    for (const ShardedParam& p : units_.layout(u).params) {
      if (!p.float8) continue;
      args.push_back({units_[u].shard, Access::read, p.offset * item, p.padded_shard() * item});
      ++count;
    }
  if (scales_ < 0) scales_ = b.allocate_new(scalar(Stream::compute, count));
  args.push_back({scales_, Access::write});
  b.issue(operation(Action::largest_value), args);
  Operation reduce = operation(Action::reduce_largest);
  reduce.comm = Communicator::shard;
  b.issue(reduce, {{Arg{scales_, Access::accumulate}}});
}

}  // namespace fsdp
