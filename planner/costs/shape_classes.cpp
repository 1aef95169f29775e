#include "planner/costs/shape_classes.h"

#include <algorithm>

#include "planner/costs/kernels.h"

namespace fsdp {

namespace {

struct OpInModel {
  const Op& op;
  Gradients needed;
};

bool alike(const OpInModel& x, const OpInModel& y) {
  const Op &a = x.op, &b = y.op;
  return x.needed == y.needed && a.kind == b.kind && a.inputs.size() == b.inputs.size() &&
         a.outputs.size() == b.outputs.size() && a.params.size() == b.params.size() && a.shape == b.shape;
}

bool alike(const UnitLayout& a, const UnitLayout& b) {
  return a.shards == b.shards && a.shard_elements == b.shard_elements && a.reduce_elements == b.reduce_elements &&
         a.numel == b.numel && a.params.size() == b.params.size() && a.float8_elements() == b.float8_elements() &&
         a.cast_elements() == b.cast_elements() &&
         a.param_dtype == b.param_dtype && a.reduce_dtype == b.reduce_dtype;
}

bool alike(std::int64_t a, std::int64_t b) { return a == b; }

// A model has a few dozen classes at most, and the newest is the likeliest: comparing with each beats a hash table.
template <class T>
std::size_t classify(const std::vector<T>& values, std::vector<std::size_t>& of) {
  std::vector<const T*> found;
  of.reserve(values.size());
  for (const T& v : values) {
    auto it = std::find_if(found.begin(), found.end(), [&](const T* f) { return alike(*f, v); });
    if (it == found.end()) it = found.insert(found.end(), &v);
    of.push_back(static_cast<std::size_t>(it - found.begin()));
  }
  return found.size();
}

}  // namespace

ShapeClasses shape_classes(const ModelGraph& model, const std::vector<UnitLayout>& units, const ShardingPlan& plan) {
  ShapeClasses c;
  std::vector<OpInModel> ops;
  ops.reserve(model.ops.size());
  for (const Op& op : model.ops) ops.push_back({op, needed_gradients(op, model)});
  c.op_classes = classify(ops, c.of_op);
  c.unit_classes = classify(units, c.of_unit);
  c.batch_classes = classify(plan.micro_batches, c.of_batch);
  return c;
}

}  // namespace fsdp
