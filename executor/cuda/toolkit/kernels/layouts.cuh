// Copies between whole parameters and the [W, S] layout of the collectives (planner/layout.h), and between orders of a
// parameter.
//
// A parameter sharded by rows is the same sequence of elements in the flat buffer as whole, cut into chunks: element e
// of the whole lies in slot e / chunk, at offset + e % chunk; behind its last element is padding.
#pragma once

#include <numeric>

#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "executor/kernels/call.h"
#include "planner/layout.h"

namespace fsdp::cuda {

struct SpreadPart {
  std::byte* whole = nullptr;  // null: zeros
  std::int64_t elements = 0, chunk = 0, offset = 0;
};
inline constexpr int kSpreadParts = 64;  // 2 KiB of the 4 KiB that a kernel's arguments may take
struct SpreadTable {
  SpreadPart part[kSpreadParts];
};

// Grid: x elements of a chunk, y slots, z parts.
template <class From, class To, int kCount>
__global__ void spread_kernel(SpreadTable table, To* flat, std::int64_t slots, std::int64_t slot_elements) {
  const SpreadPart& p = table.part[blockIdx.z];
  const auto* whole = reinterpret_cast<const From*>(p.whole);
  for (std::int64_t s = blockIdx.y; s < slots; s += gridDim.y)
    for_elements<kCount>(p.chunk, [&](auto count, std::int64_t i) {
      constexpr int c = decltype(count)::value;
      const std::int64_t e = s * p.chunk + i;
      Pack<To, c> to{};
      if (whole != nullptr && e < p.elements) {  // packs never cross the end: kCount divides it, or is 1
        const Pack<From, c> from = load_pack<c>(whole + e);
        for (int k = 0; k < c; ++k) {
          if constexpr (std::is_same_v<From, To>) to.at[k] = from.at[k];
          else store(to.at[k], static_cast<Math<To>>(load(from.at[k])));
        }
      }
      store_pack(flat + s * slot_elements + p.offset + i, to);
    });
}

// The other way round, bytes as they are. Unit: an unsigned number as wide as an element.
template <class Unit, int kCount>
__global__ void collect_kernel(SpreadTable table, const Unit* flat, std::int64_t slots, std::int64_t slot_elements) {
  const SpreadPart& p = table.part[blockIdx.z];
  auto* whole = reinterpret_cast<Unit*>(p.whole);
  for (std::int64_t s = blockIdx.y; s < slots; s += gridDim.y)
    for_elements<kCount>(p.chunk, [&](auto count, std::int64_t i) {
      constexpr int c = decltype(count)::value;
      const std::int64_t e = s * p.chunk + i;
      if (e < p.elements) store_pack(whole + e, load_pack<c>(flat + s * slot_elements + p.offset + i));
    });
}

// All extents in whole packs of c elements, all addresses aligned.
inline bool spread_packs(std::span<const SpreadPart> parts, std::int64_t slot_elements, std::int64_t c) {
  bool yes = slot_elements % c == 0;
  for (const SpreadPart& p : parts)
    yes = yes && p.elements % c == 0 && p.chunk % c == 0 && p.offset % c == 0 && aligned_to_16(p.whole);
  return yes;
}

// Calls f(table, parts of it, longest chunk) for as many tables as the parts fill.
template <class F>
void with_tables(std::span<const SpreadPart> parts, const F& f) {
  for (std::size_t begin = 0; begin < parts.size(); begin += kSpreadParts) {
    const auto some = parts.subspan(begin, std::min<std::size_t>(kSpreadParts, parts.size() - begin));
    SpreadTable table;
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < some.size(); ++i) table.part[i] = some[i], longest = std::max(longest, some[i].chunk);
    if (longest > 0) f(table, static_cast<unsigned>(some.size()), longest);
  }
}

inline void check_layout_call(std::string_view operation, const UnitLayout& layout, std::span<const BufferView> full,
                              DType full_type, const BufferView& flat, std::int64_t slot, DType flat_type) {
  check_extent(operation, "flat buffer", 0, flat, extent(layout.shards, slot), size_of(flat_type));
  if (full.size() != layout.params.size())
    throw MachineError("operation " + std::string(operation) + ": " + std::to_string(full.size()) +
                       " tensors for a unit of " + std::to_string(layout.params.size()) + " parameters");
  for (std::size_t i = 0; i < full.size(); ++i)
    if (full[i].data != nullptr)
      check_extent(operation, "parameter", i, full[i], layout.params[i].numel(), size_of(full_type));
}

// What is not trained is left out; a gradient that is absent is zeros.
template <class Launch>
void launch_scatter_copy_in(const UnitLayout& layout, DType from, std::span<const BufferView> full, DType to,
                            BufferView input, const Launch& launch) {
  check_layout_call("scatter_copy_in", layout, full, from, input, layout.reduce_elements, to);
  std::vector<SpreadPart> parts;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < full.size(); ++i) {
    const ShardedParam& p = layout.params[i];
    if (!p.trainable) continue;
    parts.push_back({full[i].data, p.numel(), p.padded_shard(), offset});
    offset += p.padded_shard();
  }
  with_type(from, [&](auto source) {
    with_type(to, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      constexpr int kWidest = std::min(kPack<From>, kPack<To>);
      with_packs<kWidest>(spread_packs(parts, layout.reduce_elements, kWidest) && aligned_to_16(input.data),
                          [&](auto count) {
                            constexpr int c = decltype(count)::value;
                            with_tables(parts, [&](const SpreadTable& table, unsigned n, std::int64_t longest) {
                              launch({blocks_for(longest / c + 1), rows_of_grid(layout.shards), n}, {kThreads}, 0,
                                     spread_kernel<From, To, c>, table, reinterpret_cast<To*>(input.data),
                                     layout.shards, layout.reduce_elements);
                            });
                          });
    });
  });
}

template <class Launch>
void launch_collect(std::span<const SpreadPart> parts, DType type, BufferView gathered, std::int64_t slots,
                    std::int64_t slot_elements, const Launch& launch) {
  const auto collect = [&](auto unit) {
    using Unit = decltype(unit);
    with_packs<kPack<Unit>>(
        spread_packs(parts, slot_elements, kPack<Unit>) && aligned_to_16(gathered.data), [&](auto count) {
          constexpr int c = decltype(count)::value;
          with_tables(parts, [&](const SpreadTable& table, unsigned n, std::int64_t longest) {
            launch({blocks_for(longest / c + 1), rows_of_grid(slots), n}, {kThreads}, 0, collect_kernel<Unit, c>, table,
                   reinterpret_cast<const Unit*>(gathered.data), slots, slot_elements);
          });
        });
  };
  if (size_of(type) == 2) collect(std::uint16_t{});
  else if (size_of(type) == 4) collect(std::uint32_t{});
  else collect(std::uint64_t{});
}

template <class Launch>
void launch_gather_copy_out(const UnitLayout& layout, DType type, BufferView gathered, std::span<const BufferView> full,
                            const Launch& launch) {
  check_layout_call("gather_copy_out", layout, full, type, gathered, layout.shard_elements, type);
  std::vector<SpreadPart> parts;
  for (std::size_t i = 0; i < full.size(); ++i)
    if (full[i].data != nullptr)
      parts.push_back(
          {full[i].data, layout.params[i].numel(), layout.params[i].padded_shard(), layout.params[i].offset});
  launch_collect(parts, type, gathered, layout.shards, layout.shard_elements, launch);
}

// Each of the n slots holds an n-th of every padded parameter; its padding lies at the end.
template <class Launch>
void launch_gather_parts_copy_out(const UnitLayout& layout, std::int64_t n, DType type, BufferView gathered,
                                  std::span<const BufferView> full, const Launch& launch) {
  if (n < 1 || layout.shards % n != 0)
    throw MachineError("gather_copy_out: groups of " + std::to_string(n) + " do not divide " +
                       std::to_string(layout.shards) + " shards");
  check_layout_call("gather_copy_out", layout, full, type, gathered, layout.shard_elements, type);
  const std::int64_t times = layout.shards / n;
  std::vector<SpreadPart> parts;
  for (std::size_t i = 0; i < full.size(); ++i)
    if (full[i].data != nullptr)
      parts.push_back({full[i].data, layout.params[i].numel(), layout.params[i].padded_shard() * times,
                       layout.params[i].offset * times});
  launch_collect(parts, type, gathered, n, layout.shard_elements * times, launch);
}

// `shards` slabs of `outer` pieces each, to or from `outer` rows of `shards` pieces each. Grid: x units of a piece, y
// pieces.
template <class Unit>
__global__ void reorder_kernel(const Unit* from, Unit* to, std::int64_t shards, std::int64_t outer, std::int64_t piece,
                               bool to_rows) {
  for (std::int64_t k = blockIdx.y; k < shards * outer; k += gridDim.y) {
    const std::int64_t s = k / outer, o = k % outer, in_slabs = k * piece, in_rows = (o * shards + s) * piece;
    for_elements<1>(piece, [=](auto, std::int64_t i) {
      if (to_rows) to[in_rows + i] = from[in_slabs + i];
      else to[in_slabs + i] = from[in_rows + i];
    });
  }
}

template <class Launch>
void launch_reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer, std::int64_t piece_bytes,
                    bool to_rows, const Launch& launch) {
  const std::int64_t bytes = extent(shards, outer, piece_bytes);
  check_extent("reorder_shards", "source", 0, from, bytes, 1);
  check_extent("reorder_shards", "target", 0, to, bytes, 1);
  if (bytes == 0) return;
  const auto with_unit = [&](auto unit) {
    using Unit = decltype(unit);
    const std::int64_t piece = piece_bytes / static_cast<std::int64_t>(sizeof(Unit));
    launch({blocks_for(piece), rows_of_grid(shards * outer)}, {kThreads}, 0, reorder_kernel<Unit>,
           reinterpret_cast<const Unit*>(from.data), reinterpret_cast<Unit*>(to.data), shards, outer, piece, to_rows);
  };
  const std::uint64_t all = static_cast<std::uint64_t>(piece_bytes) | reinterpret_cast<std::uintptr_t>(from.data) |
                            reinterpret_cast<std::uintptr_t>(to.data);
  if (all % 16 == 0) with_unit(Pack<std::uint32_t, 4>{});
  else if (all % 4 == 0) with_unit(std::uint32_t{});
  else if (all % 2 == 0) with_unit(std::uint16_t{});
  else with_unit(std::uint8_t{});
}

}  // namespace fsdp::cuda
