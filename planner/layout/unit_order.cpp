#include "planner/layout/unit_order.h"

#include <algorithm>
#include <numeric>

#include "models/index.h"

namespace fsdp {

std::vector<std::int32_t> execution_order(const std::vector<UnitLayout>& layouts) {
  std::vector<std::int32_t> order(layouts.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const UnitLayout &x = layouts[at(a)], &y = layouts[at(b)];
    if (x.root != y.root) return x.root;
    if (x.op_begin != y.op_begin) return x.op_begin < y.op_begin;
    return x.op_end != y.op_end ? x.op_end > y.op_end : a > b;  // the plan lists inner before outer
  });
  return order;
}

std::vector<std::int32_t> order_of_ends(const std::vector<UnitLayout>& layouts) {
  std::vector<std::int32_t> order(layouts.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const UnitLayout &x = layouts[at(a)], &y = layouts[at(b)];
    if (x.root != y.root) return y.root;
    return x.op_end != y.op_end ? x.op_end < y.op_end : a < b;
  });
  return order;
}

}  // namespace fsdp
