// The ranks of one communicator group, and how their collectives are carried out. Each rank runs at most one collective
// of a group at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "executor/backend.h"
#include "executor/ranks/control.h"

namespace fsdp::host {

enum class CollectiveAction : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast };

// One rank's call of a collective. Copying it takes no heap.
struct CollectiveCall {
  CollectiveAction action{};
  std::int32_t op = -1;  // in its Step, for messages
  Stream stream{};
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // all but reduce_scatter: the same as input
  std::int64_t elements = 0;    // all_gather, reduce_scatter: of one slot; else of all
  std::shared_ptr<const std::vector<std::int64_t>> counts = nullptr;  // instead, where slots differ
  DType type = DType::f32;
  Reduction reduction = Reduction::sum;
  std::int64_t root = 0;           // broadcast: member
  const std::byte* own = nullptr;  // all_gather, all_reduce: this rank's part, copied into the output first
  [[nodiscard]] std::int64_t slot(std::int64_t member) const {
    return counts ? (*counts)[static_cast<std::size_t>(member)] : elements;
  }
  [[nodiscard]] std::int64_t slot_begin(std::int64_t member) const;
};

// How a collective is carried out: by threads of one process (ThreadGroup) or between processes.
class Group {
 public:
  virtual ~Group() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::int64_t member(std::int64_t rank) const = 0;
  // Runs one collective and returns how many bytes this rank took from others: the slots of the others for all-gather
  // and reduce-scatter, about 2 (W-1)/W of the buffer for all-reduce. Sums run over the ranks in their order, whatever
  // the timing, in double for f64 and float otherwise; an average divides once at the end. Takes no heap. Throws
  // RankFailure if the ranks call different collectives.
  virtual std::int64_t run(const RunControl&, std::int64_t member, const CollectiveCall&) = 0;
  [[nodiscard]] virtual std::vector<std::int64_t> absent() const = 0;  // ranks that have not called yet
};

inline constexpr std::int64_t kMostThreads = 256;  // ranks of one process

// Ranks are threads that read each other's buffers. One set of calls and one barrier serve all collectives.
class ThreadGroup final : public Group {
 public:
  explicit ThreadGroup(std::vector<std::int64_t> ranks)
      : ranks_(std::move(ranks)), calls_(ranks_.size()), present_(ranks_.size(), 0) {}
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(ranks_.size()); }
  [[nodiscard]] std::int64_t member(std::int64_t rank) const override;
  std::int64_t run(const RunControl&, std::int64_t member, const CollectiveCall&) override;
  [[nodiscard]] std::vector<std::int64_t> absent() const override;

  [[nodiscard]] const CollectiveCall& call(std::int64_t member) const {
    return calls_[static_cast<std::size_t>(member)];
  }
  // Returns when every rank has called; then call() may be read until the next meet. RankFailure if the calls differ.
  void meet(const RunControl&, std::int64_t member, const CollectiveCall&);
  // A barrier: returns when every rank has come here.
  void meet(const RunControl&, std::int64_t member);

 private:
  void wait(const RunControl&, std::unique_lock<std::mutex>&, std::int64_t member, bool calling);

  std::vector<std::int64_t> ranks_;
  mutable std::mutex mutex_;
  std::condition_variable met_;
  std::vector<CollectiveCall> calls_;
  std::vector<char> present_;
  std::size_t count_ = 0;
  std::uint64_t generation_ = 0;
};

// The groups that a rank belongs to, one per communicator: tensor groups are consecutive ranks, the ranks of a shard
// group are `tensor` apart, and those of a replicate group `shard * tensor`. InputError for sizes that do not divide
// the shard group (reshard), or all that see sequences of their own.
struct Membership {
  Comm comm;
  std::vector<std::int64_t> ranks;  // in order
};
[[nodiscard]] std::vector<Membership> memberships(MeshShape, std::span<const Comm> sized, std::int64_t rank);

[[nodiscard]] bool ranks_within(MeshShape, std::int64_t most);  // sizes of at least 1, and not too many ranks
[[nodiscard]] std::string mesh_text(MeshShape);                 // "2 x 4"; with tensor ranks "2 x 4 x 8"

[[nodiscard]] const char* name(CollectiveAction);

// Sets the slots of a call over `members` ranks and returns the elements of all slots together. MachineError for
// impossible slots.
[[nodiscard]] std::int64_t set_slots(CollectiveCall&, const Slots&, std::int64_t members);
// Throws MachineError unless the buffers fit (the larger holds `group_elements`, the smaller one slot) and the element
// type can be reduced.
void check_fits(const CollectiveCall&, std::int64_t member, std::int64_t members, std::int64_t group_elements,
                std::int64_t large_bytes, std::int64_t small_bytes);

// Throws RankFailure unless all calls are the same. `calls` in the order of `ranks`.
void check_same_call(std::span<const std::int64_t> ranks, std::span<const CollectiveCall> calls);

}  // namespace fsdp::host
