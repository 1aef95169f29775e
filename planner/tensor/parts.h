// Where the part of a parameter that one tensor rank holds lies in the whole parameter.
#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// Of one parameter: the dimension that is split in equal parts, one per rank in their order; kNone: every rank holds
// it whole.
struct TensorPart {
  std::int64_t dim = kNone, ranks = 1;
  [[nodiscard]] bool split() const { return dim >= 0; }
  [[nodiscard]] std::int64_t whole_numel(const Parameter& part) const {
    return split() ? part.numel() * ranks : part.numel();
  }
  // Rows [begin, begin + rows) of dimension 0 of the part of rank `member`: calls f(first, count) with the runs of
  // elements of the whole parameter that they are, in their order.
  template <class F>
  void for_each_run(const Parameter& part, std::int64_t member, std::int64_t begin, std::int64_t rows,
                    const F& f) const {
    const std::int64_t height = part.shape.empty() ? 1 : part.shape[0];
    if (height == 0 || rows <= 0) return;
    const std::int64_t row = part.numel() / height;
    if (dim <= 0) return f((split() ? member * height + begin : begin) * row, rows * row);
    for (std::int64_t r = begin; r < begin + rows; ++r) f((r * ranks + member) * row, row);
  }
};

// By parameter of a model that split_over_tensor has made. A parameter is split along dimension 0, or is a matrix.
[[nodiscard]] std::vector<TensorPart> tensor_parts(const ModelGraph&, const ShardingPlan&);

}  // namespace fsdp
