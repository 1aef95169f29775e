// Control plane between the ranks of a run: failure propagation, shutdown and small text messages. Tensors go through
// Group instead. Ranks are threads of this process (below) or processes of a launch (executor/mpi/process_control.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/ranks/control.h"
#include "executor/ranks/rank_status.h"
#include "executor/ranks/watch.h"

namespace fsdp::host {

// Of one call of Backend::run. Threads that are left behind may use it for ever.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  [[nodiscard]] virtual const std::shared_ptr<RunControl>& control() const = 0;
  // A fresh status for one rank of this process.
  [[nodiscard]] virtual std::shared_ptr<RankStatus> fresh_status() = 0;
  // As Device::exchange.
  [[nodiscard]] virtual std::vector<std::string> exchange(std::int64_t rank, const std::string& mine) = 0;
  // Blocks until the run is over. True: every thread of the run in this process has ended, and, unless the run failed,
  // those of every other process. False: the run failed and a thread here did not end within the grace period. `doing`:
  // what a rank of this process does now, by its place among them.
  [[nodiscard]] virtual bool watch(const std::function<Doing(std::size_t place)>& doing) = 0;
  // Called once, after watch(). Throws the failure of the run (RankFailure), if there was one. `used`: memory that
  // messages under way may still write after a failure; it is then kept for ever.
  virtual void end(std::shared_ptr<const void> used) = 0;
};

[[nodiscard]] std::shared_ptr<ControlPlane> make_thread_control_plane(std::vector<std::int64_t> ranks,
                                                                      const WatchTimes&);

}  // namespace fsdp::host
