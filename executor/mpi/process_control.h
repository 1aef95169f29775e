// Control plane of ranks that are processes of a launch, one rank each, for any backend. Where the build found no MPI,
// every function throws an InputError that says how to get it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/mpi_backend.h"
#include "executor/ranks/control_plane.h"

namespace fsdp::mpi {

// InputError unless the launch has as many processes as the mesh has ranks. `backend`: its name on the command line.
[[nodiscard]] Launch& join_launch_for(MeshShape, const std::string& backend);

// For one run. A failure in one process fails the run in all of them: end() throws a ProcessFailure, which names a
// process that died or is stopped, and what it did last. times.standstill_seconds has no meaning.
[[nodiscard]] std::shared_ptr<host::ControlPlane> make_process_control_plane(const host::WatchTimes& times);

// Between runs: every process gives a text and gets all of them, in the order of the ranks. Blocks. When a process is
// lost, all end.
[[nodiscard]] std::vector<std::string> exchange_between_runs(const std::string& mine);

}  // namespace fsdp::mpi
