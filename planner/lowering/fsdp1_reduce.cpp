#include "planner/lowering/fsdp1_reduce.h"

#include <utility>
#include <vector>

namespace fsdp {
namespace {

DType dtype_of(const Fsdp1Units& units, std::int32_t buffer) { return units.c.program.buffers[at(buffer)].dtype; }

void divide(Fsdp1Units& units, StepBuilder& b, std::int32_t u, std::int32_t buffer, double factor, Stream stream) {
  if (factor > 1) b.issue(units.op(Action::divide_gradient, stream, u), {{Arg{buffer, Access::accumulate}}});
}

// A copy of a gradient with another dtype or size, on the stream whose pool it comes from.
std::int32_t converted(Fsdp1Units& units, StepBuilder& b, std::int32_t from, const Buffer& into) {
  const std::int32_t id = b.allocate_new(into);
  b.issue(units.op(Action::cast_gradient, into.pool, into.unit), {{Arg{from}, Arg{id, Access::write}}});
  return id;
}

void reduce_sharded(Fsdp1Units& units, StepBuilder& b, std::int32_t u) {
  Fsdp1Unit& s = units[u];
  const UnitLayout& l = units.layout(u);
  const DType reduce = l.reduce_dtype, master = units.kept(u);
  const Stream end = units.reduction_end();
  std::vector<std::int32_t> done;  // what the host holds until the reduction has been issued
  std::int32_t input = std::exchange(s.flat_gradient, -1);
  done.push_back(input);
  if (dtype_of(units, input) != reduce) {
    input = converted(units, b, input,
                      units.buffer(l.flat_elements, reduce, BufferKind::reduce_input, Stream::reduce_scatter, u));
    done.push_back(input);
  }
  const std::int64_t padded = l.shard_elements * l.shards;
  if (l.flat_elements != padded || units.early()) {  // a padding of nothing is a copy, too
    const Buffer into = units.buffer(padded, reduce, BufferKind::reduce_input, Stream::reduce_scatter, u);
    input = converted(units, b, input, units.of_collective(into));
    done.push_back(input);
  }
  divide(units, b, u, input, l.scale.divide_before, Stream::reduce_scatter);
  const bool keeps = reduce == master && !s.has_sharded_gradient;  // nothing to cast or to add
  std::int32_t out = s.sharded_gradient;
  if (keeps && !units.c.plan.offload) {
    b.allocate(out);
  } else {
    out = b.allocate_new(units.of_collective(
        units.buffer(l.shard_elements, reduce, BufferKind::reduce_output, Stream::reduce_scatter, u, {end})));
  }
  b.issue(units.op(Action::reduce_scatter, Stream::reduce_scatter, u, Communicator::shard),
          {{Arg{input}, Arg{out, Access::write}}});
  if (units.hybrid()) {
    b.wait_stream(Stream::all_reduce, Stream::reduce_scatter);
    b.issue(units.op(Action::all_reduce, Stream::all_reduce, u, Communicator::replicate),
            {{Arg{out, Access::accumulate}}});
  }
  divide(units, b, u, out, l.scale.divide_after, end);
  if (reduce != master) {
    std::int32_t cast = s.sharded_gradient;
    if (s.has_sharded_gradient || units.c.plan.offload) {
      cast = b.allocate_new(
          units.buffer(l.shard_elements, master, BufferKind::reduce_output, end, u, {Stream::reduce_scatter}));
    } else {
      b.allocate(cast);
    }
    b.issue(units.op(Action::finish_gradient, end, u), {{Arg{out}, Arg{cast, Access::write}}});
    b.release(std::exchange(out, cast));
  }
  if (s.has_sharded_gradient) {
    b.issue(units.op(Action::add_gradient, end, u), {{Arg{out}, Arg{s.sharded_gradient, Access::accumulate}}});
    b.release(out);
  } else if (units.c.plan.offload) {  // the device's copy stays until the end of backward
    b.issue(units.op(Action::gradient_to_host, end, u), {{Arg{out}, Arg{s.sharded_gradient, Access::write}}});
    s.on_device = out;
  }
  s.has_sharded_gradient = true;
  for (auto id = done.rbegin(); id != done.rend(); ++id) b.release(*id);  // autograd's own last
}

// Every rank holds everything: the gradient is summed over all ranks where it is.
void reduce_whole(Fsdp1Units& units, StepBuilder& b, std::int32_t u, bool last_micro_batch) {
  Fsdp1Unit& s = units[u];
  const UnitLayout& l = units.layout(u);
  const DType reduce = l.reduce_dtype, master = units.kept(u);
  const auto made = [&](DType dtype, BufferKind kind) {  // the gradient itself, if it is the last to be made
    if (dtype == master && (reduce == master || last_micro_batch)) {
      b.allocate(s.sharded_gradient);
      return s.sharded_gradient;
    }
    return b.allocate_new(units.buffer(l.flat_elements, dtype, kind, Stream::reduce_scatter, u));
  };
  const std::int32_t computed = s.flat_gradient;
  if (dtype_of(units, s.flat_gradient) != reduce) {
    const std::int32_t cast = made(reduce, BufferKind::reduce_input);
    b.issue(units.op(Action::cast_gradient, Stream::reduce_scatter, u), {{Arg{computed}, Arg{cast, Access::write}}});
    s.flat_gradient = cast;
  }
  divide(units, b, u, s.flat_gradient, l.scale.divide_before, Stream::reduce_scatter);
  b.issue(units.op(Action::all_reduce, Stream::reduce_scatter, u, Communicator::replicate),
          {{Arg{s.flat_gradient, Access::accumulate}}});
  divide(units, b, u, s.flat_gradient, l.scale.divide_after, Stream::reduce_scatter);
  if (reduce != master) {
    const std::int32_t low = s.flat_gradient;
    const std::int32_t whole = made(master, BufferKind::gradient);
    b.issue(units.op(Action::finish_gradient, Stream::reduce_scatter, u), {{Arg{low}, Arg{whole, Access::write}}});
    if (low != computed) b.release(low);
    s.flat_gradient = whole;
  }
  if (s.flat_gradient != computed) b.release(computed);
  s.has_sharded_gradient = s.flat_gradient == s.sharded_gradient;
}

}  // namespace

Buffer fsdp1_sharded_gradient(const Fsdp1Units& units, std::int32_t u) {
  const ShardingPlan& plan = units.c.plan;
  const UnitLayout& l = units.layout(u);
  const bool cast = l.reduce_dtype != units.kept(u);
  Stream pool = Stream::reduce_scatter;
  if (units.hybrid() && cast) pool = Stream::all_reduce;
  if (!units.sharded() && !cast && !units.casts_shards(u)) pool = Stream::compute;  // what autograd made
  Buffer info = units.buffer(
      units.sharded() ? l.shard_elements : l.flat_elements, units.kept(u), BufferKind::sharded_gradient, pool, u,
      units.hybrid() ? std::initializer_list<Stream>{Stream::all_reduce} : std::initializer_list<Stream>{});
  if (pool == Stream::compute) info.recorded_streams = 1U << static_cast<unsigned>(Stream::reduce_scatter);
  info.host = plan.offload;
  if (info.host) info.recorded_streams = 0;
  return info;
}

Arg fsdp1_gradient(Fsdp1Units& units, StepBuilder& b, std::int32_t u, std::size_t position, std::int32_t param) {
  std::int32_t& piece = units[u].pieces[position];
  if (piece >= 0) return {piece, Access::accumulate};
  const std::int64_t elements = units.c.model.parameters[at(param)].numel();
  Buffer info = units.buffer(elements, units.parameter_dtype(u), BufferKind::gradient, Stream::compute, u);
  info.param = param;
  piece = b.allocate_new(info);
  return {piece, Access::write};
}

void fsdp1_flatten(Fsdp1Units& units, StepBuilder& b, std::int32_t u, bool first_use) {
  Fsdp1Unit& s = units[u];
  const UnitLayout& l = units.layout(u);
  const DType dtype = units.parameter_dtype(u);
  std::vector<Arg> args;
  for (std::int32_t piece : s.pieces) args.push_back({piece});
  // Zeros for what lies between the parameters and for those without a gradient.
  std::int64_t zeros = l.flat_elements;
  for (std::size_t i = 0; i < s.pieces.size(); ++i) zeros -= s.pieces[i] >= 0 ? l.params[i].numel() : 0;
  std::int32_t padding = -1;
  if (zeros > 0) padding = b.allocate_new(units.buffer(zeros, dtype, BufferKind::scratch, Stream::compute, u));
  const bool joins = s.of_later_uses >= 0, adds = s.flat_gradient >= 0;
  const bool whole =
      !units.sharded() && !adds && units.c.program.buffers[at(s.sharded_gradient)].pool == Stream::compute;
  std::int32_t flat = s.sharded_gradient;  // autograd's result is what the optimizer reads
  if (whole) {
    b.allocate(flat);
  } else {
    const Stream reader = adds || joins ? Stream::compute : Stream::reduce_scatter;
    flat = b.allocate_new(units.buffer(l.flat_elements, dtype, BufferKind::gradient, Stream::compute, u, {reader}));
  }
  args.push_back({flat, Access::write});
  if (padding >= 0) args.push_back({padding, Access::write});
  b.issue(units.op(Action::scatter_copy_in, Stream::compute, u), args);
  for (std::int32_t& piece : s.pieces) {
    if (piece >= 0) b.release(piece);
    piece = -1;
  }
  if (padding >= 0) b.release(padding);
  const auto add = [&](std::int32_t from, std::int32_t into) {
    b.issue(units.op(Action::add_gradient, Stream::compute, u), {{Arg{from}, Arg{into, Access::accumulate}}});
  };
  if (joins) {
    add(flat, s.of_later_uses);
    b.release(flat);
    flat = std::exchange(s.of_later_uses, kNone);
  }
  if (!first_use) {
    s.of_later_uses = flat;
    return;
  }
  if (!adds) {
    s.flat_gradient = flat;
    return;
  }
  add(flat, s.flat_gradient);
  s.added = flat;
}

void fsdp1_reduce(Fsdp1Units& units, StepBuilder& b, std::int32_t u, bool last_micro_batch) {
  b.wait_stream(Stream::reduce_scatter, Stream::compute);
  if (units.sharded()) {
    reduce_sharded(units, b, u);
  } else {
    reduce_whole(units, b, u, last_micro_batch);
  }
}

}  // namespace fsdp
