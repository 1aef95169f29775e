// Gathering and freeing a unit's parameters in the `fsdp2` dialect (FSDPParamGroup.unshard, wait_for_unshard, reshard).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/fsdp2_units.h"
#include "planner/lowering/step/float8_casts.h"

namespace fsdp {

class Fsdp2Unshard {
 public:
  explicit Fsdp2Unshard(Fsdp2Units& units) : units_(units) {}

  // F2: casts and copies the local shard into its slot of a new gather buffer on C, then all-gathers on G. Does nothing
  // if the unit is gathered or pending.
  // `by_hand`: outside of forward and backward, unshard(async_op=True).
  void unshard(StepBuilder&, std::int32_t u, bool by_hand = false);
  // F3 and B3: D waits for the all-gather and copies out. In forward the gather buffer stays until the next group's
  // wait.
  void wait(StepBuilder&, std::int32_t u, bool forward);
  void reshard_after_forward(StepBuilder&, std::int32_t u);
  void reshard(StepBuilder&, std::int32_t u);  // over all of W
  // Frees the gather buffer kept in forward: C and G go on after its copy-out.
  void drop_held(StepBuilder&);
  // The end of backward, for one unit: waits for an all-gather that no operation has waited for, and frees it.
  void drop_unused(StepBuilder&, std::int32_t u, bool last);
  // ... and for all of them: what a recomputation that stopped early holds.
  void end_backward(StepBuilder&);
  void after_optimizer(StepBuilder&);

 private:
  struct Source {
    std::vector<Arg> args;
    std::vector<std::int32_t> temporaries;
  };
  Source gather_source(StepBuilder&, std::int32_t u, Stream);
  Source cast_all(StepBuilder&, std::int32_t u, Stream, const std::vector<Arg>& from, std::int64_t times);
  Source from_host(StepBuilder&, std::int32_t u, Stream);
  Source with_float8(StepBuilder&, std::int32_t u, Stream);
  void copy_alone(StepBuilder&, std::int32_t u);
  std::int32_t copy_out(StepBuilder&, std::int32_t u, const std::vector<Arg>& source);
  void keep_parts(StepBuilder&, std::int32_t u);
  void leave_parts(StepBuilder&, std::int32_t u, bool last);
  std::int32_t pass_held(StepBuilder&);  // C and G wait for the copy-out; the caller frees the buffer

  Fsdp2Units& units_;
  Float8Casts float8_;
  std::int32_t held_gather_ = kNone, held_copy_out_ = kNone;  // forward: the last group's gather buffer
};

}  // namespace fsdp
