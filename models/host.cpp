#include "models/host.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMaxRanks = 1024;

// Physical memory, or what the control group of this process may use where that is less. The total, not what is free
// now, so that a cluster and its digest do not change from call to call.
Bytes machine_memory() {
  std::int64_t total = std::int64_t{1} << 30;
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  std::int64_t kib = 0;
  while (meminfo >> key >> kib) {
    std::getline(meminfo, unit);
    if (key == "MemTotal:" && kib > 0) {
      total = kib * 1024;
      break;
    }
  }
  std::ifstream group("/sys/fs/cgroup/memory.max");
  std::int64_t limit = 0;
  if (group >> limit && limit > 0) total = std::min(total, limit);
  return Bytes(total);
}

}  // namespace

std::int64_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max<std::int64_t>(1, std::thread::hardware_concurrency());
}

ClusterSpec host_cluster(std::int64_t gpus) {
  if (gpus < 0 || gpus > kMaxRanks)
    throw InputError(setting("gpus"), fmt::format("{} CPU ranks are out of range", gpus),
                     fmt::format("use 1 to {}", kMaxRanks));
  ClusterSpec c;
  c.name = "host";
  c.host = true;
  c.gpus = c.gpus_per_node = gpus > 0 ? gpus : usable_cores();
  c.gpu.name = "host-cpu";
  c.gpu.memory = c.gpu.usable_memory = machine_memory() / c.gpus;
  c.gpu.sms = 1;  // one core per rank
  return c;
}

}  // namespace fsdp
