#include "cli/named_cluster.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/files.h"
#include "models/catalog.h"
#include "models/input/error.h"

namespace fsdp::cli {

ClusterSpec named_cluster(const std::string& name, std::int64_t gpus, const char* where) {
  const std::vector<std::string> of_gpus = gpu_names();
  if (std::find(of_gpus.begin(), of_gpus.end(), name) != of_gpus.end())
    throw InputError(where, "'" + name + "' is a GPU, not a cluster",
                     "write a node of 8 with `fsdp-plan show cluster " + name +
                         " --file > mine.json`, correct what it assumes, and give mine.json");
  ClusterSpec cluster = load_cluster(name, gpus);
  for (const std::string& line : cluster.assumed) print(stderr, fmt::format("note: {} assumes {}\n", name, line));
  return cluster;
}

}  // namespace fsdp::cli
