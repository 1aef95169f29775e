// Collectives between ranks that share a GPU: events across their streams, copies, and reductions in the order of the
// ranks. A group of one, too.
#include "executor/cuda/toolkit/device/check.h"
#include "executor/cuda/toolkit/device/group.h"
#include "executor/cuda/toolkit/device/reduce.h"

namespace fsdp::cuda {

VirtualRanks::VirtualRanks(std::vector<std::int64_t> ranks)
    : meeting_(ranks), events_(ranks.size() * kMoments, nullptr) {}
VirtualRanks::~VirtualRanks() {
  for (const cudaEvent_t e : events_)
    if (e != nullptr) (void)cudaEventDestroy(e);
}

namespace {

using host::CollectiveAction;
using host::CollectiveCall;

class VirtualGroup final : public GpuGroup {
 public:
  VirtualGroup(std::shared_ptr<VirtualRanks> all, std::int64_t rank, Memory arena,
               std::shared_ptr<host::RunControl> control)
      : all_(std::move(all)),
        control_(std::move(control)),
        arena_(arena),
        rank_(rank),
        member_(all_->meeting().member(rank)),
        size_(all_->meeting().size()) {
    for (int m = 0; m < VirtualRanks::kMoments; ++m)
      check(
          cudaEventCreateWithFlags(&all_->event(member_, static_cast<VirtualRanks::Moment>(m)), cudaEventDisableTiming),
          rank_, "making an event");
  }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t member() const override { return member_; }

  void enqueue(const CollectiveCall& p, cudaStream_t stream) override {
    record(VirtualRanks::ready, stream);
    meeting_.store(true);
    all_->meeting().meet(*control_, member_, p);
    wait_for_others(VirtualRanks::ready, stream);
    switch (p.action) {
      case CollectiveAction::all_gather: gather(p, stream); break;
      case CollectiveAction::reduce_scatter: reduce(p, p.slot_begin(member_), p.slot(member_), p.output, stream); break;
      case CollectiveAction::broadcast:
        if (member_ != p.root) copy(p.output, all_->meeting().call(p.root).input, p.elements * size_of(p.type), stream);
        break;
      case CollectiveAction::all_reduce: reduce_all(p, stream); break;
    }
    record(VirtualRanks::done, stream);
    all_->meeting().meet(*control_, member_);
    meeting_.store(false);
    wait_for_others(VirtualRanks::done, stream);  // nobody reads this rank's buffers any more
  }

  [[nodiscard]] std::vector<std::int64_t> absent() const override {
    return meeting_.load() ? all_->meeting().absent() : std::vector<std::int64_t>{};
  }

 private:
  void record(VirtualRanks::Moment m, cudaStream_t stream) {
    check(cudaEventRecord(all_->event(member_, m), stream), rank_, "recording an event");
  }
  // After a meeting: an event counts as it was last recorded when the wait is put on the stream.
  void wait_for_others(VirtualRanks::Moment m, cudaStream_t stream) {
    for (std::int64_t i = 0; i < size_; ++i)
      if (i != member_)
        check(cudaStreamWaitEvent(stream, all_->event(i, m), 0), rank_, "waiting for another rank's event");
  }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes, cudaStream_t stream) {
    if (bytes == 0) return;
    if (arena_ == Memory::host) {
      enqueue_copy(to, from, bytes, stream);
      return check(cudaPeekAtLastError(), rank_, "launching a copy");
    }
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream), rank_,
          "copying from another rank");
  }
  void gather(const CollectiveCall& p, cudaStream_t stream) {
    const std::int64_t width = size_of(p.type);
    for (std::int64_t i = 1; i < size_; ++i) {
      const std::int64_t other = (member_ + i) % size_, at = p.slot_begin(other) * width;
      copy(p.output + at, all_->meeting().call(other).input + at, p.slot(other) * width, stream);
    }
  }
  void reduce(const CollectiveCall& p, std::int64_t first, std::int64_t count, std::byte* output, cudaStream_t stream) {
    if (count == 0) return;
    Inputs inputs{};
    for (std::int64_t m = 0; m < size_; ++m) inputs.of[m] = all_->meeting().call(m).input + first * size_of(p.type);
    enqueue_reduction(p.type, p.reduction, inputs, static_cast<int>(size_), count, output, stream);
    check(cudaPeekAtLastError(), rank_, "launching a reduction");
  }
  // Each rank reduces a chunk in place, then fetches the others': three meetings, as the calls must be read before the
  // second.
  void reduce_all(const CollectiveCall& p, cudaStream_t stream) {
    const std::int64_t width = size_of(p.type), begin = chunk_begin(p.elements, size_, member_),
                       end = chunk_begin(p.elements, size_, member_ + 1);
    reduce(p, begin, end - begin, p.output + begin * width, stream);
    record(VirtualRanks::reduced, stream);
    all_->meeting().meet(*control_, member_);
    wait_for_others(VirtualRanks::reduced, stream);
    for (std::int64_t i = 1; i < size_; ++i) {
      const std::int64_t other = (member_ + i) % size_, at = chunk_begin(p.elements, size_, other) * width;
      copy(p.output + at, all_->meeting().call(other).output + at,
           chunk_begin(p.elements, size_, other + 1) * width - at, stream);
    }
  }

  std::shared_ptr<VirtualRanks> all_;
  std::shared_ptr<host::RunControl> control_;
  Memory arena_;  // where the ranks' arenas are
  std::int64_t rank_, member_, size_;
  std::atomic<bool> meeting_{false};
};

}  // namespace

std::unique_ptr<GpuGroup> make_virtual_group(std::shared_ptr<VirtualRanks> all, std::int64_t rank, Memory arena,
                                             std::shared_ptr<host::RunControl> control) {
  return std::make_unique<VirtualGroup>(std::move(all), rank, arena, std::move(control));
}

}  // namespace fsdp::cuda
