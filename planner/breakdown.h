// Where the period of a step goes, by exposed time: where several streams are busy, the compute stream's work counts.
#pragma once

#include <array>
#include <string_view>

#include "models/units.h"

namespace fsdp {

struct Breakdown {
  Seconds compute, recompute, exposed_all_gather, exposed_reduce_scatter, exposed_all_reduce, copies, optimizer, idle;
};

// One part of a breakdown, and its names: in JSON ("copies_s"), in a table ("copies"), and in a sentence that says that
// there is more of it ("12 ms more copying").
struct BreakdownPart {
  Seconds Breakdown::*member;
  std::string_view key, label, noun;
};
// clang-format off: a table
inline constexpr std::array<BreakdownPart, 8> kBreakdownParts = {{
    {&Breakdown::compute, "compute_s", "compute", "compute"},
    {&Breakdown::recompute, "recompute_s", "recompute", "recomputation"},
    {&Breakdown::exposed_all_gather, "exposed_all_gather_s", "exposed all-gather", "exposed all-gather"},
    {&Breakdown::exposed_reduce_scatter, "exposed_reduce_scatter_s", "exposed reduce-scatter",
     "exposed reduce-scatter"},
    {&Breakdown::exposed_all_reduce, "exposed_all_reduce_s", "exposed all-reduce", "exposed all-reduce"},
    {&Breakdown::copies, "copies_s", "copies", "copying"},
    {&Breakdown::optimizer, "optimizer_s", "optimizer", "optimizer"},
    {&Breakdown::idle, "idle_s", "idle", "idle time"},
}};
// clang-format on
static_assert(sizeof(Breakdown) == kBreakdownParts.size() * sizeof(Seconds), "a part is missing in the table");

[[nodiscard]] constexpr bool is_communication(const BreakdownPart& part) {
  return part.member == &Breakdown::exposed_all_gather || part.member == &Breakdown::exposed_reduce_scatter ||
         part.member == &Breakdown::exposed_all_reduce;
}

// Communication that no work of the compute stream hides.
[[nodiscard]] constexpr Seconds exposed_communication(const Breakdown& b) {
  Seconds sum;
  for (const BreakdownPart& part : kBreakdownParts)
    if (is_communication(part)) sum += b.*part.member;
  return sum;
}

// The sum of all parts: the period.
[[nodiscard]] constexpr Seconds total(const Breakdown& b) {
  Seconds sum;
  for (const BreakdownPart& part : kBreakdownParts) sum += b.*part.member;
  return sum;
}

}  // namespace fsdp
