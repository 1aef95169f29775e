// Predictions of a plan that is resolved and lowered for this one.
#pragma once

#include "planner/job.h"
#include "simulator/predict.h"

namespace fsdp::testing {

inline Prediction predict(const CostContext& c, const PredictOptions& options = {}) {
  Programs programs(resolve(c.model, c.plan, c.implementation, c.cluster));
  return fsdp::predict(programs, c.costs, options);
}

}  // namespace fsdp::testing
