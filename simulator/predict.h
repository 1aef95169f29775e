// The simulator's answer: what one plan takes of time and memory.
//
//   const Program program = lower(model, plan, implementation);
//   Prediction p = predict(program, {model, plan, implementation, cluster, costs});
#pragma once

#include <optional>

#include "models/cluster.h"
#include "planner/costs.h"
#include "planner/program.h"
#include "simulator/records/prediction.h"

namespace fsdp {

struct PredictOptions {
  std::optional<Bytes> memory_limit;  // empty: default_memory_limit of the cluster
  bool keep_timeline = true;          // false while searching: no timeline, order, critical path
};

// The GPU's usable memory less 5 %.
[[nodiscard]] Bytes default_memory_limit(const ClusterSpec&);
[[nodiscard]] Prediction predict(const Program&, const CostContext&, const PredictOptions& = {});

}  // namespace fsdp
