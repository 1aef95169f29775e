#include "planner/lowering/step/float8_casts.h"

namespace fsdp {
namespace {

constexpr std::int64_t kItem = size_of(DType::f32);

Buffer numbers(Stream pool, std::int64_t count) {
  Buffer info;
  info.bytes = count * kItem;
  info.kind = BufferKind::scalar;
  info.pool = pool;
  return info;
}

Arg part_of(const ShardOfUnit& s, const ShardedParam& p) {
  return {s.shard, Access::read, p.offset * size_of(s.dtype), p.padded_shard() * size_of(s.dtype)};
}

// A temporary of one weight, made inside the next operation.
std::int32_t inside(StepBuilder& b, std::int64_t elements, DType dtype, BufferKind kind, const ShardOfUnit& s,
                    std::int16_t micro_batch) {
  Buffer info;
  info.bytes = elements * size_of(dtype);
  info.dtype = dtype;
  info.kind = kind;
  info.pool = Stream::copy_in;
  info.unit = s.unit;
  info.micro_batch = micro_batch;
  const std::int32_t id = b.declare(info);
  b.allocate_inside(id);
  return id;
}

// The absolute values are a copy of the weight, of which the largest is taken.
std::int32_t reduce_largest(StepBuilder& b, const ShardOfUnit& s, const ShardedParam& p, std::int16_t micro_batch) {
  const std::int32_t largest = b.allocate_new(numbers(Stream::copy_in, 1));
  b.release_inside(inside(b, p.padded_shard(), s.dtype, BufferKind::scratch, s, micro_batch));
  const std::int32_t found = b.issue(operation(Action::largest_value, Stream::copy_in, s.unit, micro_batch),
                                     {{part_of(s, p), Arg{largest, Access::write}}});
  b.wait(Stream::all_gather, found);
  Operation reduce = operation(Action::reduce_largest, Stream::all_gather, s.unit, micro_batch);
  reduce.comm = Communicator::shard;
  b.wait(Stream::copy_in, b.issue(reduce, {{Arg{largest, Access::accumulate}}}));
  return largest;
}

}  // namespace

// The scaled weight in fp32, its clamped copy, then the cast. A weight in 16 bits is in fp32 first, and that copy is
// gone when there is a clamped one.
std::vector<std::int32_t> Float8Casts::cast(StepBuilder& b, const ShardOfUnit& s, std::int16_t micro_batch) const {
  std::vector<std::int32_t> casts;
  for (const ShardedParam& p : s.layout->params) {
    if (!p.float8) continue;
    const std::int32_t largest = scales_ >= 0 ? kNone : reduce_largest(b, s, p, micro_batch);
    const auto temporary = [&](DType dtype, BufferKind kind) {
      return inside(b, p.padded_shard(), dtype, kind, s, micro_batch);
    };
    const std::int32_t scaled = temporary(DType::f32, BufferKind::scratch),
                       clamped = temporary(DType::f32, BufferKind::scratch),
                       cast = temporary(DType::f8, BufferKind::cast_shard);
    b.release_inside(clamped);
    b.release_inside(scaled);
    b.issue(operation(Action::cast_shard, Stream::copy_in, s.unit, micro_batch),
            {{part_of(s, p), Arg{scales_ >= 0 ? scales_ : largest}, Arg{cast, Access::write}}});
    if (largest >= 0) b.release(largest);
    casts.push_back(cast);
  }
  return casts;
}

void Float8Casts::compute_scales(StepBuilder& b, std::span<const ShardOfUnit> shards) {
  std::vector<Arg> args;
  for (const ShardOfUnit& s : shards)
    for (const ShardedParam& p : s.layout->params)
      if (p.float8) args.push_back(part_of(s, p));
  if (scales_ < 0) scales_ = b.allocate_new(numbers(Stream::compute, static_cast<std::int64_t>(args.size())));
  args.push_back({scales_, Access::write});
  b.issue(operation(Action::largest_value), args);
  Operation reduce = operation(Action::reduce_largest);
  reduce.comm = Communicator::shard;
  b.issue(reduce, {{Arg{scales_, Access::accumulate}}});
}

}  // namespace fsdp
