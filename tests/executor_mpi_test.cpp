// The mpi backend: the conformance suite over processes, and runs that equal those over threads bit by bit. CTest starts it with
// mpirun (tests/mpi.cmake).
#include "executor/mpi_backend.h"
#include "executor_conformance.h"

namespace fsdp::conformance {

const Subject& subject() {
  static const Subject mpi{"mpi", join_launch().ranks(), make_mpi_backend};
  return mpi;
}

}  // namespace fsdp::conformance
