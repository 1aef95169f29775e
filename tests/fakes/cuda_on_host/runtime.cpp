// The part of the CUDA runtime that executor/cuda/toolkit/device uses, on threads of the host. Each stream runs in
// order, apart from the others. An event stands for its last recording. Host functions of all streams run one at a
// time, as the driver may do. Streams pause at random, so that missing synchronization shows. Memory is the host's. The
// fake says nothing about a GPU's speed or arithmetic; it shows that the backend issues the right calls in the right
// order.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t random_bits() {
  static std::atomic<std::uint64_t> count{1};
  std::uint64_t x = count.fetch_add(1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 27);
}

struct Record {  // one recording of an event
  std::atomic<bool> done{false};
  Clock::time_point time;
};

void wait_for(const Record& record) { record.done.wait(false); }

}  // namespace

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<Record> last;
  std::shared_ptr<Record> get() {
    const std::lock_guard lock(mutex);
    return last;
  }
};

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false, stopping = false;
  std::thread thread{[this] { work(); }};

  void push(std::function<void()> action) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(action));
    changed.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return queue.empty() && !busy;
  }
  void wait_until_idle() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.empty() && !busy; });
  }
  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return !queue.empty() || stopping; });
      if (queue.empty()) return;
      const std::function<void()> action = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      if (random_bits() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_bits() % 200));
      action();
      lock.lock();
      busy = false;
      if (queue.empty()) changed.notify_all();
    }
  }
};

extern "C" {

// Eight, or as many as CUDA_ON_HOST_GPUS says.
cudaError_t cudaGetDeviceCount(int* count) {
  const char* said = std::getenv("CUDA_ON_HOST_GPUS");
  return *count = said != nullptr ? std::atoi(said) : 8, cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device >= 0 && device < 8 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 4, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  *p = {};
  p->uuid.bytes[15] = static_cast<char>(device);
  p->multiProcessorCount = 4;
  p->major = 9;
  p->totalGlobalMem = size_t{1} << 40;
  std::strcpy(p->name, "a GPU that is threads of this processor");
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfTheTest";
}
const char* cudaGetErrorString(cudaError_t) { return "words"; }

cudaError_t cudaMalloc(void** p, size_t n) {
  if (n > size_t{1} << 40) return cudaErrorMemoryAllocation;
  return *p = std::aligned_alloc(4096, (n + 4095) / 4096 * 4096),
         *p != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* p) { return std::free(p), cudaSuccess; }
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) { return cudaMalloc(p, n); }
cudaError_t cudaMallocHost(void** p, size_t n) { return cudaMalloc(p, n); }
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { return *s = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return *s = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  {
    const std::lock_guard lock(s->mutex);
    s->stopping = true;
    s->changed.notify_all();
  }
  s->thread.join();
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) { return s->idle() ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return s->wait_until_idle(), cudaSuccess; }

cudaError_t cudaEventCreate(cudaEvent_t* e) { return *e = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return cudaEventCreate(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  auto record = std::make_shared<Record>();
  {
    const std::lock_guard lock(e->mutex);
    e->last = record;
  }
  s->push([record] {
    record->time = Clock::now();
    record->done = true;
    record->done.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  if (auto record = e->get()) s->push([record] { wait_for(*record); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  const auto record = e->get();
  return !record || record->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  if (const auto record = e->get()) wait_for(*record);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const auto a = from->get(), b = to->get();
  if (!a || !b || !a->done || !b->done) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(b->time - a->time).count();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t s) {
  s->push([=] { std::memmove(to, from, n); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void* data) {
  static std::mutex one_at_a_time;
  s->push([=] {
    const std::lock_guard lock(one_at_a_time);
    function(data);
  });
  return cudaSuccess;
}

static CUresult wait_value(CUstream s, CUdeviceptr address, cuuint32_t value, unsigned) {
  s->push([=] {
    const auto* flag = reinterpret_cast<std::atomic<std::uint32_t>*>(address);
    const auto there = [&] { return static_cast<std::int32_t>(flag->load(std::memory_order_acquire) - value) >= 0; };
    for (int looks = 0; !there(); ++looks) {
      if (looks < 20) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(looks < 40 ? 20 : 100));
    }
  });
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* answer) {
  *function = reinterpret_cast<void*>(&wait_value);
  *answer = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"

void push_on_stream(CUstream_st* s, std::function<void()> action) { s->push(std::move(action)); }
