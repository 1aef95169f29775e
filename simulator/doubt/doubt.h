// How far predictions of GPUs' times and memory may be off: 80 % intervals by a few named causes, and the probability
// of running out of memory. The constants are quantiles of what published runs deviated (docs/accuracy.md): `fsdp-plan
// accuracy RUNS.csv... --intervals` computes them again, and a test compares.
//
//   const Doubt d = doubt_of(doubt_table(), facts, step_s, peak_bytes, needed_bytes, usable_bytes);
//   d.step_time_s.high, d.causes[0]          // 1.28, "the step waits for communication"
//
// With x = ln(measured / predicted), an interval is predicted * exp of the 10 and 90 % quantiles of x.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "simulator/records/doubt.h"

namespace fsdp {

// The first that holds decides.
enum class DoubtCause : std::uint8_t {
  software,   // no published run of trust A stands for this implementation, or for its experts
  waits,      // more than kWaits of the step waits for communication
  many_gpus,  // more than kManyGpus
  limit,      // the peak is more than kNearLimit of the device
  ordinary,
};
inline constexpr int kDoubtCauses = static_cast<int>(DoubtCause::ordinary) + 1;
inline constexpr double kWaits = 0.03, kNearLimit = 0.85;
inline constexpr std::int64_t kManyGpus = 128;
[[nodiscard]] std::string_view name(DoubtCause);  // in words: "the step waits for communication"

struct Software {
  std::string_view implementation;
  bool experts = false;  // it computes a mixture
};
struct DoubtFacts {
  Software software;
  std::int64_t ranks = 1;
  double exposed_share = 0;  // of the step
  double device_share = 0;   // of the usable memory, that the peak takes
};
[[nodiscard]] bool is_known(Software);
[[nodiscard]] DoubtCause cause_of(const DoubtFacts&);

// Of ln(measured / predicted): the interval's ends and the median.
struct DoubtQuantiles {
  double low = 0, median = 0, high = 0;
  friend bool operator==(const DoubtQuantiles&, const DoubtQuantiles&) = default;
};
struct DoubtTable {
  std::array<DoubtQuantiles, kDoubtCauses> step_time;
  std::array<DoubtQuantiles, 2> peak;  // of known software, of other
  friend bool operator==(const DoubtTable&, const DoubtTable&) = default;
};
[[nodiscard]] const DoubtTable& doubt_table();

// That ln(measured / predicted) of the peak is above x: two halves of normal distributions that meet at the median and
// have the table's ends at 10 and 90 %.
[[nodiscard]] double chance_above(const DoubtQuantiles&, double x);

// That the device is too small: the chance that what is needed, as published runs deviate, is more than it has.
[[nodiscard]] double chance_of_out_of_memory(const DoubtTable&, Software, double needed_bytes, double usable_bytes);

// `needed_bytes`: of the peak what the allocator cannot give back. The device is too small if that is more than it has.
[[nodiscard]] Doubt doubt_of(const DoubtTable&, const DoubtFacts&, double step_s, double peak_bytes,
                             double needed_bytes, double usable_bytes);

}  // namespace fsdp
