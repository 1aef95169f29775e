// In place of the others where the build found no MPI.
#include "executor/mpi_backend.h"
#include "models/error.h"

namespace fsdp {
namespace {

[[noreturn]] void refuse() {
  throw InputError("--backend", "mpi is not built in",
                   "install an MPI (Debian, Ubuntu: libopenmpi-dev and openmpi-bin) and build again, or use host");
}

}  // namespace

Launch& join_launch() { refuse(); }
std::unique_ptr<Backend> make_mpi_backend(MeshShape, const BackendOptions&) { refuse(); }

}  // namespace fsdp
