// The ranks of one communicator group, and how they meet. Each rank runs at most one collective of a group at a time, so
// one set of posts and one barrier serve all of them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "executor/backend.h"
#include "executor/host/control.h"

namespace fsdp::host {

enum class CollectiveAction : std::uint8_t { all_gather, reduce_scatter, all_reduce };

struct Post {  // what one rank brings
  CollectiveAction action{};
  std::int32_t op = -1;  // in its Step, for messages
  Stream stream{};
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // all_gather, all_reduce: the same as input
  std::int64_t elements = 0;    // all_gather, reduce_scatter: of one slot; all_reduce: of all
  DType type = DType::f32;
  Reduction reduction = Reduction::sum;
};

class Group {
 public:
  explicit Group(std::vector<std::int64_t> ranks) : ranks_(std::move(ranks)), posts_(ranks_.size()), present_(ranks_.size(), 0) {}
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(ranks_.size()); }
  [[nodiscard]] std::int64_t member(std::int64_t rank) const;
  [[nodiscard]] const Post& post(std::int64_t member) const { return posts_[static_cast<std::size_t>(member)]; }

  // Returns when every rank has posted; then post() may be read until the next meet. RankFailure if they disagree.
  void meet(const RunControl&, std::int64_t member, const Post&);
  // Returns when every rank has come here.
  void meet(const RunControl&, std::int64_t member);
  [[nodiscard]] std::vector<std::int64_t> absent() const;  // ranks that the others wait for

 private:
  void verify() const;
  void wait(const RunControl&, std::unique_lock<std::mutex>&, std::int64_t member, bool posting);

  std::vector<std::int64_t> ranks_;
  mutable std::mutex mutex_;
  std::condition_variable met_;
  std::vector<Post> posts_;
  std::vector<char> present_;
  std::size_t count_ = 0;
  std::uint64_t generation_ = 0;
};

[[nodiscard]] const char* name(CollectiveAction);

// Moves the bytes of one collective; returns how many were copied from other ranks (each rank copies the share of the ring
// formula: all-gather and reduce-scatter (W-1) slots, all-reduce about 2 (W-1)/W of the buffer). Sums run over the ranks in
// their order, whatever the timing, in double for f64 and float otherwise; an average divides once at the end. Takes no heap.
std::int64_t run_collective(Group&, const RunControl&, std::int64_t member, const Post&);

}  // namespace fsdp::host
