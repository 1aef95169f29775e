#include "executor/training/room_for.h"

#include <fmt/format.h>

#include <algorithm>

#include "executor/training/machine.h"
#include "models/input/error.h"
#include "models/units.h"
#include "simulator/engine/memory.h"

namespace fsdp {
namespace {

// OpenBLAS maps 128 MiB for each thread that multiplies, and retries for ever where it gets none. A rank has about six
// threads, each with a stack of 8 MiB and a heap of 64 MiB of address space.
constexpr std::int64_t kMappedPerRank = std::int64_t{560} << 20;

void check_address_space(Bytes needed, std::int64_t threads) {
  const std::int64_t mapped =
      checked_mul(checked_add(needed.count(), kMappedPerRank, "address space"), threads, "address space");
  const auto left = address_space_left();
  if (!left || *left >= mapped) return;
  throw MachineError(fmt::format(
      "this process may map {} more (ulimit -v), and {} rank{} of this plan need{} about {}; raise the limit",
      human(Bytes(std::max<std::int64_t>(0, *left))), threads, threads == 1 ? "" : "s", threads == 1 ? "s" : "",
      human(Bytes(mapped))));
}

}  // namespace

void check_room(Programs& programs, const RanksHere& here, const std::string& where) {
  const ClusterSpec& cluster = programs.job().cluster;
  if (!cluster.host) return;
  // Offloaded buffers have an arena of their own, in the same memory.
  const ProgramMemory memory = replay_memory(programs.of(0));
  const Bytes needed(checked_add(memory.peak, memory.host_peak, "memory of a rank"));
  check_address_space(needed, here.process);
  const std::int64_t ranks = programs.job().plan.ranks();
  const Bytes limit(checked_mul(cluster.gpu.usable_memory.count(), ranks, "memory of this machine") / here.machine);
  if (needed <= limit) return;
  throw MachineError(fmt::format(
      "{}: needs {} for each of {} rank{}, but this machine has {} for each; plan a smaller model, fewer ranks "
      "or shorter sequences with `fsdp-plan plan --cluster host`",
      where, human(needed), here.machine, here.machine == 1 ? "" : "s", human(limit)));
}

}  // namespace fsdp
