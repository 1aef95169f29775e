#include "executor/ranks/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "executor/ranks/signals.h"

namespace fsdp::host {
namespace {

using Clock = std::chrono::steady_clock;

// Nothing has moved for so long. Ranks that all wait will wait for ever; a kernel or a host that is at work gets the
// watchdog's time.
void blame_somebody(RunControl& control, const std::vector<std::int64_t>& ranks,
                    const std::function<Doing(std::size_t)>& doing_of, double seconds, double watchdog_seconds) {
  std::vector<Doing> doing;
  for (std::size_t i = 0; i < ranks.size(); ++i) doing.push_back(doing_of(i));
  const auto worst =
      std::max_element(doing.begin(), doing.end(), [](const auto& a, const auto& b) { return a.blame < b.blame; });
  if (worst->blame >= kRuns && seconds <= watchdog_seconds) return;
  const std::int64_t rank = ranks[static_cast<std::size_t>(worst - doing.begin())];
  std::string what = fmt::format("no rank has made progress for {:.2g} s: rank {} {}", seconds, rank, worst->what);
  for (const std::int64_t other : worst->waits_for)
    if (const auto at = std::find(ranks.begin(), ranks.end(), other); at != ranks.end())
      what += fmt::format("; rank {} {}", other, doing[static_cast<std::size_t>(at - ranks.begin())].what);
  control.fail(rank, worst->op, what);
}

}  // namespace

bool watch(RunControl& control, const std::vector<std::int64_t>& ranks, const std::function<Doing(std::size_t)>& doing,
           const WatchTimes& times) {
  constexpr auto poll = std::chrono::milliseconds(20);
  std::uint64_t seen = control.progress();
  auto moved = Clock::now();
  std::optional<Clock::time_point> failed;
  while (!control.wait_for_end(poll)) {
    if (control.failed()) {
      if (!failed) failed = Clock::now();
      if (Clock::now() - *failed > times.grace) return false;
    } else if (const std::uint64_t progress = control.progress(); progress != seen) {
      seen = progress;
      moved = Clock::now();
    } else if (const double still = std::chrono::duration<double>(Clock::now() - moved).count();
               still > times.standstill_seconds) {
      blame_somebody(control, ranks, doing, still, times.watchdog_seconds);
    }
    if (const int signal = noted_signal(); signal != 0 && !control.failed()) {
      const Doing now = doing(0);
      control.fail(ranks.front(), now.op,
                   fmt::format("interrupted by {}; rank {} {}", signal_name(signal), ranks.front(), now.what));
    }
  }
  return true;
}

}  // namespace fsdp::host
