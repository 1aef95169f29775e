// Retries near the memory limit, and what they cost: the allocator stops the device, gives back what it kept, and takes
// it again.
//
// How often that happens cannot always be read from one replay, where blocks that wait for streams (fsdp1) come back at
// the same moments in every step: most such replays find a place for everything and stay there. In real steps moments
// vary.
// So steps are replayed whose times vary from one to the next: host times by 60 %, collectives by 30 %, kernels by 5 %
// (standard deviations of their logarithms; estimates). Retries of the first four of 24 steps do not count. Places in a
// step where some rank retries stop all ranks: with m retries of a rank on average and at most M, M (1 - (1 - m /
// M)^ranks).
//
// A stop takes 0.8 s, 0.4 to 1.4: 17 published runs whose replay retries in this way, on A100 with 40 and 64 GB and
// H100 with 64 GB, take so much longer per stop, and 13 others, to which nothing was fitted (docs/costs.md). It is not
// part of a prediction's step time, only of that of published runs (simulator/published).
#pragma once

#include <cstdint>

#include "planner/costs.h"
#include "planner/program.h"
#include "simulator/allocator/replay.h"
#include "simulator/records/step_time.h"

namespace fsdp {

// `tight`: as the program was replayed under the limit. With `vary` programs whose blocks wait for streams are replayed
// again with times that vary; without, and for others, `retries_per_step` is what counts.
[[nodiscard]] RetryStall retry_stall(const Program&, const CostContext&, const ReplayOptions& tight,
                                     std::int64_t retries_per_step, bool vary);

}  // namespace fsdp
