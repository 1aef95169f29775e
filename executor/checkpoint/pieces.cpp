#include "executor/checkpoint/pieces.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "executor/data/tensor_slab.h"
#include "models/input/error.h"
#include "planner/layout/flat.h"

namespace fsdp {
namespace {

struct Place {
  std::int64_t shard = 0, replica = 0, replicas = 1, tensor = 0;
};
Place place_of(const UnitLayout& layout, const ShardingPlan& plan, std::int64_t rank) {
  return {layout.shard_index(plan, rank), rank / (layout.shards * plan.tensor()), layout.replicas,
          rank % plan.tensor()};
}

// What every tensor rank holds, the first of them writes.
void add_unit(const UnitLayout& layout, std::int32_t unit, const ModelGraph& model, const ShardingPlan& plan,
              const std::vector<TensorPart>& parts, const Place& place, std::vector<Piece>& pieces) {
  const std::int64_t shard = place.shard;
  const std::int64_t width = size_of(plan.master_dtype);
  std::int64_t state = 0;  // states lie densely: layout.h
  for (const ShardedParam& p : layout.params) {
    const std::int64_t elements = p.local_elements(shard);
    if (elements == 0) continue;
    const TensorPart& part = parts[static_cast<std::size_t>(p.param)];
    const bool writes = place.tensor == 0 || part.split();
    const Box box = box_of(whole_slab(part, {p.dim, p.local_row_begin(shard), p.local_rows(shard)},
                                      model.parameters[static_cast<std::size_t>(p.param)].shape, place.tensor),
                           model.parameters[static_cast<std::size_t>(p.param)].shape);
    if (writes) pieces.push_back({unit, p.param, StatePart::parameter, box, p.offset * width, elements * width});
    if (!p.trainable) continue;
    for (std::size_t k = 0; k < state_names(plan.optimizer).size() && writes; ++k)
      pieces.push_back({unit, p.param, kStateParts[k], box, state * width, elements * width});
    state += elements;
  }
}

// A flat shard cuts through parameters: of each, the boxes that this rank's elements are.
void add_flat_unit(const UnitLayout& layout, std::int32_t unit, const ModelGraph& model, const ShardingPlan& plan,
                   std::int64_t shard, std::vector<Piece>& pieces) {
  const std::int64_t width = size_of(plan.master_dtype);
  std::int64_t dense = 0;
  for (const ShardedParam& p : layout.params) {
    const FlatRange r = flat_range(layout, p, shard);
    if (r.elements == 0) continue;
    const std::vector<Box> boxes =
        boxes_of_range(r.offset_in_param, r.elements, model.parameters[static_cast<std::size_t>(p.param)].shape);
    const auto add = [&](StatePart part, std::int64_t begin) {
      for (const Box& box : boxes) {
        pieces.push_back({unit, p.param, part, box, begin * width, box.volume() * width});
        begin += box.volume();
      }
    };
    add(StatePart::parameter, r.offset_in_shard);
    for (std::size_t k = 0; k < state_names(plan.optimizer).size() && p.trainable; ++k)
      add(kStateParts[k], layout.flat_aligned ? dense : r.offset_in_shard);
    dense += r.elements;
  }
}

// Of the units on one mesh: the plan's, or that of units with their own.
std::vector<Piece> pieces_of(const ModelGraph& model, const ShardingPlan& plan, const std::vector<UnitLayout>& layouts,
                             std::int64_t rank, bool own_mesh) {
  const std::vector<TensorPart> parts = tensor_parts(model, plan);
  std::vector<Piece> all;
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    if (layouts[u].own_mesh != own_mesh) continue;
    const auto unit = static_cast<std::int32_t>(u);
    const Place place = place_of(layouts[u], plan, rank);
    if (layouts[u].flat_elements > 0) add_flat_unit(layouts[u], unit, model, plan, place.shard, all);
    else add_unit(layouts[u], unit, model, plan, parts, place, all);
  }
  return all;
}

// The replica that takes each piece.
std::vector<std::int64_t> dealt(const std::vector<Piece>& pieces, std::int64_t replicas) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return pieces[a].bytes > pieces[b].bytes; });
  using Load = std::pair<std::int64_t, std::int64_t>;  // bytes, replica
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (std::int64_t r = 0; r < replicas; ++r) least.push({0, r});
  std::vector<std::int64_t> takers(pieces.size());
  for (const std::size_t i : order) {
    const auto [bytes, replica] = least.top();
    least.pop();
    takers[i] = replica;
    least.push({bytes + pieces[i].bytes, replica});
  }
  return takers;
}

}  // namespace

void check_savable(const ShardingPlan& plan) {
  const auto refuse = [](const char* what) {
    throw InputError(setting("save"), std::string("checkpoints of ") + what + " are not written yet",
                     "run it without --save");
  };
  if (!plan.ignored.empty()) refuse("plans with ignored parameters");
  if (facts_of(plan.optimizer.kind).eight_bit_block > 0) refuse("8-bit optimizers");
}

std::vector<Piece> pieces_to_write(const ModelGraph& model, const ShardingPlan& plan,
                                   const std::vector<UnitLayout>& layouts, std::int64_t rank) {
  std::vector<Piece> result;
  for (const bool own_mesh : {false, true}) {
    const auto layout =
        std::find_if(layouts.begin(), layouts.end(), [&](const UnitLayout& l) { return l.own_mesh == own_mesh; });
    if (layout == layouts.end()) continue;
    const Place place = place_of(*layout, plan, rank);
    std::vector<Piece> all = pieces_of(model, plan, layouts, rank, own_mesh);
    const std::vector<std::int64_t> takers = dealt(all, place.replicas);
    for (std::size_t i = 0; i < all.size(); ++i)
      if (takers[i] == place.replica) result.push_back(std::move(all[i]));
  }
  return result;
}

namespace {

// Does a flat parameter have gaps between its parameters? Then the first shard may hold less than others.
bool has_gaps(const std::vector<UnitLayout>& layouts) {
  return std::any_of(layouts.begin(), layouts.end(), [](const UnitLayout& l) {
    return l.flat_elements > 0 && !l.params.empty() && l.params.back().offset + l.params.back().numel() != l.numel;
  });
}

std::int64_t most_bytes_of_shard(const ModelGraph& model, const ShardingPlan& plan,
                                 const std::vector<UnitLayout>& layouts, std::int64_t rank) {
  const std::vector<Piece> all = pieces_of(model, plan, layouts, rank, /*own_mesh=*/false);
  const auto replicas = static_cast<std::size_t>(layouts.back().replicas);
  const std::vector<std::int64_t> takers = dealt(all, layouts.back().replicas);
  std::vector<std::int64_t> bytes(replicas, 0);
  for (std::size_t i = 0; i < all.size(); ++i) bytes[static_cast<std::size_t>(takers[i])] += all[i].bytes;
  return *std::max_element(bytes.begin(), bytes.end());
}

}  // namespace

// Ranks of the first shard hold as much as any others, but for gaps: elements are dealt out in equal chunks, the last
// ones short.
std::int64_t most_bytes_of_a_rank(const ModelGraph& model, const ShardingPlan& plan,
                                  const std::vector<UnitLayout>& layouts) {
  std::int64_t most = 0;
  if (plan.own_shard() > 0) {
    for (std::int64_t rank = 0; rank < plan.ranks(); ++rank) {
      std::int64_t bytes = 0;
      for (const Piece& piece : pieces_to_write(model, plan, layouts, rank)) bytes += piece.bytes;
      most = std::max(most, bytes);
    }
    return most;
  }
  for (std::int64_t s = 0; s < (has_gaps(layouts) ? plan.shard() : 1); ++s)
    most = std::max(most, most_bytes_of_shard(model, plan, layouts, s * plan.tensor()));
  return most;
}

}  // namespace fsdp
