#include "executor/checkpoint/pieces.h"

#include <algorithm>
#include <numeric>

#include "models/input/error.h"

namespace fsdp {
namespace {

struct Place {
  std::int64_t shard = 0, replica = 0, replicas = 1;
};
Place place_of(const ShardingPlan& plan, std::int64_t rank) {
  if (plan.dialect == Dialect::ddp) return {0, rank, plan.ranks()};
  return {rank % plan.shard(), rank / plan.shard(), plan.replicate()};
}

void add_unit(const UnitLayout& layout, std::int32_t unit, const ModelGraph& model, const ShardingPlan& plan,
              std::int64_t shard, std::vector<Piece>& pieces) {
  const std::int64_t width = size_of(plan.master_dtype);
  std::int64_t moment = 0;  // moments lie densely: layout.h
  for (const ShardedParam& p : layout.params) {
    const std::int64_t elements = p.local_elements(shard);
    if (elements == 0) continue;
    const Box box = box_of({p.dim, p.local_row_begin(shard), p.local_rows(shard)},
                           model.parameters[static_cast<std::size_t>(p.param)].shape);
    pieces.push_back({unit, p.param, StatePart::parameter, box, p.offset * width, elements * width});
    if (!p.trainable || plan.optimizer.kind != OptimizerKind::adamw) continue;
    for (const StatePart part : {StatePart::first_moment, StatePart::second_moment})
      pieces.push_back({unit, p.param, part, box, moment * width, elements * width});
    moment += elements;
  }
}

}  // namespace

void check_savable(const ShardingPlan& plan) {
  const auto refuse = [](const char* what) {
    throw InputError(setting("save"), std::string("checkpoints of ") + what + " are not written yet",
                     "run it without --save, or plan it with fsdp2");
  };
  if (plan.dialect == Dialect::fsdp1) refuse("dialect fsdp1");
  if (!plan.ignored.empty()) refuse("plans with ignored parameters");
}

std::vector<Piece> pieces_to_write(const ModelGraph& model, const ShardingPlan& plan,
                                   const std::vector<UnitLayout>& layouts, std::int64_t rank) {
  const Place place = place_of(plan, rank);
  std::vector<Piece> all;
  for (std::size_t u = 0; u < layouts.size(); ++u)
    add_unit(layouts[u], static_cast<std::int32_t>(u), model, plan, place.shard, all);
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return all[a].bytes > all[b].bytes; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(place.replicas), 0);
  std::vector<char> mine(all.size(), 0);
  for (const std::size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += all[i].bytes;
    mine[i] = least - load.begin() == place.replica ? 1 : 0;
  }
  std::vector<Piece> result;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (mine[i] != 0) result.push_back(std::move(all[i]));
  return result;
}

}  // namespace fsdp
