// Copies: copy-in and copy-out of a unit, between whole parameters and the [W, S_g] layout of the collectives
// (planner/layout.h); plain and reordered ones.
#include <algorithm>
#include <cstring>
#include <string>

#include "executor/kernels/call.h"
#include "executor/kernels/levels/host_kernels.h"
#include "planner/layout.h"

namespace fsdp {
namespace {

void check_call(std::string_view operation, const UnitLayout& layout, std::span<const BufferView> full, DType full_type,
                const BufferView& flat, std::int64_t slot, DType flat_type) {
  check_extent(operation, "flat buffer", 0, flat, extent(layout.shards, slot), size_of(flat_type));
  if (full.size() != layout.params.size())
    throw MachineError("operation " + std::string(operation) + ": " + std::to_string(full.size()) +
                       " tensors for a unit of " + std::to_string(layout.params.size()) + " parameters");
  for (std::size_t i = 0; i < full.size(); ++i)
    if (full[i].data != nullptr)
      check_extent(operation, "parameter", i, full[i], layout.params[i].numel(), size_of(full_type));
}

template <class From, class To>
void copy_cast(const From* from, To* to, std::int64_t n) {
  if constexpr (std::is_same_v<From, To>) std::copy_n(from, n, to);
  else
    for (std::int64_t i = 0; i < n; ++i) store(to[i], static_cast<Math<To>>(load(from[i])));
}

// One parameter into its chunk, at `offset`, of every rank's slot; rows that are not there are zeros.
template <class From, class To>
void spread(const UnitLayout& layout, const ShardedParam& p, std::int64_t offset, const From* full, To* flat) {
  for (std::int64_t rank = 0; rank < layout.shards; ++rank) {
    To* slot = flat + rank * layout.reduce_elements + offset;
    const std::int64_t there = full == nullptr ? 0 : p.local_elements(rank);
    if (there > 0) copy_cast(full + p.local_row_begin(rank) * p.row_elements, slot, there);
    std::fill(slot + there, slot + p.padded_shard(), To{});
  }
}

}  // namespace

void HostKernels::scatter_copy_in(const UnitLayout& layout, DType from, std::span<const BufferView> full, DType to,
                                  BufferView input) const {
  check_call("scatter_copy_in", layout, full, from, input, layout.reduce_elements, to);
  with_type(from, [&](auto source) {
    with_type(to, [&](auto target) {
      std::int64_t offset = 0;
      for (std::size_t i = 0; i < full.size(); ++i) {
        const ShardedParam& p = layout.params[i];
        if (!p.trainable) continue;
        spread(layout, p, offset, reinterpret_cast<const decltype(source)*>(full[i].data),
               reinterpret_cast<decltype(target)*>(input.data));
        offset += p.padded_shard();
      }
    });
  });
}

void HostKernels::gather_copy_out(const UnitLayout& layout, DType type, BufferView gathered,
                                  std::span<const BufferView> full) const {
  check_call("gather_copy_out", layout, full, type, gathered, layout.shard_elements, type);
  const std::int64_t size = size_of(type);
  for (std::size_t i = 0; i < full.size(); ++i) {
    const ShardedParam& p = layout.params[i];
    if (full[i].data == nullptr) continue;
    for (std::int64_t rank = 0; rank < layout.shards; ++rank)
      if (const std::int64_t there = p.local_elements(rank); there > 0)
        std::memcpy(full[i].data + p.local_row_begin(rank) * p.row_elements * size,
                    gathered.data + (rank * layout.shard_elements + p.offset) * size,
                    static_cast<std::size_t>(there * size));
  }
}

void HostKernels::gather_parts_copy_out(const UnitLayout& layout, std::int64_t n, DType type, BufferView gathered,
                                        std::span<const BufferView> full) const {
  if (n < 1 || layout.shards % n != 0)
    throw MachineError("gather_copy_out: groups of " + std::to_string(n) + " do not divide " +
                       std::to_string(layout.shards) + " shards");
  check_call("gather_copy_out", layout, full, type, gathered, layout.shard_elements, type);
  const std::int64_t size = size_of(type), slot = layout.shard_elements * layout.shards / n;
  for (std::size_t i = 0; i < full.size(); ++i) {
    const ShardedParam& p = layout.params[i];
    if (full[i].data == nullptr) continue;
    const std::int64_t part = p.padded_shard() * layout.shards / n, before = p.offset * layout.shards / n;
    for (std::int64_t k = 0; k < n; ++k)
      if (const std::int64_t there = std::min(part, p.numel() - k * part); there > 0)
        std::memcpy(full[i].data + k * part * size, gathered.data + (k * slot + before) * size,
                    static_cast<std::size_t>(there * size));
  }
}

void HostKernels::copy(std::byte* to, const std::byte* from, std::int64_t bytes) const {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void HostKernels::zero(BufferView view) const {
  if (view.bytes > 0) std::memset(view.data, 0, static_cast<std::size_t>(view.bytes));
}

void HostKernels::reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer,
                          std::int64_t piece_bytes, bool to_rows) const {
  for (std::int64_t s = 0; s < shards; ++s)
    for (std::int64_t o = 0; o < outer; ++o) {
      const std::int64_t in_slabs = (s * outer + o) * piece_bytes, in_rows = (o * shards + s) * piece_bytes;
      copy(to.data + (to_rows ? in_rows : in_slabs), from.data + (to_rows ? in_slabs : in_rows), piece_bytes);
    }
}

}  // namespace fsdp
