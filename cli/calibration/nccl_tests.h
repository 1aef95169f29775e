// What `calibrate --nccl-tests` does: logs to curves, curves into the costs of the GPUs that they were measured on.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace fsdp::cli {

struct NcclTestsFlags {
  std::vector<std::string> logs;
  Text ranks, ranks_per_node, cluster, costs;
};

struct NcclTestsResult {
  Costs costs;
  std::string table;               // what was read, for people
  std::vector<std::string> notes;  // what was left out
};

// Throws InputError: files that cannot be read or are no logs; logs of different GPUs; a GPU that the catalog does not
// know.
[[nodiscard]] NcclTestsResult costs_from_nccl_tests(const NcclTestsFlags&);

}  // namespace fsdp::cli
