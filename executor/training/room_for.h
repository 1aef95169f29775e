// Is there room on this machine for the ranks of a job? Running out of memory would end more than this process, and
// what a rank allocates is known beforehand: the executor's peak is that of the replay.
#pragma once

#include <cstdint>
#include <string>

#include "planner/job.h"

namespace fsdp {

struct RanksHere {
  std::int64_t machine = 1;  // ranks on this machine, in any process
  std::int64_t process = 1;  // of those, threads of this process
};

// Throws MachineError, about the plan `where`, if this machine's memory or this process's address space does not hold
// the job's ranks. A job on a cluster of GPUs is not checked: its memory is the GPUs'.
void check_room(Programs&, const RanksHere&, const std::string& where);

}  // namespace fsdp
