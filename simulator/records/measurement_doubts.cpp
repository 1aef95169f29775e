// Reasons to doubt a measured step time, in words.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/input/counted.h"
#include "simulator/records/measurement.h"

namespace fsdp {

namespace {

// Up to half a percent of a core is the machine's own housekeeping. A run that uses all cores notices more than a tenth
// of a core.
constexpr double kFelt = 0.1, kStolen = 0.02, kUnsure = 0.05;

void add_machine(std::vector<std::string>& words, const MachineState& m, std::int64_t ranks) {
  const auto cores = static_cast<double>(std::max<std::int64_t>(1, m.usable_cores));
  if (m.other_cores && *m.other_cores > kFelt)
    words.push_back(fmt::format("the machine was busy: other processes kept {:.1f} of its {} at work meanwhile",
                                *m.other_cores, counted(m.cores, "core")));
  else if (!m.other_cores && m.load_at_start > 0.5 * cores)
    words.push_back(fmt::format("the machine was busy: a load of {:.1f} before the run began, on {}", m.load_at_start,
                                counted(m.usable_cores, "core")));
  if (m.stolen_cores && *m.stolen_cores > kStolen)
    words.push_back(fmt::format("the machine below this virtual one took {:.2f} cores away", *m.stolen_cores));
  if (ranks > m.usable_cores && m.usable_cores > 0)
    words.push_back(
        fmt::format("{} shared {}: they took turns", counted(ranks, "rank"), counted(m.usable_cores, "core")));
}

void add_steps(std::vector<std::string>& words, const Measurement& m) {
  const StepNoise& n = *m.steps;
  if (!n.settled)
    words.push_back(
        "steps had not settled: the first measured ones differ from the others; give --warmup more of them");
  if (!n.median_interval) {
    words.push_back(
        m.step_seconds.size() < kFewestForInterval
            ? fmt::format("{} {} too few to say how sure their median is; {} or more are needed",
                          counted(m.step_seconds.size(), "step"), m.step_seconds.size() == 1 ? "is" : "are",
                          kFewestForInterval)
            : fmt::format("{} steps tell as much as {:.0f} independent ones: too few to say how sure their median is",
                          m.step_seconds.size(), n.independent_steps));
  } else if (const double half = 0.5 * (n.median_interval->high - n.median_interval->low) / m.median_step_seconds;
             half > kUnsure) {
    words.push_back(fmt::format("the median is known to {:.0f} % only (95 % confidence)", 100 * half));
  }
}

}  // namespace

std::vector<std::string> doubts(const MachineState& m, std::int64_t ranks) {
  std::vector<std::string> words;
  add_machine(words, m, ranks);
  return words;
}

std::vector<std::string> doubts(const Measurement& m) {
  std::vector<std::string> words;
  if (m.machine) add_machine(words, *m.machine, static_cast<std::int64_t>(m.ranks.size()));
  if (m.steps && m.median_step_seconds > 0) add_steps(words, m);
  return words;
}

}  // namespace fsdp
