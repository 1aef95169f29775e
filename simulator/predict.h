// The simulator's answer: what one plan takes of time and memory.
//
//   Programs programs(resolve(model, plan, implementation, cluster));   // planner/job.h
//   Prediction p = predict(programs, costs);
#pragma once

#include <optional>

#include "models/cluster.h"
#include "planner/costs.h"
#include "planner/job.h"
#include "simulator/records/prediction.h"

namespace fsdp {

struct PredictOptions {
  std::optional<Bytes> memory_limit;  // empty: default_memory_limit of the cluster
  Bytes reserve{};                    // what others take on the device: out of memory comes sooner
  bool keep_timeline = true;          // false while searching: no timeline, order, critical path
  bool memory = true;                 // false: the step's time and where it goes, and nothing else
  bool tight = true;                  // false: whether a plan that does not fit is tight is not asked
};

// What of a GPU's usable memory is not for the plan.
struct MemoryBudget {
  double headroom = 0.05;  // this part of it stays free
  Bytes reserve{};         // what others take on the device
};
// The GPU's usable memory less both; zero where they leave nothing.
[[nodiscard]] Bytes memory_limit(const ClusterSpec&, const MemoryBudget&);
[[nodiscard]] Bytes default_memory_limit(const ClusterSpec&);  // less the default head room
[[nodiscard]] Prediction predict(Programs&, const Costs&, const PredictOptions& = {});
// The same of the first rank's program alone, as searches ask it: without a timeline, whatever the options say.
[[nodiscard]] Prediction predict(const Program&, const CostContext&, const PredictOptions&);

}  // namespace fsdp
