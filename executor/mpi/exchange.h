// Texts between all ranks (Device::exchange): first how long they are, then themselves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/mpi/wire.h"

namespace fsdp::mpi {

// Uses the tags `tag` and `tag` + 1.
[[nodiscard]] std::vector<std::string> exchange_texts(const Channel&, const host::RunControl&, std::int64_t rank, std::int64_t ranks, int tag,
                                                      const std::string& mine);

}  // namespace fsdp::mpi
