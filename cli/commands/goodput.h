// The flags of `simulate` about long runs, and what they make of a prediction.
#pragma once

#include <optional>

#include "cli/options.h"
#include "cli/report/goodput_report.h"
#include "simulator/records/prediction.h"

namespace fsdp::cli {

struct GoodputFlags {
  Text mtbf, cluster_mtbf, save_every, storage_bandwidth, detection, restart, warmup, spares, repair, seed;
  bool async_save = false;
};
void add_goodput_flags(const Command&, GoodputFlags&);

// Nothing without --mtbf and --cluster-mtbf. Throws InputError for flags that contradict each other or miss one.
[[nodiscard]] std::optional<GoodputAnswer> apply_goodput_flags(const GoodputFlags&, const Prediction&,
                                                               const ShardingPlan&, const Setup&);

}  // namespace fsdp::cli
