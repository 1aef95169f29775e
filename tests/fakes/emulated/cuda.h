// Runs CUDA kernels on the processor: no CUDA toolkit, no GPU. Included before the header of a kernel
// (executor/cuda/toolkit/kernels/*.cuh), in place of what nvcc brings along.
//
//   emulate({blocks}, {256}, shared_bytes, [&] { my_kernel<float>(x, y, n); });
//
// Blocks run one after the other, in an order made from `seed`; the threads of a block are fibers of the calling
// thread. A thread runs until it waits: at __syncthreads, or in a warp operation until all lanes of its mask have come.
// Which thread goes first changes with the block and the seed, so that a missing barrier shows; two runs with one seed
// are equal.
//
// Throws EmulationError where a GPU would hang or be undefined: threads at different barriers, a thread that has exited
// while others wait for it, a lane that is not in its own mask, a shuffle from a lane outside of the mask, a misaligned
// address of ldmatrix or cp.async, a write beside the dynamic shared memory, memory of which begins as NaN in each
// block. `__shared__` arrays are static: they keep what the block before left. Emulated: atomics, votes, shuffles,
// mma.sync m16n8k16, ldmatrix, cp.async (its bytes arrive no earlier than its wait).
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "executor/arithmetic/element.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local  // several host threads may emulate at once
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
using uint3 = dim3;

inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

// The sanitizers' functions; null where they are not linked.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** save, const void* bottom, std::size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* save, const void** bottom, std::size_t* size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* begin, std::size_t size);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}

namespace fsdp::emulation {

class EmulationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kStackBytes = std::size_t{128} << 10;
inline constexpr std::size_t kCanaryBytes = 1024;
inline constexpr unsigned kWholeWarp = 0xffffffffu;

struct Copy {  // of cp.async
  void* to;
  const void* from;
  bool present;
};

// What a thread waits for. Lanes of a warp operation meet when kind, place and mask agree.
struct Wait {
  const char* kind = nullptr;  // null: it does not wait
  std::source_location place;
  unsigned mask = 0;  // 0: the barrier of the block
  void* operand = nullptr;
  [[nodiscard]] bool meets(const Wait& o) const {
    return kind != nullptr && o.kind != nullptr && std::strcmp(kind, o.kind) == 0 && mask == o.mask &&
           place.line() == o.place.line() && place.column() == o.place.column() &&
           std::strcmp(place.file_name(), o.place.file_name()) == 0;
  }
};

// By its own name: what hardened headers put in its place takes a jump to another stack for an error.
extern "C" [[noreturn]] void plain_longjmp(jmp_buf, int) __asm__("_longjmp");

inline bool sanitized() { return __sanitizer_start_switch_fiber != nullptr || __tsan_switch_to_fiber != nullptr; }

// Where a stack goes on. Contexts of the library ask the system for the mask of signals at each switch, which is the
// same everywhere here: they begin a stack, jumps do the rest. The sanitizers know of contexts alone.
struct Continuation {
  ucontext_t context{};
  jmp_buf jump{};
  bool begun = false;
};

inline void go_on(Continuation& from, Continuation& to) {
  if (sanitized()) {
    ::swapcontext(&from.context, &to.context);
    return;
  }
  if (_setjmp(from.jump) != 0) return;
  from.begun = true;
  if (to.begun) plain_longjmp(to.jump, 1);
  ::setcontext(&to.context);
}

struct Fiber {
  Continuation here;
  void* stack = nullptr;
  void *fake_stack = nullptr, *race_fiber = nullptr;  // of the sanitizers
  bool exited = false;
  Wait wait;
  std::vector<Copy> copies;  // not committed
  std::deque<std::vector<Copy>> committed;
};

// Stacks are kept for the next block; one set per thread.
inline Fiber& pooled_fiber(std::size_t i) {
  struct Pool {
    std::vector<std::unique_ptr<Fiber>> fibers;
    ~Pool() {
      for (auto& f : fibers) ::munmap(f->stack, kStackBytes);
    }
  };
  static thread_local Pool pool;
  while (pool.fibers.size() <= i) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack =
        ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber->stack == MAP_FAILED) throw EmulationError("no memory for the stacks of a block");
    if (__tsan_create_fiber != nullptr) fiber->race_fiber = __tsan_create_fiber(0);
    pool.fibers.push_back(std::move(fiber));
  }
  return *pool.fibers[i];
}

class Block {
 public:
  Block(dim3 size, std::size_t shared_bytes, const std::function<void()>& kernel, std::uint64_t seed)
      : size_(size), kernel_(kernel), random_(seed), shared_(shared_bytes + 2 * kCanaryBytes + 128) {
    const auto begin = reinterpret_cast<std::uintptr_t>(shared_.data()) + kCanaryBytes;
    dynamic_ = reinterpret_cast<std::byte*>((begin + 127) / 128 * 128);
    dynamic_bytes_ = shared_bytes;
    std::memset(shared_.data(), 0xff, shared_.size());  // NaN in every type
    threads_ = std::size_t{size.x} * size.y * size.z;
    if (threads_ == 0 || threads_ > 1024) throw EmulationError("a block of " + std::to_string(threads_) + " threads");
  }

  void run() {
    if (current() != nullptr) throw EmulationError("a kernel inside a kernel");
    current() = this;
    for (std::size_t t = 0; t < threads_; ++t) start(t);
    std::vector<std::size_t> order(threads_);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    try {
      for (bool moved = true; moved;) {
        moved = false;
        for (const std::size_t t : order) {
          Fiber& f = pooled_fiber(t);
          if (f.exited || f.wait.kind != nullptr) continue;
          resume(t);
          moved = true;
          if (error_) std::rethrow_exception(error_);
        }
        if (!moved) moved = open_barrier();
      }
      check_canaries();
    } catch (...) {
      current() = nullptr;
      throw;
    }
    current() = nullptr;
  }

  // ---- called by the running thread
  static Block*& current() {
    static thread_local Block* block = nullptr;
    return block;
  }
  static Block& here() {
    if (current() == nullptr) throw EmulationError("device code outside of emulate()");
    return *current();
  }
  [[nodiscard]] Fiber& me() const { return pooled_fiber(running_); }
  [[nodiscard]] unsigned lane() const { return static_cast<unsigned>(running_ % 32); }
  [[nodiscard]] std::byte* dynamic() const { return dynamic_; }
  [[nodiscard]] bool in_dynamic(const void* p, std::size_t bytes) const {
    const auto* b = static_cast<const std::byte*>(p);
    return b >= dynamic_ && b + bytes <= dynamic_ + dynamic_bytes_;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw EmulationError(what + ", in " + thread_name(running_));
  }

  void barrier(const std::source_location& place) {
    me().wait = {"__syncthreads", place, 0, nullptr};
    yield();
  }

  // All lanes of `mask` bring an operand; the last to come runs `work` on the operands, by lane (null: not in the
  // mask).
  template <class Operand, class Work>
  void warp(const char* kind, unsigned mask, Operand& operand, const Work& work, const std::source_location& place) {
    if ((mask >> lane() & 1u) == 0) fail(std::string(kind) + " with a mask that its own lane is not in");
    Fiber& f = me();
    f.wait = {kind, place, mask, &operand};
    const std::size_t first = running_ / 32 * 32;
    Operand* operands[32] = {};
    for (unsigned l = 0; l < 32; ++l) {
      if ((mask >> l & 1u) == 0) continue;
      if (first + l >= threads_) fail(std::string(kind) + " with a mask that names threads beyond the block");
      const Fiber& other = pooled_fiber(first + l);
      if (other.exited || !other.wait.meets(f.wait)) return yield();
      operands[l] = static_cast<Operand*>(other.wait.operand);
    }
    work(operands);
    for (unsigned l = 0; l < 32; ++l)
      if (operands[l] != nullptr) pooled_fiber(first + l).wait = {};
  }

 private:
  [[nodiscard]] std::string thread_name(std::size_t t) const {
    return "thread " + std::to_string(t) + " of block (" + std::to_string(blockIdx.x) + ", " +
           std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ")";
  }

  // A stack whose thread has exited goes on with a thread of the next block.
  static void entry() {
    while (true) current()->run_thread();
  }

  void run_thread() {
    if (__sanitizer_finish_switch_fiber != nullptr)
      __sanitizer_finish_switch_fiber(nullptr, &host_bottom_, &host_size_);
    try {
      kernel_();
    } catch (...) {
      error_ = std::current_exception();
    }
    Fiber& f = me();
    f.exited = true;
    if (__sanitizer_start_switch_fiber != nullptr) __sanitizer_start_switch_fiber(nullptr, host_bottom_, host_size_);
    if (__tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(host_race_fiber_, 0);
    go_on(f.here, host_);
  }

  void start(std::size_t t) {
    Fiber& f = pooled_fiber(t);
    if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(f.stack, kStackBytes);
    const bool ready = f.exited && !sanitized();
    f.exited = false, f.wait = {}, f.fake_stack = nullptr;
    f.copies.clear(), f.committed.clear();
    if (ready) return;
    f.here.begun = false;
    ::getcontext(&f.here.context);
    f.here.context.uc_stack = {.ss_sp = f.stack, .ss_flags = 0, .ss_size = kStackBytes};
    f.here.context.uc_link = nullptr;
    ::makecontext(&f.here.context, &Block::entry, 0);
  }

  void resume(std::size_t t) {
    running_ = t;
    const auto i = static_cast<unsigned>(t);
    threadIdx = {i % size_.x, i / size_.x % size_.y, i / size_.x / size_.y};
    Fiber& f = pooled_fiber(t);
    if (__tsan_switch_to_fiber != nullptr) {
      host_race_fiber_ = __tsan_get_current_fiber();
      __tsan_switch_to_fiber(f.race_fiber, 0);
    }
    if (__sanitizer_start_switch_fiber != nullptr)
      __sanitizer_start_switch_fiber(&host_fake_stack_, f.stack, kStackBytes);
    go_on(host_, f.here);
    if (__sanitizer_finish_switch_fiber != nullptr) __sanitizer_finish_switch_fiber(host_fake_stack_, nullptr, nullptr);
  }

  void yield() {
    Fiber& f = me();
    if (__sanitizer_start_switch_fiber != nullptr)
      __sanitizer_start_switch_fiber(&f.fake_stack, host_bottom_, host_size_);
    if (__tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(host_race_fiber_, 0);
    go_on(f.here, host_);
    if (__sanitizer_finish_switch_fiber != nullptr)
      __sanitizer_finish_switch_fiber(f.fake_stack, &host_bottom_, &host_size_);
  }

  // Nobody can run. True: all were at one barrier, which is open now; false: all have exited.
  bool open_barrier() {
    std::size_t exited = 0;
    for (std::size_t t = 0; t < threads_; ++t) exited += pooled_fiber(t).exited ? 1 : 0;
    if (exited == threads_) return false;
    for (std::size_t t = 0; t < threads_; ++t) {
      const Fiber &f = pooled_fiber(t), &first = pooled_fiber(0);
      if (exited > 0 || f.wait.mask != 0 || !f.wait.meets(first.wait)) throw EmulationError(divergence());
    }
    for (std::size_t t = 0; t < threads_; ++t) pooled_fiber(t).wait = {};
    return true;
  }

  // Who waits where, the first thread of each place.
  [[nodiscard]] std::string divergence() const {
    std::string text = "threads of block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
                       std::to_string(blockIdx.z) + ") wait for each other:";
    std::vector<std::string> seen;
    for (std::size_t t = 0; t < threads_; ++t) {
      const Fiber& f = pooled_fiber(t);
      const std::string what = f.exited ? "has exited"
                                        : "is in " + std::string(f.wait.kind) + " at line " +
                                              std::to_string(f.wait.place.line()) +
                                              (f.wait.mask != 0 ? " with mask " + std::to_string(f.wait.mask) : "");
      if (std::find(seen.begin(), seen.end(), what) != seen.end()) continue;
      seen.push_back(what);
      text += " thread " + std::to_string(t) + " " + what + ";";
    }
    text.back() = '.';
    return text;
  }

  void check_canaries() const {
    const auto* data = reinterpret_cast<const std::byte*>(shared_.data());
    for (std::size_t i = 0; i < shared_.size(); ++i)
      if (!in_dynamic(data + i, 1) && data[i] != std::byte{0xff})
        throw EmulationError("a write beside the " + std::to_string(dynamic_bytes_) +
                             " bytes of dynamic shared memory, at " + std::to_string(data + i - dynamic_));
  }

  const dim3 size_;
  const std::function<void()>& kernel_;
  std::mt19937_64 random_;
  std::vector<std::byte> shared_;
  std::byte* dynamic_ = nullptr;
  std::size_t dynamic_bytes_ = 0, threads_ = 0, running_ = 0;
  std::exception_ptr error_;
  Continuation host_;
  void *host_fake_stack_ = nullptr, *host_race_fiber_ = nullptr;
  const void* host_bottom_ = nullptr;
  std::size_t host_size_ = 0;
};

inline void emulate(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& kernel,
                    std::uint64_t seed = 1) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    throw EmulationError("a grid that no GPU takes");
  if (shared_bytes > std::size_t{227} << 10) throw EmulationError("more dynamic shared memory than a block can have");
  gridDim = grid, blockDim = block;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  std::vector<std::uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  for (const std::uint64_t b : order) {
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    Block(block, shared_bytes, kernel, seed * 1000003 + b).run();
  }
}

}  // namespace fsdp::emulation

#include "tests/fakes/emulated/cuda_functions.h"
