// Collectives of one communicator group between processes: each message goes directly from the rank that has the bytes
// to the one that needs them, in chunks, into preallocated memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "executor/mpi/wire.h"
#include "executor/ranks/group.h"

namespace fsdp::mpi {

// `ranks` in order, `rank` (this process) one of them. Two groups of one rank have different tags; a group uses four
// from `tag` on.
[[nodiscard]] std::shared_ptr<host::Group> make_group(const Channel&, std::vector<std::int64_t> ranks,
                                                      std::int64_t rank, int tag);

}  // namespace fsdp::mpi
