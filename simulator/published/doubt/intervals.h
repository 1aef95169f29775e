// The intervals of simulator/doubt/doubt.h, made from published runs and held against them.
//
//   const std::vector<DoubtRow> rows = doubt_rows(report);       // of a report with every_peak
//   fit_doubt(rows) == doubt_table();                            // a test
//   const DoubtQuality q = doubt_quality(rows);                  // each source predicted by all others
//
// Rows of a source, GPU, model and side of 128 GPUs are a group; each group weighs the same, so that a source with
// hundreds of similar rows does not decide. Quantiles are the groups' tails of kTail and 1 - kTail. Networks differ by
// more than anything else: where they decide, tails are further out. So are those of peaks, a little: there are
// three sources, and each is predicted by the others. Those of a cause with few groups are drawn towards those of all
// rows, as if kPrior groups more deviated like these. Tails of networks and of peaks, and what they are drawn by, were
// chosen so that sources that are left out lie inside as often as 80 % says (docs/accuracy.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "simulator/doubt/doubt.h"
#include "simulator/published/accuracy.h"

namespace fsdp {

inline constexpr double kTail = 0.1, kPrior = 10;                // of step times
inline constexpr double kNetworkTail = 0.01, kNetworkPrior = 8;  // where networks decide, which differ most
inline constexpr double kPeakTail = 0.06, kPeakPrior = 2;        // of peaks, of which there are few

struct DoubtRow {
  std::string source, group = {};
  std::string implementation = {};
  bool experts = false;
  std::int64_t ranks = 1;
  double exposed_share = 0;
  double device_share = 0,
         needed_share = 0;  // of the device: what is reserved, and what of it is allocated; 0: unknown
  std::optional<double> step_time = {}, peak = {};  // ln(measured / predicted)
  bool failed = false;                              // for memory
  [[nodiscard]] DoubtFacts facts() const { return {{implementation, experts}, ranks, exposed_share, device_share}; }
};
[[nodiscard]] std::vector<DoubtRow> doubt_rows(const AccuracyReport&);

// To three decimals, as the constants are written.
[[nodiscard]] DoubtTable fit_doubt(std::span<const DoubtRow>);

// Over groups: how many measured values lie in their intervals, how wide those are (mean and median of half of the
// width, in x), and the interval score: the width, and 10 times (2 / 0.2) the distance of what lies outside. Smaller is
// better.
struct IntervalQuality {
  std::string name;
  std::int64_t rows = 0;
  double coverage = 0, half_width = 0, median_half_width = 0, score = 0;
  double baseline_coverage = 0, baseline_score = 0;  // one width for all, with the tail at which as much is covered
};
struct DoubtQuality {
  std::vector<IntervalQuality> step_time, peak;  // "all", "more than 128 GPUs", "near the limit", "the others"
  // Of running out of memory, over runs that completed and runs that failed: mean of (probability - outcome)^2, and
  // that of the bare verdict.
  std::int64_t completed = 0, failed = 0;
  double brier = 0, verdict_brier = 0;
};
[[nodiscard]] DoubtQuality doubt_quality(std::span<const DoubtRow>);

}  // namespace fsdp
