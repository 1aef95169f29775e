#include <algorithm>
#include <vector>

#include "models/units.h"
#include "viz/trace.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMostDrawn = 65'536;  // operations of a step; a trace of so many has some 40 MB

std::vector<std::int64_t> operations_by_micro_batch(const Step& step) {
  std::vector<std::int64_t> counts;
  for (const Operation& op : step.ops) {
    const auto m = static_cast<std::size_t>(std::max<std::int16_t>(op.micro_batch, 0));
    if (m >= counts.size()) counts.resize(m + 1, 0);
    ++counts[m];
  }
  return counts;
}

}  // namespace

std::optional<TraceCut> trace_cut(const Step& steady) {
  if (static_cast<std::int64_t>(steady.ops.size()) <= kMostDrawn) return std::nullopt;
  const std::vector<std::int64_t> counts = operations_by_micro_batch(steady);
  TraceCut cut;
  cut.all = static_cast<std::int64_t>(counts.size());
  std::int64_t drawn = 0;
  for (std::size_t m = 0; m < counts.size() / 2; ++m) {
    drawn += counts[m] + counts[counts.size() - 1 - m];
    if (m > 0 && drawn > kMostDrawn) break;
    ++cut.first, ++cut.last;
  }
  if (cut.first == 0 || cut.first + cut.last >= cut.all) return std::nullopt;
  return cut;
}

std::string describe(const TraceCut& cut) {
  const auto range = [](std::int64_t from, std::int64_t to) {
    return from == to ? with_commas(from) : with_commas(from) + " to " + with_commas(to);
  };
  return "micro-batches " + range(1, cut.first) + " and " + range(cut.all - cut.last + 1, cut.all) + " of " +
         with_commas(cut.all);
}

}  // namespace fsdp
