#include "planner/layout/unit_order.h"

#include <algorithm>

#include "models/index.h"

namespace fsdp {
namespace {

std::vector<std::int32_t> units_with_hooks(const std::vector<UnitLayout>& layouts) {
  std::vector<std::int32_t> units;
  for (std::size_t u = 0; u < layouts.size(); ++u)
    if (layouts[u].group_of < 0) units.push_back(static_cast<std::int32_t>(u));
  return units;
}

}  // namespace

std::vector<std::int32_t> execution_order(const std::vector<UnitLayout>& layouts) {
  std::vector<std::int32_t> order = units_with_hooks(layouts);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const UnitLayout &x = layouts[at(a)], &y = layouts[at(b)];
    if (x.root_of != y.root_of) return layouts[at(x.root_of)].op_begin < layouts[at(y.root_of)].op_begin;
    if (x.root != y.root) return x.root;
    if (x.op_begin != y.op_begin) return x.op_begin < y.op_begin;
    return x.op_end != y.op_end ? x.op_end > y.op_end : a > b;  // the plan lists inner before outer
  });
  return order;
}

std::vector<std::int32_t> order_of_ends(const std::vector<UnitLayout>& layouts) {
  std::vector<std::int32_t> order = units_with_hooks(layouts);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const UnitLayout &x = layouts[at(a)], &y = layouts[at(b)];
    if (x.root_of != y.root_of) return layouts[at(x.root_of)].op_end < layouts[at(y.root_of)].op_end;
    if (x.root != y.root) return y.root;
    return x.op_end != y.op_end ? x.op_end < y.op_end : a < b;
  });
  return order;
}

}  // namespace fsdp
