#include "planner/layout/flat.h"

#include <algorithm>
#include <string>

#include "models/units.h"

namespace fsdp {
namespace {

constexpr std::int64_t kAlignment = 16;  // bytes

std::int64_t rounded(std::int64_t value, std::int64_t multiple, const std::string& where) {
  return checked_add(value, (multiple - value % multiple) % multiple, where);
}

void flatten(UnitLayout& l, const ShardingPlan& plan, const ModelGraph& model) {
  l.flat_elements = 0;
  l.flat_aligned = plan.use_orig_params;
  if (l.params.empty()) return;
  const std::int64_t step = std::max<std::int64_t>(1, kAlignment / size_of(l.param_dtype));
  std::string where;
  for (ShardedParam& p : l.params) {
    where = "parameter " + model.parameters[static_cast<std::size_t>(p.param)].name;
    p.offset = l.flat_aligned ? rounded(l.flat_elements, step, where) : l.flat_elements;
    l.flat_elements = checked_add(p.offset, p.numel(), where);
  }
  // Ranks of the process group that the flat parameter was made for: without sharding all of them.
  const std::int64_t group = l.shards > 1 ? l.shards : plan.ranks();
  if (l.flat_aligned) l.flat_elements = rounded(l.flat_elements, group, where);
  l.shard_elements = l.flat_elements / l.shards + (l.flat_elements % l.shards != 0 ? 1 : 0);
  (void)checked_mul(checked_mul(l.shard_elements, l.shards, where), 8, where);
  const bool trained = std::any_of(l.params.begin(), l.params.end(), [](const ShardedParam& p) { return p.trainable; });
  l.reduce_elements = trained ? l.shard_elements : 0;
}

}  // namespace

void flatten_layouts(std::vector<UnitLayout>& layouts, const ShardingPlan& plan, const ModelGraph& model) {
  for (UnitLayout& l : layouts) {
    flatten(l, plan, model);
    // FSDP1 always sums, and divides by a power of two before and by the rest after: the rule of reductions that may
    // overflow.
    l.scale = gradient_scale(l.shards, plan.replicate(), DType::f16, {}, false);
  }
}

FlatRange flat_range(const UnitLayout& l, const ShardedParam& p, std::int64_t shard_rank) {
  const std::int64_t begin = shard_rank * l.shard_elements, end = begin + l.shard_elements;
  const std::int64_t from = std::max(begin, p.offset), to = std::min(end, p.offset + p.numel());
  if (from >= to) return {};
  return {from - begin, to - from, from - p.offset};
}

std::int64_t flat_local_elements(const UnitLayout& l, std::int64_t shard_rank) {
  if (!l.flat_aligned) return l.shard_elements;
  std::int64_t sum = 0;
  for (const ShardedParam& p : l.params) sum += flat_range(l, p, shard_rank).elements;
  return sum;
}

}  // namespace fsdp
