// The `mpi` backend: ranks are processes that a launcher (mpirun, mpiexec, srun) started together, on one machine or
// several.
//
//   mpirun -n 4 fsdp-plan run --backend mpi --plan plan.json --model tiny-llama
//
// Each process runs one rank with the host backend's streams, arena and instruments; collectives go through MPI, and
// add in the order of the ranks, so that results equal the host backend's bit by bit. Where the build found no MPI,
// every function here throws an InputError that says how to get it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "executor/backend.h"

namespace fsdp {

// The processes of this launch, whose ranks run on this backend or on `cuda` (CudaOptions::processes). There is one per
// process, as there is one MPI: it starts with the first call of join_launch and ends with the process. When one
// process fails, dies or is stopped, the whole job stops, and one process reports why (`is_reporter`).
class Launch {
 public:
  virtual ~Launch() = default;
  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t ranks() const = 0;
  [[nodiscard]] virtual std::int64_t ranks_here() const = 0;   // on this machine
  [[nodiscard]] virtual std::int64_t place_here() const = 0;   // of this process among those, from 0
  [[nodiscard]] virtual const std::string& hosts() const = 0;  // "node1 (ranks 0 1 2 3), node2 (rank 4)"
  // True in exactly one process of the launch (the first caller): that one prints an error that several processes see.
  [[nodiscard]] virtual bool is_reporter() = 0;
  // Every process is about to end with this status by itself: none of them has failed.
  virtual void all_end_with(int status) = 0;
  // The same with the status of rank 0, which is returned: for what it alone has seen. Blocks until all have called it.
  [[nodiscard]] virtual int all_end_as_first(int status) = 0;
  // Ends this process and all others at once, without exit handlers: for a failed run, whose threads may still run.
  [[noreturn]] virtual void end(int status) = 0;
};
// Blocks until all processes have called it. MachineError if the MPI library does not let several threads use it.
[[nodiscard]] Launch& join_launch();

// `mesh` must have as many ranks as the launch has processes: InputError.
[[nodiscard]] std::unique_ptr<Backend> make_mpi_backend(MeshShape mesh, const BackendOptions& = {});

}  // namespace fsdp
