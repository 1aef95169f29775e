// Which ops, units and micro-batches of a program are alike, so that repeated layers are priced once.
#pragma once

#include <cstddef>
#include <vector>

#include "models/graph.h"
#include "planner/layout.h"
#include "planner/plan.h"

namespace fsdp {

struct ShapeClasses {
  std::vector<std::size_t> of_op, of_unit, of_batch;  // class of each graph op, unit, micro-batch: 0 .. classes - 1
  std::size_t op_classes = 0, unit_classes = 0, batch_classes = 0;
};

// Ops are alike when kind, shape, the number of inputs, outputs and parameters, and what backward has to make are
// equal; units when their parameters' sizes are.
[[nodiscard]] ShapeClasses shape_classes(const ModelGraph&, const std::vector<UnitLayout>&, const ShardingPlan&);

}  // namespace fsdp
