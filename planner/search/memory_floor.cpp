// A lower bound on peak memory, from three moments that every step has:
//   the optimizer runs:                   states + gradients
//   the largest unit has been gathered:   states + its gather buffer + its parameters copied out
//   a forward has ended:                  states + units kept gathered + saved activations, and from the second
//                                         micro-batch on the gradients that must not be lost
// Allocator rounding, temporaries, prefetched units and activation gradients come on top, so the replayed peak is never
// below.
#include "planner/search/memory_floor.h"

#include <algorithm>
#include <vector>

#include "models/graph/byte_total.h"
#include "models/graph/output_layer.h"
#include "models/units.h"
#include "planner/layout.h"
#include "planner/layout/optimizer_state.h"
#include "planner/search.h"
#include "planner/tensor/local_model.h"

namespace fsdp {

namespace {

constexpr std::string_view kWhere = "plan";

std::int64_t times(std::int64_t a, std::int64_t b) { return checked_mul(a, b, kWhere); }
void add(std::int64_t& sum, std::int64_t bytes) { sum = checked_add(sum, bytes, kWhere); }

// Which recomputed module each op lies in; -1: none.
std::vector<std::int32_t> regions_of(const ModelGraph& model, const PlanIds& ids) {
  std::vector<std::int32_t> regions(model.ops.size(), -1);
  for (const std::int32_t id : ids.checkpointed) {
    const Module& m = model.modules[static_cast<std::size_t>(id)];
    std::fill(regions.begin() + m.op_begin, regions.begin() + m.op_end, id);
  }
  return regions;
}

// Bytes that forward leaves behind for backward. A recomputed module keeps what flows into it from outside. An output
// layer that runs with each part of the loss comes later.
std::int64_t saved_bytes(const ModelGraph& model, const ShardingPlan& plan, const PlanIds& ids,
                         const Implementation& impl, std::int64_t sequences) {
  const Workload w{sequences, plan.seq_len, size_of(plan.param_dtype), plan.loss_chunks, plan.loop.loss_in_model};
  const std::vector<std::int32_t> region = regions_of(model, ids);
  std::vector<char> saved(model.tensors.size(), 0);
  std::vector<std::int32_t> made_in(model.tensors.size(), -1);  // region
  ByteTotal total(w);
  const std::size_t end = plan.loop.chunk_head ? static_cast<std::size_t>(chunked_head(model)) : model.ops.size();
  for (std::size_t i = 0; i < end; ++i) {
    const Op& op = model.ops[i];
    for (const std::int32_t t : op.outputs) made_in[static_cast<std::size_t>(t)] = region[i];
    if (!model.tensors[static_cast<std::size_t>(op.outputs[0])].requires_grad)
      continue;  // nothing trained has a part in it
    if (region[i] >= 0) {
      for (const std::int32_t t : op.inputs)
        saved[static_cast<std::size_t>(t)] |= made_in[static_cast<std::size_t>(t)] != region[i];
      continue;
    }
    const OpFacts f = facts(impl, op, w, model);
    for (std::size_t k = 0; k < op.inputs.size() && k < 8; ++k)
      saved[static_cast<std::size_t>(op.inputs[k])] |= (f.saved_inputs >> k) & 1;
    for (std::size_t k = 0; k < op.outputs.size() && k < 8; ++k)
      saved[static_cast<std::size_t>(op.outputs[k])] |= (f.saved_outputs >> k) & 1;
    total.add(f.saved_extra_bytes);
  }
  for (std::size_t t = 0; t < model.tensors.size(); ++t)
    if (saved[t] && model.tensors[t].kind == TensorKind::activation)
      total.add(times(elements(model.tensors[t], w), size_of(model.tensors[t].dtype.value_or(plan.param_dtype))));
  return total.bytes();
}

bool stays_gathered(const Unit& unit, const UnitLayout& layout) {
  return unit.reshard_after_forward == Reshard::no || (unit.reshard_after_forward == Reshard::automatic && layout.root);
}

}  // namespace

std::int64_t MemoryFloor::bytes() const {
  return states + std::max({gradients + fetched_states, largest_unit, forward_end()});
}

MemoryFloors::OfUnits MemoryFloors::of_units(const ShardingPlan& plan) const {
  OfUnits sums;
  MemoryFloor& floor = sums.floor;
  const DType trained = plan.kept_dtype(/*trained=*/true);
  const std::int64_t master = size_of(trained);
  const std::int64_t states = state_count(plan.optimizer);
  const bool sharded = plan.shard() > 1 && plan.dialect != Dialect::ddp;
  const std::vector<UnitLayout> layouts = unit_layouts(plan, resolve_ids(plan, model_), model_);
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    const UnitLayout& l = layouts[u];
    const std::int64_t compute = size_of(l.param_dtype), reduce = size_of(l.reduce_dtype);
    const std::int64_t whole = times(l.gathered_bytes(), l.shards);
    if (!plan.offload) {
      add(floor.states, l.shard_bytes());
      add(plan.offload_optimizer ? floor.fetched_states : floor.states,
          times(state_bytes(plan.optimizer.kind, l, 0, trained), states));
      add(floor.gradients, times(l.reduce_elements, master));
    }
    for (const ShardedParam& p : l.params)
      add(floor.states, model_.parameters[static_cast<std::size_t>(p.param)].scale_bytes);
    const Unit& switches = switches_of(plan, l, static_cast<std::int32_t>(u));
    if (switches.grad_sync.value_or(plan.grad_sync) != GradSync::last) {
      if (!plan.offload) add(sums.waiting, times(l.reduce_elements, std::min(master, reduce)));
    } else {
      for (const ShardedParam& p : l.params)
        if (p.trainable) add(sums.waiting, times(p.numel(), std::min(compute, reduce)));
    }
    if (sharded && stays_gathered(switches, l)) add(floor.gathered, whole);
    if (sharded) floor.largest_unit = std::max(floor.largest_unit, times(whole, 2));
  }
  return sums;
}

const MemoryFloors::OfUnits& MemoryFloors::known_of_units(const ShardingPlan& plan) {
  ShardingPlan units = plan;
  units.micro_batches.clear(), units.checkpointed.clear(), units.wrap.clear();
  for (const auto& [known, sums] : of_units_)
    if (known == units) return sums;
  OfUnits sums = of_units(units);
  return of_units_.emplace_back(std::move(units), sums).second;
}

std::int64_t MemoryFloors::known_saved(const ShardingPlan& plan, std::int64_t sequences) {
  Saved key{sequences, plan.seq_len, plan.loss_chunks, plan.loop.chunk_head, plan.param_dtype, plan.checkpointed};
  if (const auto known = saved_.find(key); known != saved_.end()) return known->second;
  const std::int64_t bytes = saved_bytes(model_, plan, resolve_ids(plan, model_), implementation_, sequences);
  return saved_.emplace(std::move(key), bytes).first->second;
}

MemoryFloor MemoryFloors::of(const ShardingPlan& plan) {
  if (differs_from_local(model_, plan, implementation_))
    return memory_floor(local_model(model_, plan, implementation_), plan, implementation_);
  const OfUnits& units = known_of_units(plan);
  MemoryFloor floor = units.floor;
  // The first micro-batch has nothing to lose yet; of the later ones the largest counts.
  const auto& batches = plan.micro_batches;
  floor.saved = known_saved(plan, batches.front());
  if (batches.size() == 1) return floor;
  const std::int64_t later = *std::max_element(batches.begin() + 1, batches.end());
  const std::int64_t saved = known_saved(plan, later);
  if (units.waiting + saved <= floor.saved) return floor;
  floor.waiting_gradients = units.waiting;
  floor.saved = saved;
  return floor;
}

MemoryFloor memory_floor(const ModelGraph& model, const ShardingPlan& plan, const Implementation& impl) {
  return MemoryFloors(model, impl).of(plan);
}

std::string describe(const MemoryFloor& floor) {
  std::vector<std::pair<std::int64_t, std::string>> parts = {
      {floor.states, floor.fetched_states > 0 ? "parameter shards" : "parameter and optimizer shards"}};
  const std::int64_t rest = floor.bytes() - floor.states;  // of the moment that needs most
  if (rest == floor.forward_end()) {
    parts.emplace_back(floor.saved, "saved activations");
    parts.emplace_back(floor.gathered, "units kept gathered");
    parts.emplace_back(floor.waiting_gradients, "gradients of earlier micro-batches");
  } else if (rest == floor.largest_unit) {
    parts.emplace_back(rest, "the largest unit gathered");
  } else {
    parts.emplace_back(floor.gradients, "sharded gradients");
    parts.emplace_back(floor.fetched_states, "optimizer states back from host memory");
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < parts.size() && parts[i].first > 0; ++i)
    text += (i ? ", " : "") + human(Bytes(parts[i].first)) + " of " + parts[i].second;
  return text;
}

Bytes memory_lower_bound(const ModelGraph& model, const ShardingPlan& plan, const Implementation& impl) {
  return Bytes(memory_floor(model, plan, impl).bytes());
}

}  // namespace fsdp
