// In place of the others where the build found no MPI.
#include "executor/mpi/process_control.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

[[noreturn]] void refuse() {
  throw InputError(setting("backend"), "mpi is not built in, and without it ranks are threads of one process",
                   "install an MPI (Debian, Ubuntu: libopenmpi-dev and openmpi-bin) and build again, or use host or "
                   "cuda without a launcher");
}

}  // namespace

Launch& join_launch() { refuse(); }
std::unique_ptr<Backend> make_mpi_backend(MeshShape, const BackendOptions&) { refuse(); }

namespace mpi {

Launch& join_launch_for(MeshShape, const std::string&) { refuse(); }
std::shared_ptr<host::ControlPlane> make_process_control_plane(const host::WatchTimes&) { refuse(); }
std::vector<std::string> exchange_between_runs(const std::string&) { refuse(); }

}  // namespace mpi
}  // namespace fsdp
