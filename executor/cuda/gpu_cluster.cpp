#include "executor/cuda/gpu_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/input/error.h"

namespace fsdp::cuda {

ClusterSpec cluster_of_gpus(const std::vector<GpuFacts>& seen, std::int64_t gpus, std::int64_t gpus_per_node) {
  std::vector<std::string> names;
  for (const GpuFacts& g : seen)
    if (std::find(names.begin(), names.end(), g.name) == names.end()) names.push_back(g.name);
  const GpuFacts& first = seen.front();
  ClusterSpec c;
  c.name = fmt::format("{}", fmt::join(names, " and "));
  c.gpus = gpus;
  c.gpus_per_node = gpus_per_node;
  c.gpu.name = first.name;
  c.gpu.memory = c.gpu.usable_memory = first.memory;
  c.gpu.l2 = first.l2;
  c.gpu.sms = first.multiprocessors;
  c.gpu.compute_capability = first.compute_capability;
  return c;
}

namespace {

// Memory of one kind of GPU differs by what the driver keeps (1 to 2 %) and by ECC (a sixteenth of GDDR memory, where
// it is on). GPUs of the catalog with as many multiprocessors and another memory differ by a sixth or more. This lies
// between.
constexpr double kSameMemory = 0.1;

}  // namespace

void check_names_these_gpus(const ClusterSpec& named, const ClusterSpec& found) {
  const char* remedy =
      "name the cluster that these GPUs are part of, or leave it out: the measurement then says which "
      "GPUs it found";
  const auto differs = [](double a, double b) { return std::abs(a - b) > kSameMemory * std::max(a, b); };
  if (named.host)
    throw InputError(setting("cluster"), "'host' has no GPUs", "name a cluster of GPUs, such as dgx-h100");
  if (named.gpu.sms != found.gpu.sms)
    throw InputError(setting("cluster"),
                     fmt::format("a GPU of {} has {} multiprocessors, but {} has {}", named.name, named.gpu.sms,
                                 found.name, found.gpu.sms),
                     remedy);
  if (differs(static_cast<double>(named.gpu.usable_memory.count()), static_cast<double>(found.gpu.memory.count())))
    throw InputError(setting("cluster"),
                     fmt::format("a GPU of {} has {} of memory, but {} has {}", named.name,
                                 human(named.gpu.usable_memory), found.name, human(found.gpu.memory)),
                     remedy);
}

}  // namespace fsdp::cuda
