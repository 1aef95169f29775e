#include "models/host.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <thread>

#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMaxRanks = 1024;

}  // namespace

std::int64_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max<std::int64_t>(1, std::thread::hardware_concurrency());
}

void keep_freed_memory() {
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes; larger blocks are mapped one by one
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
  // Of the total, not of what is free now, so that a cluster and its digest do not change from call to call.
  c.gpu.memory = c.gpu.usable_memory = host_limits().usable() / c.gpus;
  c.gpu.sms = 1;  // one core per rank
  return c;
}

}  // namespace fsdp
