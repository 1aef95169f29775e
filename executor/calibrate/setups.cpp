// Benchmarks of what is not a kernel of the model: copies, casts, the optimizer, norms, collectives.
#include <algorithm>
#include <vector>

#include "executor/calibrate/calls.h"

namespace fsdp {
namespace {

// Goes round sets of buffers of n elements, of these types, with `launch(device, operation, set, i)`.
template <class Launch>
Setup buffers_setup(std::int64_t n, std::vector<DType> types, Launch launch) {
  return [=](BenchMemory& memory) -> Issue {
    std::int64_t bytes = 0;
    for (const DType t : types) bytes += n * size_of(t);
    std::vector<std::vector<BufferView>> sets(static_cast<std::size_t>(buffer_sets(bytes, Reuse::cold)));
    for (auto& set : sets)
      for (const DType t : types) set.push_back(memory.take(n, t));
    return [launch, sets = std::move(sets)](Device& device, std::int32_t& op, int i) {
      launch(device, op++, sets[static_cast<std::size_t>(i) % sets.size()], i);
    };
  };
}

// The same with one call of a unit, whose arguments the buffers are.
Setup unit_setup(Action action, std::int64_t n, std::vector<DType> types, DType compute, DType reduce, DType master,
                 int accumulate = -1) {
  const LoneCall call = LoneCall::of_unit(action, n, compute, reduce, master, types.size(), accumulate);
  return buffers_setup(n, std::move(types),
                       [call](Device& device, std::int32_t op, const std::vector<BufferView>& set, int) {
                         call.launch(device, op, set);
                       });
}

}  // namespace

Setup empty_setup() {
  return [](BenchMemory&) -> Issue {
    return [](Device& device, std::int32_t& op, int) { device.launch(op++, Stream::compute, {}, [] {}); };
  };
}

Setup copy_setup(std::int64_t n, DType type) {
  return unit_setup(Action::gather_copy_out, n, {type, type}, type, type, type);
}

Setup cast_setup(std::int64_t n, DType type) {
  const DType from = type == DType::f64 ? DType::f32 : type;
  return unit_setup(Action::accumulate_gradient, n, {from, DType::f32}, from, DType::f32, DType::f32, 1);
}
std::int64_t cast_bytes(std::int64_t n, DType type) { return n * ((type == DType::f64 ? 4 : size_of(type)) + 8); }

Setup optimizer_setup(std::int64_t n, DType type) {
  return unit_setup(Action::optimizer, n, {type, type, type, type}, type, type, type);
}

// The sum of squares and the scaling, in turns: 1 pass that reads, then 2 that read and write.
Setup norm_setup(std::int64_t n, DType type) {
  const LoneCall sum = LoneCall::of_unit(Action::clip_local_norm, n, type, type, type, 2),
                 scale = LoneCall::of_unit(Action::clip_scale, n, type, type, type, 2);
  return [=](BenchMemory& memory) -> Issue {
    const BufferView norm = memory.take(1, DType::f64);
    const Setup turns =
        buffers_setup(n, {type}, [=](Device& device, std::int32_t op, const std::vector<BufferView>& set, int i) {
          if (i % 2 == 0) sum.launch(device, op, {set[0], norm});
          else scale.launch(device, op, {norm, set[0]});
        });
    return turns(memory);
  };
}

Setup collective_setup(CollectiveKind kind, std::int64_t full_bytes, DType type, std::int64_t ranks) {
  const std::int64_t slot = std::max<std::int64_t>(1, full_bytes / size_of(type) / ranks), all = slot * ranks;
  return [=](BenchMemory& memory) -> Issue {
    std::vector<BufferView> buffers;
    for (int i = 0; i < buffer_sets(all * size_of(type), Reuse::cold); ++i) buffers.push_back(memory.take(all, type));
    const BufferView small = memory.take(kind == CollectiveKind::reduce_scatter ? slot : 1, type);
    return [=](Device& device, std::int32_t& op, int i) {
      const BufferView large = buffers[static_cast<std::size_t>(i) % buffers.size()];
      const std::int32_t previous[] = {op - 1}, ready[] = {op};
      device.launch(op, Stream::compute, op == 0 ? std::span<const std::int32_t>{} : previous, [] {});
      ++op;
      switch (kind) {
        case CollectiveKind::all_gather:
          device.all_gather(op++, Stream::all_gather, Communicator::world, ready, large, slot, type);
          break;
        case CollectiveKind::reduce_scatter:
          device.reduce_scatter(op++, Stream::reduce_scatter, Communicator::world, ready, large, small, slot, type,
                                Reduction::average);
          break;
        case CollectiveKind::all_reduce:
          device.all_reduce(op++, Stream::all_reduce, Communicator::world, ready, large, all, type, Reduction::average);
          break;
      }
    };
  };
}

}  // namespace fsdp
