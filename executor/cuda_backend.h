// The `cuda` backend: ranks compute on NVIDIA GPUs.
//
//   auto backend = make_cuda_backend({1, 8});                          // 8 ranks, threads of this process, a GPU each;
//                                                                      NCCL between them
//   auto backend = make_cuda_backend({1, 8}, {.virtual_ranks = true}); // 8 ranks, threads of this process, all on one
//     GPU
//   auto backend = make_cuda_backend({1, 8}, {.processes = true});     // the rank of this process, one of 8 that
//                                                                      `mpirun -n 8` started; NCCL between them
//   auto backend = make_cuda_backend({1, 512}, {.emulate = EmulatedWorld{plan, cluster, costs}});  // rank 0 of 512
//
// A stream of the Program is a stream of the GPU, communication before compute; waits are events; the arena is one
// allocation. Times of OperationRecords are the GPU's (events); heap is metered in host code alone, which threads of
// the host run in stream order. Virtual ranks reduce in the order of the ranks, to the same bits as the host backend.
// NCCL adds in an order of its own, multiplies each part by 1/W for an average, and takes the factor of a scaled sum in
// the type of the elements (1/3 in bf16 is off by 0.2 %).
//
// Ranks that are processes take the GPUs of their machine in turn, of those that the launcher shows them; they find
// each other, and fail together, as those of the mpi backend do (executor/mpi_backend.h); every process makes the
// backend and calls run().
//
// Where the build found no CUDA toolkit, make_cuda_backend throws an InputError that says how to get it; where there is
// no GPU or driver, a MachineError. cuBLASLt, cuDNN and NCCL are looked for when the backend is made: in the toolkit,
// in the loader's folders, then in installed Python packages; environment() names what was found and its versions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/backend.h"
#include "models/cluster.h"
#include "planner/costs.h"
#include "planner/plan.h"

namespace fsdp {

// One rank of many on one GPU. It computes and holds memory as rank 0 of the plan does. Each collective is modelled: a
// kernel holds as many multiprocessors, for as long, and with as much memory traffic, as the costs say. Proves overlap
// and memory, never communication time. This rank's own part stands for what other ranks would send, so losses mean
// nothing. The backend's name is "cuda-emulated".
struct EmulatedWorld {
  ShardingPlan plan;
  ClusterSpec cluster;
  Costs costs;
};

struct CudaOptions {
  BackendOptions run = {};        // the watchdog
  bool virtual_ranks = false;     // all ranks on one GPU: real numerics and memory, no real communication
  bool processes = false;         // ranks are the processes of this launch
  std::vector<int> devices = {};  // the driver's numbers of the GPUs to use, rank by rank; empty: all that there are
  std::optional<EmulatedWorld> emulate = {};  // instead of all ranks
  // Most CTAs, each of which takes a multiprocessor, that NCCL may give to one collective (ncclConfig_t::maxCTAs).
  // Matmuls then count on the other multiprocessors (cuBLASLt's SM-count target). Empty: NCCL chooses, and matmuls
  // count on all. No effect where NCCL is not used: one rank, virtual ranks, an emulated world.
  std::optional<int> nccl_ctas = {};
  Memory arena =
      Memory::device;  // where Memory::device lies. host: pinned, so that host code may touch buffers (tests)
};

// A backend that knows which GPUs it runs on.
class GpuBackend : public Backend {
 public:
  // The GPUs that its ranks compute on, as the driver describes them; of an emulated world the emulated cluster.
  [[nodiscard]] virtual ClusterSpec cluster() const = 0;
};

// Throws InputError for a mesh that these GPUs cannot hold (more ranks than GPUs without virtual_ranks, a GPU named
// twice or unknown), for one of another size than the launch, for two processes on one GPU, for processes where no MPI
// is built in.
[[nodiscard]] std::unique_ptr<GpuBackend> make_cuda_backend(MeshShape, const CudaOptions& = {});

// Empty where the backend can be made; else why not, with the remedy: not built, no driver, no GPU. Touches the driver,
// changes nothing.
[[nodiscard]] std::string why_no_cuda();

}  // namespace fsdp
