// Collectives of a world that is not there: this rank's own part stands for every other's, and a kernel takes the time,
// the multiprocessors and the memory traffic that the costs say.
#include <algorithm>

#include "executor/cuda/toolkit/device/check.h"
#include "executor/cuda/toolkit/device/group.h"
#include "executor/cuda/toolkit/device/occupy.h"
#include "executor/cuda/toolkit/device/reduce.h"

namespace fsdp::cuda {
namespace {

using host::CollectiveAction;
using host::CollectiveCall;

class EmulatedGroup final : public GpuGroup {
 public:
  EmulatedGroup(const host::Membership& m, std::int64_t rank, CollectiveModel time)
      : comm_(m.comm),
        rank_(rank),
        size_(static_cast<std::int64_t>(m.ranks.size())),
        member_(std::find(m.ranks.begin(), m.ranks.end(), rank) - m.ranks.begin()),
        time_(std::move(time)) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t member() const override { return member_; }

  // The values first: a plausible number in every place, so that losses stay finite. They take part of the time that is
  // modelled.
  void enqueue(const CollectiveCall& p, cudaStream_t stream) override {
    const std::int64_t width = size_of(p.type);
    std::byte* touched = p.output;
    std::int64_t bytes = p.elements * width;
    if (p.action == CollectiveAction::all_gather) {
      const std::byte* own = p.input + p.slot_begin(member_) * width;
      for (std::int64_t m = 0; m < size_; ++m)
        if (m != member_)
          copy(p.output + p.slot_begin(m) * width, own, std::min(p.slot(m), p.slot(member_)) * width, stream);
      bytes = p.slot_begin(size_) * width;
    } else if (p.action == CollectiveAction::reduce_scatter) {
      Inputs inputs{};
      inputs.of[0] = p.input + p.slot_begin(member_) * width;
      bytes = p.slot(member_) * width;
      // Of equal parts the average is one of them; a sum of `size` parts is left at one of them.
      if (bytes > 0) enqueue_reduction(p.type, Reduction::average, inputs, 1, p.slot(member_), p.output, stream);
    }
    const ModelledCollective modelled = size_ > 1 ? time_(p, comm_, size_) : ModelledCollective{};
    if (modelled.nanoseconds > 0) {
      const auto first = reinterpret_cast<std::uintptr_t>(touched);
      const std::int64_t skip = static_cast<std::int64_t>((16 - first % 16) % 16),
                         usable = std::max<std::int64_t>(bytes - skip, 0) / 16 * 16;
      std::byte* const aligned = touched + skip;  // each word is written where it was read: the values stay
      enqueue_occupation({modelled.blocks, 512, modelled.nanoseconds, aligned, aligned, usable,
                          usable > 0 ? modelled.traffic_bytes : 0},
                         stream);
    }
    check(cudaPeekAtLastError(), rank_, "launching a played collective");
  }

 private:
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes, cudaStream_t stream) {
    if (bytes > 0)
      check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream), rank_,
            "copying this rank's part");
  }
  Comm comm_;
  std::int64_t rank_, size_, member_;
  CollectiveModel time_;
};

}  // namespace

std::unique_ptr<GpuGroup> make_emulated_group(const host::Membership& m, std::int64_t rank, CollectiveModel time) {
  return std::make_unique<EmulatedGroup>(m, rank, std::move(time));
}

}  // namespace fsdp::cuda
