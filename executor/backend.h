// The one virtual seam: what the interpreter of Programs needs from a backend. One Device per rank; the interpreter
// (training/interpreter.cpp) calls it from that rank's host thread in host issue order.
//
// Everything is asynchronous: `launch` and `collective` put work on a stream and return; work on one stream runs in
// order; it starts after the operations it waits for. `allocate` and `release` act at host time, as PyTorch's allocator
// does. Instruments: a Device reports what it did (order of starts, times, bytes handed out), not what it was told.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/dtype.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "planner/program.h"

namespace fsdp {

struct BufferView {  // a live allocation
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

enum class ReductionKind : std::uint8_t { sum, average, scaled_sum, maximum };
struct Reduction {
  ReductionKind kind = ReductionKind::sum;
  double multiply = 1;  // scaled_sum: each rank's part by this, before it is added
  static const Reduction sum, average, maximum;
  friend bool operator==(const Reduction&, const Reduction&) = default;
};
inline constexpr Reduction Reduction::sum{};
inline constexpr Reduction Reduction::average{ReductionKind::average};
inline constexpr Reduction Reduction::maximum{ReductionKind::maximum};

// A communicator as a rank names it: of those of its kind, the group that contains the rank. `reshard` exists once per
// size of its groups (of consecutive ranks), and needs it; so do `own_shard` and `own_replicate`, of one size each:
// groups of consecutive ranks, and of the ranks that have one place in them.
struct Comm {
  Communicator kind = Communicator::none;
  std::int64_t size = 0;
  Comm(Communicator k) : kind(k) {}  // NOLINT: a Communicator is a Comm
  Comm(Communicator k, std::int64_t n) : kind(k), size(n) {}
  friend bool operator==(const Comm&, const Comm&) = default;
};

// How a buffer is divided over a group: slots one after the other in the order of its ranks, of one size or each of its
// own.
struct Slots {
  std::int64_t each = 0;
  std::vector<std::int64_t> counts;   // not empty: slot i holds counts[i] elements (possibly none)
  Slots(std::int64_t n) : each(n) {}  // NOLINT: so many elements per rank
  explicit Slots(std::vector<std::int64_t> n) : counts(std::move(n)) {}
};

enum class Memory : std::uint8_t { device, host };  // host: pinned, where that differs

// Host code in a stream's order: runs on the stream's worker, or as a callback of the device's stream. It must not
// allocate: heap taken inside is reported as undeclared.
using KernelBody = std::function<void()>;
struct KernelCall;  // one operation of a Program with all that its kernel needs: executor/actions/kernel_call.h

struct OperationRecord {  // from the instruments, one per operation that ran on a stream
  std::int32_t op = -1;
  Stream stream{};
  double start = 0, end = 0;    // seconds since the backend was made
  std::int64_t heap_bytes = 0;  // most heap held at once beyond what the kernel found, while it ran
  std::int64_t sent_bytes = 0;  // to other ranks
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::int64_t rank() const = 0;

  virtual void reserve_arena(std::int64_t bytes, Memory = Memory::device) = 0;  // once for each, before anything else
  // Hands out [offset, offset + bytes) of the arena to `pool`. Throws MachineError if any of it is handed out already.
  virtual BufferView allocate(Stream pool, std::int64_t offset, std::int64_t bytes, Memory = Memory::device) = 0;
  // Takes back what `allocate` returned; throws MachineError for anything else. Memory is poisoned (sanitizer builds)
  // when the pool's stream reaches the next operation issued after this call.
  virtual void release(Stream pool, BufferView) = 0;
  [[nodiscard]] virtual std::int64_t allocated_bytes() const = 0;  // handed out now

  // `op`: the operation's index in the Step, unique until the next begin_step. Waits name earlier operations of this
  // step.
  virtual void begin_step() = 0;  // host-synchronises; forgets the records
  virtual void launch(std::int32_t op, Stream, std::span<const std::int32_t> waits, KernelBody) = 0;
  // The backend's own kernel for an operation. The call is read before this returns, except `training.tokens` and
  // `training.state`.
  virtual void launch_kernel(std::int32_t op, Stream, std::span<const std::int32_t> waits, KernelCall) = 0;
  // In elements of `type`. Reductions add in the order of the ranks: the same bits on every machine, whatever the
  // timing.
  // In place. `own`: where this rank's part (of an all-reduce: its summand) comes from, if it is not there yet.
  virtual void all_gather(std::int32_t op, Stream, Comm, std::span<const std::int32_t> waits, BufferView buffer,
                          const Slots&, DType type, BufferView own = {}) = 0;
  virtual void reduce_scatter(std::int32_t op, Stream, Comm, std::span<const std::int32_t> waits, BufferView input,
                              BufferView output, const Slots&, DType type, Reduction) = 0;
  virtual void all_reduce(std::int32_t op, Stream, Comm, std::span<const std::int32_t> waits, BufferView buffer,
                          std::int64_t elements, DType type, Reduction, BufferView own = {}) = 0;
  virtual void broadcast(std::int32_t op, Stream, Comm, std::span<const std::int32_t> waits, BufferView buffer,
                         std::int64_t elements, DType type, std::int64_t root) = 0;  // root: position in the group
  virtual void wait_host(std::int32_t op) = 0;               // until that operation has finished
  [[nodiscard]] virtual bool finished(std::int32_t op) = 0;  // has it, by now? Does not wait
  virtual void synchronize() = 0;                            // until all streams are idle; rethrows what a kernel threw
  [[nodiscard]] virtual std::vector<OperationRecord> records()
      const = 0;  // since begin_step, in order of start per stream
  // Puts bytes into live memory that no operation under way uses; over when it returns.
  virtual void write(BufferView to, std::span<const std::byte> from) = 0;
  // Contents of live memory, once the operations that write it have finished: the memory itself, or a copy that `copy`
  // then holds.
  [[nodiscard]] virtual std::span<const std::byte> bytes_of(BufferView, std::vector<std::byte>& copy) const = 0;

  // Text exchange between ranks, not on a stream: every rank of the run gives a text and gets all of them, in the order
  // of the ranks. Blocks the host until all have called it. For a few texts per run (results, a checkpoint's manifest),
  // not for tensors.
  [[nodiscard]] virtual std::vector<std::string> exchange(const std::string& mine) = 0;
};

// The first failure of a run: which rank, and in which operation of its current step (-1: in none).
class RankFailure : public MachineError {
 public:
  RankFailure(std::int64_t rank, std::int32_t op, const std::string& what) : MachineError(what), rank_(rank), op_(op) {}
  [[nodiscard]] std::int64_t rank() const { return rank_; }
  [[nodiscard]] std::int32_t op() const { return op_; }

 private:
  std::int64_t rank_;
  std::int32_t op_;
};

// A RankFailure of a rank that may live in another process (or no longer lives).
class ProcessFailure : public RankFailure {
 public:
  ProcessFailure(std::int64_t rank, std::int32_t op, std::int32_t steps_begun, const std::string& what)
      : RankFailure(rank, op, what), steps_begun_(steps_begun) {}
  // Calls of Device::begin_step; op() is an operation of the last of these steps.
  [[nodiscard]] std::int32_t steps_begun() const { return steps_begun_; }

 private:
  std::int32_t steps_begun_;
};

struct MeshShape {
  std::int64_t replicate = 1, shard = 1, tensor = 1;
  [[nodiscard]] std::int64_t ranks() const { return replicate * shard * tensor; }
};  // rank = (replicate_index * shard + shard_index) * tensor + tensor_index

// Runs `body(device)` on every rank of this process at once, each on a thread, and returns when all have returned. When
// a rank throws, every rank stops soon, and run() throws a RankFailure that names the first failed rank and its
// operation.
class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::string name() const = 0;         // "host"
  [[nodiscard]] virtual std::string environment() const = 0;  // processor, cores, library versions
  [[nodiscard]] virtual const Implementation& implementation()
      const = 0;  // of its kernels: what programs are lowered with that it runs
  [[nodiscard]] virtual std::int64_t ranks() const = 0;
  [[nodiscard]] virtual MeshShape mesh() const = 0;
  // Ranks of this process, ascending: all of them where ranks are threads. Only the process of rank 0 reports results.
  [[nodiscard]] virtual std::vector<std::int64_t> local_ranks() const = 0;
  // One rank runs and the others are modelled. It measures itself alone.
  [[nodiscard]] virtual bool emulated() const { return false; }
  // `sized`: the communicators with a size of their own that the body uses.
  virtual void run(const std::function<void(Device&)>& body, std::span<const Comm> sized = {}) = 0;
};

struct BackendOptions {
  double watchdog_seconds = 60;  // a rank that makes no progress for this long ends the run
};
[[nodiscard]] std::unique_ptr<Backend> make_host_backend(MeshShape, const BackendOptions& = {});

}  // namespace fsdp
