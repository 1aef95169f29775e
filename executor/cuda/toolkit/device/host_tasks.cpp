#include "executor/cuda/toolkit/device/host_tasks.h"

#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <system_error>

#include "executor/cuda/toolkit/device/check.h"
#include "executor/ranks/instruments/heap_meter.h"
#include "models/input/error.h"

namespace fsdp::cuda {
namespace {

using WaitValue = CUresult(CUDAAPI*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// The driver's library is not linked: a program that has none still starts.
WaitValue find_wait_value() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult answer{};
  check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, cudaEnableDefault, &answer), -1,
        "looking for cuStreamWaitValue32");
  if (answer != cudaDriverEntryPointSuccess || function == nullptr)
    throw MachineError("the NVIDIA driver has no cuStreamWaitValue32; install one of CUDA 12 or newer");
  return reinterpret_cast<WaitValue>(function);
}

}  // namespace

HostTasks::HostTasks(std::int64_t rank, Stream stream, std::uint32_t* flag, std::shared_ptr<host::RunControl> control,
                     host::RankStatus& status)
    : rank_(rank),
      stream_(stream),
      flag_(flag),
      control_(std::move(control)),
      status_(status.streams[static_cast<std::size_t>(stream)]) {}

void HostTasks::enqueue(std::int32_t op, KernelBody body, cudaStream_t stream) {
  static const WaitValue wait_value = find_wait_value();
  std::uint32_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    ticket = ++last_ticket_;
    tasks_.push_back({op, ticket, std::move(body), 0});
    if (!thread_.joinable()) {
      control_->thread_starts();
      try {
        thread_ = std::thread([this, control = control_] {
          work();
          control->thread_ends();
        });
      } catch (const std::system_error& e) {
        control_->thread_ends();
        throw MachineError(
            fmt::format("operation {}: this machine has no thread for stream {} ({})", op, name(stream_), e.what()));
      }
    }
  }
  check(cudaLaunchHostFunc(stream, &HostTasks::reached, this), rank_, "cudaLaunchHostFunc");
  if (const CUresult r = wait_value(stream, reinterpret_cast<CUdeviceptr>(flag_), ticket, CU_STREAM_WAIT_VALUE_GEQ);
      r != CUDA_SUCCESS)
    throw MachineError(fmt::format("rank {}: cuStreamWaitValue32: the driver's error {}", rank_, static_cast<int>(r)));
}

void HostTasks::reached(void* self) {
  auto& tasks = *static_cast<HostTasks*>(self);
  const std::lock_guard lock(tasks.mutex_);
  ++tasks.reached_;
  tasks.changed_.notify_one();
}

void HostTasks::release(std::uint32_t ticket) const {
  std::atomic_ref<std::uint32_t>(*flag_).store(ticket, std::memory_order_release);
}

void HostTasks::work() {
  try {
    std::unique_lock lock(mutex_);
    while (true) {
      control_->wait_until(changed_, lock, [&] { return reached_ > done_ || stopping_; });
      if (reached_ <= done_) break;
      run(tasks_[done_], lock);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    std::array<char, 96> where{};
    const std::int32_t op = done_ < tasks_.size() ? tasks_[done_].op : -1;
    fmt::format_to_n(where.data(), where.size() - 1, "operation {} on stream {}", op, name(stream_));
    control_->fail_with_exception(rank_, op, where.data());
  }
  const std::lock_guard lock(mutex_);
  status_.state.store(host::RankStatus::idle);
  release(last_ticket_ + (1U << 30));  // whatever waits, and may still come, goes on
}

// A deque's elements stay where they are while others are added at its end.
void HostTasks::run(Task& task, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  status_.op.store(task.op);
  status_.state.store(host::RankStatus::kernel);
  host::heap_meter_begin();
  if (task.body) task.body();
  const std::int64_t heap = host::heap_meter_end();
  task.body = {};  // what the closure held goes before anybody hears that it has finished
  lock.lock();
  task.heap_bytes = heap;
  status_.state.store(host::RankStatus::idle);
  ++done_;
  control_->tick();
  release(task.ticket);
}

std::int64_t HostTasks::heap_bytes(std::int32_t op) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(tasks_.begin(), tasks_.end(), [&](const Task& t) { return t.op == op; });
  return found == tasks_.end() ? 0 : found->heap_bytes;
}

void HostTasks::forget() {
  const std::lock_guard lock(mutex_);
  if (done_ != tasks_.size() || reached_ != done_) return;
  tasks_.clear();
  reached_ = done_ = 0;
}

void HostTasks::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void HostTasks::join() {
  if (thread_.joinable()) thread_.join();
}

void HostTasks::leave() {
  if (thread_.joinable()) thread_.detach();
}

}  // namespace fsdp::cuda
