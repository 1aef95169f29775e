#include "simulator/analysis/order.h"

#include "planner/program/describe.h"

namespace fsdp {

bool runs_on_a_stream(const Operation& op) { return !op.host_only && op.action != Action::read_loss; }

std::vector<OrderedOperation> order_of(const Step& step, const ShardingPlan& plan, const ModelGraph& model) {
  std::vector<OrderedOperation> order;
  order.reserve(step.ops.size());
  for (int s = 0; s < kStreams; ++s) {
    for (const Operation& op : step.ops)
      if (static_cast<int>(op.stream) == s && runs_on_a_stream(op))
        order.push_back({op.stream, op.action, describe_object(op, plan, model)});
  }
  return order;
}

std::vector<std::int32_t> issued(const Step& step) {
  std::vector<std::int32_t> positions(step.ops.size(), -1);
  std::int32_t next = 0;
  for (int s = 0; s < kStreams; ++s) {
    for (std::size_t i = 0; i < step.ops.size(); ++i)
      if (static_cast<int>(step.ops[i].stream) == s && runs_on_a_stream(step.ops[i])) positions[i] = next++;
  }
  return positions;
}

}  // namespace fsdp
