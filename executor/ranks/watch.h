// Watches the threads of a run in one process: its end, a failing rank, a standstill, a signal. For backends whose
// ranks are threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "executor/ranks/control.h"
#include "executor/ranks/rank_status.h"

namespace fsdp::host {

struct WatchTimes {
  double watchdog_seconds = 60;    // longest time without progress while a rank is at work
  double standstill_seconds = 60;  // the same while all ranks wait; at most watchdog_seconds
  std::chrono::seconds grace{4};   // for threads to end after a failure
};

// Blocks until the run is over. True: every thread has ended. False: the run failed and a thread did not end within the
// grace period. Fails the run (RunControl::fail) for a standstill, naming its most likely cause, and for a noted signal
// (signals.h). `ranks`: of this process. `doing`: what a rank does now, by its place among them.
[[nodiscard]] bool watch(RunControl&, const std::vector<std::int64_t>& ranks,
                         const std::function<Doing(std::size_t place)>& doing, const WatchTimes&);

}  // namespace fsdp::host
