// What ties the ranks of one run to each other, apart from the tensors that they exchange: how a run fails and ends
// everywhere, and texts. Ranks are threads of this process, or processes of a launch (executor/mpi/process_control.h);
// a backend that can have either works on this.
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

class ControlPlane {  // of one call of Backend::run; threads that are left behind may use it for ever
 public:
  virtual ~ControlPlane() = default;
  [[nodiscard]] virtual const std::shared_ptr<RunControl>& control() const = 0;
  [[nodiscard]] virtual std::shared_ptr<RankStatus> status() = 0;  // a fresh one, for one rank of this process
  [[nodiscard]] virtual std::vector<std::string> exchange(std::int64_t rank,
                                                          const std::string& mine) = 0;  // Device::exchange
  // Blocks. True: every thread of the run in this process has ended, and, unless the run failed, every other process's
  // too. False: the run failed and some thread here did not end within the grace. `doing`: of this process's ranks, by
  // place.
  [[nodiscard]] virtual bool watch(const std::function<Doing(std::size_t place)>& doing) = 0;
  // Once, after watch(): throws the failure of the run (RankFailure), if there was one. `used`: what messages on their
  // way between processes may still write after a failure; then it is kept for ever.
  virtual void end(std::shared_ptr<const void> used) = 0;
};

[[nodiscard]] std::shared_ptr<ControlPlane> make_thread_control_plane(std::vector<std::int64_t> ranks,
                                                                      const WatchTimes&);

}  // namespace fsdp::host
