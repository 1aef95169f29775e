// Text exchange between ranks that are processes (Device::exchange): first the lengths, then the texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/mpi/wire.h"

namespace fsdp::mpi {

// Buffers of one exchange. They must stay after a failure (exchange_texts throws), because messages of other ranks may
// still be written there.
struct Texts {
  std::string mine;
  std::vector<std::int64_t> lengths;
  std::vector<std::string> all;
};
// Uses the tags `tag` and `tag` + 1.
[[nodiscard]] std::vector<std::string> exchange_texts(const Channel&, const host::RunControl&, std::int64_t rank,
                                                      std::int64_t ranks, int tag, const std::string& mine, Texts&);

}  // namespace fsdp::mpi
