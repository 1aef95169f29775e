// Texts between all ranks (Device::exchange): first how long they are, then themselves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/mpi/wire.h"

namespace fsdp::mpi {

// Where texts lie on their way. After a failure (exchange_texts throws) it must stay: what others have sent may still
// be written there.
struct Texts {
  std::string mine;
  std::vector<std::int64_t> lengths;
  std::vector<std::string> all;
};
// Uses the tags `tag` and `tag` + 1.
[[nodiscard]] std::vector<std::string> exchange_texts(const Channel&, const host::RunControl&, std::int64_t rank,
                                                      std::int64_t ranks, int tag, const std::string& mine, Texts&);

}  // namespace fsdp::mpi
