// One rank's side of a communicator group on a GPU: puts collectives on streams.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor/cuda/call_checker.h"
#include "executor/cuda/emulation.h"
#include "executor/ranks/group.h"

namespace fsdp::cuda {

class GpuGroup {
 public:
  virtual ~GpuGroup() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::int64_t member() const = 0;  // of this rank
  // Puts this rank's part on the stream. The rank's GPU is the current one; one collective at a time per group.
  virtual void enqueue(const host::CollectiveCall&, cudaStream_t) = 0;
  virtual void register_memory(std::byte*, std::int64_t) {}  // memory that collectives will use
  virtual void poll() {}                                     // throws MachineError for an asynchronous failure
  virtual void close() {}                                    // after the last collective, on all ranks
  virtual void abort() noexcept {}                           // ends running collectives; the last call
  // Ranks that this rank's host waits for. From any thread.
  [[nodiscard]] virtual std::vector<std::int64_t> absent() const { return {}; }
};

// --- Ranks that share a GPU (or a group of one). Their hosts meet when they issue a collective, so that each stream
// can wait for events on the others' streams. Then each copies and reduces its own share from the others' buffers.

// State that the members of a group share.
class VirtualRanks {
 public:
  explicit VirtualRanks(std::vector<std::int64_t> ranks);
  ~VirtualRanks();
  VirtualRanks(const VirtualRanks&) = delete;
  VirtualRanks& operator=(const VirtualRanks&) = delete;
  enum Moment : std::uint8_t { ready, reduced, done, kMoments };
  [[nodiscard]] cudaEvent_t& event(std::int64_t member, Moment m) {
    return events_[static_cast<std::size_t>(member * kMoments + m)];
  }
  [[nodiscard]] host::ThreadGroup& meeting() { return meeting_; }

 private:
  host::ThreadGroup meeting_;
  std::vector<cudaEvent_t> events_;  // made by their member
};
[[nodiscard]] std::unique_ptr<GpuGroup> make_virtual_group(std::shared_ptr<VirtualRanks>, std::int64_t rank,
                                                           Memory arena, std::shared_ptr<host::RunControl>);

// --- A GPU for each rank, NCCL between them.
struct Nccl;
// The communicators of one rank.
class NcclWorld {
 public:
  virtual ~NcclWorld() = default;
  // Of the ranks of one membership, over ncclCommSplit; all ranks of the run call it in the same order. They share the
  // CallChecker. Null: ranks are processes.
  [[nodiscard]] virtual std::unique_ptr<GpuGroup> split(const host::Membership&, std::shared_ptr<CallChecker>) = 0;
  virtual void close() = 0;
  virtual void abort() noexcept = 0;
};
using NcclIdBytes = std::vector<std::byte>;
[[nodiscard]] NcclIdBytes make_nccl_id(const Nccl&);
// Blocks until all ranks have joined, or the run has failed (RankFailure). `ctas`: most CTAs of one collective; 0: NCCL
// chooses.
[[nodiscard]] std::unique_ptr<NcclWorld> join_nccl_world(std::shared_ptr<const Nccl>, const NcclIdBytes&,
                                                         std::int64_t rank, std::int64_t ranks, int ctas,
                                                         std::shared_ptr<host::RunControl>);

// --- One rank of many (EmulatedWorld). Other ranks' data is this rank's own.
using CollectiveModel = std::function<ModelledCollective(const host::CollectiveCall&, Comm, std::int64_t members)>;
[[nodiscard]] std::unique_ptr<GpuGroup> make_emulated_group(const host::Membership&, std::int64_t rank,
                                                            CollectiveModel);

}  // namespace fsdp::cuda
