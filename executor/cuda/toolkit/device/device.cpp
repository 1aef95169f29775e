// What a rank on a GPU is made of, how it begins and ends.
#include "executor/cuda/toolkit/device/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>

#include "executor/cuda/toolkit/device/check.h"
#include "executor/cuda/toolkit/device/reduce.h"
#include "models/input/error.h"
#include "models/units.h"

namespace fsdp::cuda {

namespace {
constexpr std::int64_t kGap =
    4096;  // behind each arena, so that no address is the end of one and the beginning of another
}  // namespace

CudaDevice::CudaDevice(DeviceSetup setup)
    : s_(std::move(setup)), status_(*s_.status), arena_(s_.rank), host_arena_(s_.rank) {}

// Communication before compute: its kernels are few and others wait for them.
void CudaDevice::open() {
  check(cudaSetDevice(s_.gpu), s_.rank, fmt::format("using GPU {}", s_.gpu));
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), s_.rank, "asking for priorities of streams");
  for (int i = 0; i < kStreams; ++i)
    check(cudaStreamCreateWithPriority(&streams_[static_cast<std::size_t>(i)].raw, cudaStreamNonBlocking,
                                       static_cast<Stream>(i) == Stream::compute ? least : greatest),
          s_.rank, "making a stream");
  check(cudaStreamCreateWithFlags(&reads_, cudaStreamNonBlocking), s_.rank, "making a stream");
  check(cudaEventCreate(&step_begin_), s_.rank, "making an event");
  void* flags = nullptr;
  check(cudaHostAlloc(&flags, kStreams * kFlagsApart * sizeof(std::uint32_t), cudaHostAllocMapped), s_.rank,
        "pinned memory for flags");
  flags_ = static_cast<std::uint32_t*>(flags);
  std::fill_n(flags_, kStreams * kFlagsApart, 0U);
  usable_ = true;
  context_.libraries = s_.libraries.get();
  context_.device = s_.gpu;
  check(cudaDeviceGetAttribute(&context_.multiprocessors, cudaDevAttrMultiProcessorCount, s_.gpu), s_.rank,
        "asking for multiprocessors");
  context_.reserved_multiprocessors = s_.nccl_ctas;
  preload_reductions(reads_);
  check(cudaStreamSynchronize(reads_), s_.rank, "loading kernels");
  links_ = s_.connect(world_);
  last_collective_.assign(links_.size(), -1);
  s_.control->tick();
}

void CudaDevice::close() {
  for (GpuLink& l : links_) l.group->close();
  if (world_) world_->close();
}

// What waits for other ranks is aborted, host code is not begun any more, then streams get a little time to run dry.
void CudaDevice::give_up() noexcept {
  for (OnStream& s : streams_)
    if (s.tasks) s.tasks->stop();
  for (GpuLink& l : links_) l.group->abort();
  if (world_) world_->abort();
  const auto limit = Clock::now() + std::chrono::seconds(2);
  const auto busy = [&] {
    return std::any_of(streams_.begin(), streams_.end(), [](const OnStream& s) {
      return s.raw != nullptr && cudaStreamQuery(s.raw) == cudaErrorNotReady;
    });
  };
  while (busy() && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  idle_ = !busy();
}

void CudaDevice::run_body(const std::function<void(Device&)>& body) {
  try {
    open();
    body(*this);
    synchronize();
    close();
  } catch (...) {
    std::array<char, 64> where{};
    fmt::format_to_n(where.data(), where.size() - 1, "after issuing operation {}", status_.issued.load());
    s_.control->fail_with_exception(s_.rank, status_.issued.load(), where.data());
    give_up();
  }
  status_.host.store(host::RankStatus::ended);
  for (OnStream& s : streams_)
    if (s.tasks) s.tasks->stop();
}

void CudaDevice::join() {
  for (OnStream& s : streams_)
    if (s.tasks) s.tasks->join();
}

void CudaDevice::leave() {
  for (OnStream& s : streams_)
    if (s.tasks) s.tasks->leave();
}

CudaDevice::~CudaDevice() {
  if (!usable_) return;
  (void)cudaSetDevice(s_.gpu);
  links_.clear();
  world_.reset();
  context_.matmul_runner.reset();
  for (const Events& e : events_) {
    if (e.start != nullptr) (void)cudaEventDestroy(e.start);
    if (e.end != nullptr) (void)cudaEventDestroy(e.end);
  }
  (void)cudaEventDestroy(step_begin_);
  for (OnStream& s : streams_) (void)cudaStreamDestroy(s.raw);
  (void)cudaStreamDestroy(reads_);
  (void)cudaFreeHost(flags_);
  if (memory_ != nullptr) (void)(s_.arena == Memory::host ? cudaFreeHost(memory_) : cudaFree(memory_));
  if (host_memory_ != nullptr) (void)cudaFreeHost(host_memory_);
}

void CudaDevice::reserve_arena(std::int64_t bytes, Memory where) {
  const bool in_host = where == Memory::host;
  std::byte*& memory = in_host ? host_memory_ : memory_;
  host::Arena& arena = in_host ? host_arena_ : arena_;
  if (memory != nullptr) throw MachineError(fmt::format("rank {}: the arena is reserved already", s_.rank));
  if (bytes < 0) throw MachineError(fmt::format("rank {}: an arena of {} bytes", s_.rank, bytes));
  if (bytes == 0) return;
  void* p = nullptr;
  const auto size = static_cast<std::size_t>(checked_add(bytes, kGap, "arena"));
  if (in_host || s_.arena == Memory::host)
    check(cudaHostAlloc(&p, size, cudaHostAllocPortable), s_.rank,
          fmt::format("{} of pinned memory for the arena", human(Bytes(bytes))));
  else check(cudaMalloc(&p, size), s_.rank, fmt::format("{} for the arena", human(Bytes(bytes))));
  memory = static_cast<std::byte*>(p);
  arena.reserve(bytes, memory);
  for (GpuLink& l : links_)
    if (!in_host && s_.arena == Memory::device) l.group->register_memory(memory, bytes);
}

BufferView CudaDevice::allocate(Stream, std::int64_t offset, std::int64_t bytes, Memory where) {
  return (where == Memory::host ? host_arena_ : arena_).allocate(offset, bytes);
}

void CudaDevice::release(Stream, BufferView view) { (host_arena_.holds(view) ? host_arena_ : arena_).release(view); }

std::span<const std::byte> CudaDevice::bytes_of(BufferView view, std::vector<std::byte>& copy) const {
  const auto n = static_cast<std::size_t>(view.bytes);
  if (s_.arena == Memory::host || host_arena_.holds(view)) return {view.data, n};
  copy.resize(n);
  if (n == 0) return {copy.data(), n};
  check(cudaMemcpyAsync(copy.data(), view.data, n, cudaMemcpyDeviceToHost, reads_), s_.rank, "reading a buffer");
  check(cudaStreamSynchronize(reads_), s_.rank, "reading a buffer");
  return {copy.data(), n};
}

void CudaDevice::write(BufferView to, std::span<const std::byte> from) {
  if (static_cast<std::int64_t>(from.size()) > to.bytes)
    throw MachineError(fmt::format("rank {}: {} bytes written to a buffer of {}", s_.rank, from.size(), to.bytes));
  if (from.empty()) return;
  check(cudaMemcpyAsync(to.data, from.data(), from.size(), cudaMemcpyDefault, reads_), s_.rank, "writing a buffer");
  check(cudaStreamSynchronize(reads_), s_.rank, "writing a buffer");
}

std::vector<std::string> CudaDevice::exchange(const std::string& mine) {
  status_.host.store(host::RankStatus::waiting);
  std::vector<std::string> all = s_.exchange(mine);
  status_.host.store(host::RankStatus::busy);
  return all;
}

host::Doing CudaDevice::doing() const {
  host::Doing result = host::doing(status_);
  if (GpuGroup* group = meeting_.load(); group != nullptr && result.blame < host::kRuns) {
    const std::int32_t op = status_.issued.load();
    const std::vector<std::int64_t> absent = group->absent();
    result = {2, op, fmt::format("waits in collective operation {} for rank {}", op, fmt::join(absent, ", ")), absent};
  }
  return result;
}

}  // namespace fsdp::cuda
