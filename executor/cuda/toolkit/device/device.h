// One rank on a GPU: a stream of the GPU per Stream, an event before and after every operation, the arena in one
// allocation.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/cuda/toolkit/device/group.h"
#include "executor/cuda/toolkit/device/host_tasks.h"
#include "executor/cuda/toolkit/device/libraries.h"
#include "executor/cuda/toolkit/kernels/stream_kernels.h"
#include "executor/ranks/collective_device.h"
#include "executor/ranks/instruments/arena.h"
#include "executor/ranks/rank_status.h"

namespace fsdp::cuda {

using Clock = std::chrono::steady_clock;
// Distance of the streams' flags, in 4-byte numbers: each has cache lines of its own.
inline constexpr std::size_t kFlagsApart = 64;

// Connection to the other ranks of one communicator.
struct GpuLink {
  Comm comm;
  std::unique_ptr<GpuGroup> group;
};

struct DeviceSetup {
  std::int64_t rank = 0;
  int gpu = 0;                    // the driver's number
  Memory arena = Memory::device;  // where Memory::device lies
  std::shared_ptr<host::RunControl> control;
  Clock::time_point epoch;
  std::shared_ptr<const Libraries> libraries;
  std::function<std::vector<std::string>(const std::string& mine)> exchange;
  // Of this rank. Ranks that are processes keep it where others can read it.
  std::shared_ptr<host::RankStatus> status = std::make_shared<host::RankStatus>();
  int nccl_ctas = 0;  // CudaOptions::nccl_ctas where NCCL is used; 0: none
  // Returns the groups that the rank belongs to, and sets `world` where NCCL is used. Called by the rank's own thread
  // with its GPU current.
  std::function<std::vector<GpuLink>(std::unique_ptr<NcclWorld>& world)> connect;
};

class CudaDevice final : public host::CollectiveDevice {
 public:
  explicit CudaDevice(DeviceSetup);
  ~CudaDevice() override;  // by any thread, once all ranks have ended
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] std::int64_t rank() const override { return s_.rank; }
  void reserve_arena(std::int64_t bytes, Memory) override;
  BufferView allocate(Stream pool, std::int64_t offset, std::int64_t bytes, Memory) override;
  void release(Stream pool, BufferView) override;
  [[nodiscard]] std::int64_t allocated_bytes() const override { return arena_.allocated_bytes(); }
  void begin_step() override;
  void launch(std::int32_t op, Stream, std::span<const std::int32_t> waits, KernelBody) override;
  void launch_kernel(std::int32_t op, Stream, std::span<const std::int32_t> waits, KernelCall) override;
  void wait_host(std::int32_t op) override;
  [[nodiscard]] bool finished(std::int32_t op) override;
  void synchronize() override;
  [[nodiscard]] std::vector<OperationRecord> records() const override;
  [[nodiscard]] std::span<const std::byte> bytes_of(BufferView, std::vector<std::byte>& copy) const override;
  void write(BufferView to, std::span<const std::byte> from) override;
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine) override;

  // For the backend.
  void run_body(const std::function<void(Device&)>& body);
  void join();   // once the threads of its host tasks have ended or are about to
  void leave();  // leaves threads behind that cannot be ended; then this object must not be destroyed
  // False: its GPU still worked after a failure; then this object must not be destroyed.
  [[nodiscard]] bool idle() const { return idle_; }
  [[nodiscard]] host::Doing doing() const;  // from any thread

 private:
  struct Issued {
    std::int32_t op = -1;
    Stream stream{};
    bool collective = false, host = false;
    std::int64_t sent_bytes = 0;
  };
  struct Events {
    cudaEvent_t start = nullptr, end = nullptr;
  };
  struct OnStream {
    cudaStream_t raw = nullptr;
    std::unique_ptr<HostTasks> tasks;  // made at the first
    std::vector<std::size_t> issued;   // of this step, indices into issued_
    std::size_t finished = 0;          // of those, as far as was looked
  };

  void open();
  void close();             // after a good end: streams are idle
  void give_up() noexcept;  // after a failure: what can be ended ends
  [[nodiscard]] OnStream& on(Stream s) { return streams_[static_cast<std::size_t>(s)]; }
  // An operation's place: its waits are put on its stream, its start is recorded.
  std::size_t begin_operation(std::int32_t op, Stream, std::span<const std::int32_t> waits, std::int32_t previous = -1);
  void end_operation(std::size_t index);
  [[nodiscard]] std::size_t index_of(std::int32_t op) const;
  [[nodiscard]] bool has_finished(std::int32_t op) const;  // as far as poll() has looked
  [[nodiscard]] std::size_t links() const override { return links_.size(); }
  [[nodiscard]] Comm comm(std::size_t link) const override { return links_[link].comm; }
  [[nodiscard]] host::GroupPlace place(std::size_t link) const override;
  void issue_collective(std::size_t link, std::span<const std::int32_t> waits, host::CollectiveCall) override;
  void poll();  // what has finished; throws for what failed
  template <class Done>
  void wait(Done done);
  [[nodiscard]] double now() const { return std::chrono::duration<double>(Clock::now() - s_.epoch).count(); }

  const DeviceSetup s_;
  host::RankStatus& status_;  // s_'s
  host::Arena arena_, host_arena_;
  std::byte *memory_ = nullptr, *host_memory_ = nullptr;
  std::uint32_t* flags_ = nullptr;  // pinned, one for each stream's host tasks
  KernelContext context_;
  std::unique_ptr<NcclWorld> world_;
  std::vector<GpuLink> links_;
  std::vector<std::int32_t> last_collective_;  // of this step, by link; -1: none yet
  std::array<OnStream, kStreams> streams_;
  cudaStream_t reads_ = nullptr;     // of bytes_of
  std::vector<Events> events_;       // by position in issued_, made when first needed
  std::vector<Issued> issued_;       // of this step
  std::vector<std::int32_t> place_;  // by operation: index into issued_, -1: not issued
  cudaEvent_t step_begin_ = nullptr;
  double step_begin_seconds_ = 0;
  mutable std::vector<OperationRecord> records_;
  bool usable_ = false, idle_ = true;  // the GPU's objects exist; its streams were seen idle after the last failure
  std::atomic<GpuGroup*> meeting_{nullptr};  // the group whose other ranks this host waits for
};

}  // namespace fsdp::cuda
