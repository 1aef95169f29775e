// Which rank computes on which GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::cuda {

// The driver's number of the GPU of each rank. `present`: how many the driver shows; `wanted`: which to use (empty:
// all). With `together` all ranks share the first of them. Throws InputError: a mesh without ranks, a GPU that is not
// there or named twice, fewer GPUs than ranks.
[[nodiscard]] std::vector<int> place_ranks(std::int64_t ranks, int present, const std::vector<int>& wanted,
                                           bool together);

// The GPU of a rank that is a process. Processes of one machine (`place` from 0) take the GPUs that they see in turn.
// This works where the launcher shows all GPUs to every process, and where it gives each process its own
// (CUDA_VISIBLE_DEVICES).
[[nodiscard]] int place_process(std::int64_t place, int present, const std::vector<int>& wanted);

// Where a rank computes.
struct DeviceAssignment {
  std::string host, gpu;  // gpu: the driver's UUID
  int number = 0;         // of the GPU in its process
  friend bool operator==(const DeviceAssignment&, const DeviceAssignment&) = default;
};
[[nodiscard]] std::string format_assignment(const DeviceAssignment&);
[[nodiscard]] DeviceAssignment parse_assignment(const std::string&);  // MachineError
// InputError where two ranks are on one GPU, which NCCL refuses.
void check_assignments(const std::vector<DeviceAssignment>& by_rank);

}  // namespace fsdp::cuda
