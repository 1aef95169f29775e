// Benchmarks of what is not a kernel of the model: copies, casts, the optimizer, norms, collectives.
#include <algorithm>
#include <cstring>
#include <vector>

#include "executor/calibrate_ops.h"
#include "executor/kernels.h"

namespace fsdp {
namespace {

// Repeats body(i) on sets of `count` buffers of n elements.
template <class Body>
Setup buffers_setup(std::int64_t n, DType type, int count, Body body) {
  return [=](BenchMemory& memory) -> Issue {
    std::vector<std::vector<BufferView>> sets(static_cast<std::size_t>(buffer_sets(count * n * size_of(type), Reuse::cold)));
    for (auto& set : sets)
      for (int i = 0; i < count; ++i) set.push_back(memory.take(n, type));
    return [=](Device& device, std::int32_t& op, int i) {
      device.launch(op++, Stream::compute, {}, [body, set = sets[static_cast<std::size_t>(i) % sets.size()]] { body(set); });
    };
  };
}

UnitLayout flat_layout(std::int64_t n) {
  UnitLayout layout;
  layout.params = {{.param = 0, .rows = n, .row_elements = 1, .chunk_rows = n, .offset = 0}};
  layout.shard_elements = layout.reduce_elements = layout.numel = n;
  return layout;
}

}  // namespace

Setup empty_setup() {
  return [](BenchMemory&) -> Issue {
    return [](Device& device, std::int32_t& op, int) { device.launch(op++, Stream::compute, {}, [] {}); };
  };
}

Setup copy_setup(std::int64_t n, DType type) {
  return buffers_setup(n, type, 2, [](const std::vector<BufferView>& b) {
    std::memcpy(b[1].data, b[0].data, static_cast<std::size_t>(b[0].bytes));
  });
}

Setup cast_setup(std::int64_t n, DType type) {
  return buffers_setup(n, DType::f32, 2, [=](const std::vector<BufferView>& b) {
    const DType from = type == DType::f64 ? DType::f32 : type;
    convert(from, {b[0].data, n * size_of(from)}, DType::f32, b[1], n, true);
  });
}
std::int64_t cast_bytes(std::int64_t n, DType type) { return n * ((type == DType::f64 ? 4 : size_of(type)) + 8); }

Setup optimizer_setup(std::int64_t n, DType type) {
  return buffers_setup(n, type, 4, [layout = flat_layout(n), type](const std::vector<BufferView>& b) {
    adamw(layout, 0, Optimizer{}, 1000, type, b[0], b[1], b[2], b[3]);
  });
}

Setup norm_setup(std::int64_t n, DType type) {
  return buffers_setup(n, type, 1, [n, type](const std::vector<BufferView>& b) {
    if (sum_of_squares(type, b[0], n) < 0) scale(type, b[0], n, 0.5);
    scale(type, b[0], n, 1.0);
  });
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
