// Host code in the order of a stream. The stream waits for a number in pinned memory, which a thread of ours writes
// when the code has run.
//
// A callback of the driver alone is not enough: callbacks "may be serialized" (CUDA runtime API, cudaLaunchHostFunc),
// and one that waits for another stream's would wait for ever. Here the callback only wakes the stream's own thread.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "executor/backend.h"
#include "executor/ranks/control.h"
#include "executor/ranks/rank_status.h"

namespace fsdp::cuda {

class HostTasks {
 public:
  // `flag`: 4 bytes of pinned memory, zero, of this object alone. `status`: of the stream. Both
  // must outlive it.
  HostTasks(std::int64_t rank, Stream, std::uint32_t* flag, std::shared_ptr<host::RunControl>, host::RankStatus&);
  HostTasks(const HostTasks&) = delete;
  HostTasks& operator=(const HostTasks&) = delete;

  struct Task {
    std::int32_t op = -1;
    std::uint32_t ticket = 0;
    KernelBody body;
    std::int64_t heap_bytes = 0;  // once it has run
  };
  void enqueue(std::int32_t op, KernelBody, cudaStream_t);
  [[nodiscard]] std::int64_t heap_bytes(std::int32_t op) const;  // 0 for operations that are no host task
  void forget();                                                 // forgets finished tasks; for an idle stream
  // Ends the thread as soon as it is idle; waiting streams go on. Safe from any thread.
  void stop();
  void join();
  void leave();  // leaves a body behind that does not return

 private:
  static void CUDART_CB reached(void* self);
  void work();
  void run(Task&, std::unique_lock<std::mutex>&);
  void release(std::uint32_t ticket) const;

  const std::int64_t rank_;
  const Stream stream_;
  std::uint32_t* const flag_;
  const std::shared_ptr<host::RunControl> control_;
  host::RankStatus::OnStream& status_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;              // of this step
  std::size_t reached_ = 0, done_ = 0;  // of them: the stream has come there; they have run
  std::uint32_t last_ticket_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace fsdp::cuda
