// What watches the threads of a run of one process: its end, a rank that fails, a standstill, a signal. For backends
// whose ranks are threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "executor/ranks/control.h"
#include "executor/ranks/rank_status.h"

namespace fsdp::host {

struct WatchTimes {
  double watchdog_seconds = 60;    // without progress, of a rank that does something
  double standstill_seconds = 60;  // without progress, of ranks that all wait: at most the watchdog's
  std::chrono::seconds grace{4};   // for threads to end after a failure
};

// Blocks. True: every thread has ended. False: the run failed and some thread did not end within the grace. Fails the
// run (RunControl::fail) for a standstill, naming the rank that is most likely its cause, and for a signal that was
// noted (executor/ranks/signals.h). `ranks` of this process, and what each of them does now, by its place among
// them.
[[nodiscard]] bool watch(RunControl&, const std::vector<std::int64_t>& ranks,
                         const std::function<Doing(std::size_t place)>& doing, const WatchTimes&);

}  // namespace fsdp::host
