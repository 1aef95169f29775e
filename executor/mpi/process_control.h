// Ranks that are processes of a launch, for any backend: one rank each. Where the build found no MPI, every function
// throws an InputError that says how to get it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/mpi_backend.h"
#include "executor/ranks/control_plane.h"

namespace fsdp::mpi {

// InputError unless the launch has as many processes as the mesh has ranks. `backend`: its name on the command line.
[[nodiscard]] Launch& join_launch_for(MeshShape, const std::string& backend);

// For one run. A failure in one process fails the run in all of them; one that died or is stopped is named, with what
// it did last: end() throws a ProcessFailure. Of `times` the standstill has no meaning.
[[nodiscard]] std::shared_ptr<host::ControlPlane> make_process_control_plane(const host::WatchTimes& times);

// Between runs: every process gives a text and gets all of them, in the order of the ranks. Blocks; when a process is
// lost, all end.
[[nodiscard]] std::vector<std::string> exchange_between_runs(const std::string& mine);

}  // namespace fsdp::mpi
