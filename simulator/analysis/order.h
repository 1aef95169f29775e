// The order in which the operations of a step start: what a prediction and a measurement are compared by.
#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "simulator/records/rows.h"

namespace fsdp {

// False for what only the host does (zero_gradients, read_loss).
[[nodiscard]] bool runs_on_a_stream(const Operation&);

// The operations of a step stream by stream, each stream in its own order. What runs on no stream is left out.
[[nodiscard]] std::vector<OrderedOperation> order_of(const Step&, const ShardingPlan&, const ModelGraph&);

// Of each operation, in host order: its index in order_of(); -1: it runs on no stream.
[[nodiscard]] std::vector<std::int32_t> issued(const Step&);

}  // namespace fsdp
