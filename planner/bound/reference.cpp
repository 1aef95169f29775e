#include "planner/bound/reference.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "models/input/error.h"
#include "planner/layout.h"
#include "planner/lower.h"
#include "planner/plan/check_tensor.h"
#include "planner/search/memory_floor.h"

namespace fsdp {
namespace {

// Of each module the number of its block, as blocks run; -1: of the rest.
std::vector<std::int32_t> blocks_of_modules(const ModelGraph& model) {
  std::vector<std::int32_t> of(model.modules.size(), -1);
  std::vector<std::size_t> blocks;
  for (std::size_t m = 0; m < model.modules.size(); ++m)
    if (model.modules[m].block) blocks.push_back(m);
  std::stable_sort(blocks.begin(), blocks.end(),
                   [&](auto a, auto b) { return model.modules[a].op_begin < model.modules[b].op_begin; });
  for (std::size_t b = 0; b < blocks.size(); ++b) of[blocks[b]] = static_cast<std::int32_t>(b);
  for (std::size_t m = 1; m < model.modules.size(); ++m)
    if (of[m] < 0) of[m] = of[static_cast<std::size_t>(model.modules[m].parent)];
  return of;
}

std::size_t count_of(const std::vector<std::int32_t>& blocks_of_modules) {
  return static_cast<std::size_t>(*std::max_element(blocks_of_modules.begin(), blocks_of_modules.end()) + 1);
}

struct Lowered {
  ShardingPlan plan;
  Program program;
  Demands demands;
};

// nullopt: not a legal plan.
std::optional<ShardingPlan> legal_plan(const Design& d, const std::string& checkpointing, const PricedSpace& s) {
  ShardingPlan plan = plan_of(d, s.space, checkpointing);
  try {
    check_split(plan, *s.space.model, s.space.digest, s.local);
  } catch (const InputError&) {
    return std::nullopt;
  }
  return plan;
}

// nullopt: not a legal plan.
std::optional<Lowered> lowered(const Design& d, const std::string& checkpointing, const PricedSpace& s) {
  std::optional<ShardingPlan> plan = legal_plan(d, checkpointing, s);
  if (!plan) return std::nullopt;
  Lowered l;
  l.plan = std::move(*plan);
  l.program = lower(s.local, l.plan, s.implementation);
  l.demands = demands_of(l.program.steady_step, l.program, {s.local, l.plan, s.implementation, s.cluster, s.costs});
  return l;
}

// Memory of one step as its operations make it, by part.
//   saved      of blocks: what is left for backward when the loss's backward begins. Of the rest: the most that its own
//              operations hold at a time from then until the first block's backward; the blocks' is there all the while
//   backward   of the last block: the most that it and the rest hold while its backward runs, which is the first
// Gradients of parameters are left out: when they go depends on the units.
template <class PartOf>
void add_memory(const Lowered& l, const PartOf& part_of, ComputeParts& parts) {
  if (parts.blocks.empty()) return;
  const Step& step = l.program.steady_step;
  ComputeParts::Part* const last = &parts.blocks.back();
  std::vector<ComputeParts::Part*> made_by(l.program.buffers.size(), nullptr);
  std::int64_t of_rest = 0, of_last = 0;
  enum class Phase : std::uint8_t { forward, loss, last_block } phase = Phase::forward;
  for (const Operation& op : step.ops) {
    ComputeParts::Part* const part = is_kernel(op.action) ? &part_of(op) : nullptr;
    const bool back = op.action == Action::backward || op.action == Action::recompute;
    if (back && part != &parts.rest && part != last) break;
    if (back) phase = part == last ? Phase::last_block : phase == Phase::forward ? Phase::loss : phase;
    const auto count = [&](std::int32_t b, ComputeParts::Part* by, std::int64_t sign) {
      if (by == nullptr) return;
      const std::int64_t bytes = sign * l.program.buffers[static_cast<std::size_t>(b)].bytes;
      if (by == &parts.rest) of_rest += bytes;
      if (by == last) of_last += bytes;
      if (by != &parts.rest && phase != Phase::last_block) by->saved += bytes;
      if (phase == Phase::loss) parts.rest.saved = std::max(parts.rest.saved, of_rest);
      if (phase == Phase::last_block) last->backward = std::max(last->backward, of_rest + of_last);
    };
    memory_events(
        step, op,
        [&](std::int32_t b) {
          const Buffer& buffer = l.program.buffers[static_cast<std::size_t>(b)];
          if (buffer.host || buffer.kind == BufferKind::gradient) return;
          made_by[static_cast<std::size_t>(b)] = part;
          count(b, part, 1);
        },
        [&](std::int32_t b) {
          count(b, made_by[static_cast<std::size_t>(b)], -1);
          made_by[static_cast<std::size_t>(b)] = nullptr;
        });
  }
}

// One unit's operations, per gather, per reduction and per step.
struct UnitSums {
  double all_gather = 0, reduce_scatter = 0, all_reduce = 0;
  std::int64_t gathers = 0, copies_out = 0, reductions = 0, all_reduces = 0;
  KernelLoad after_gather, before_reduce, each_step;
};

// Collectives much shorter than the longest of their kind are left out: they take little of the machine, and what is
// held is the least of all. A bound may leave out what it likes.
bool counts(const Demand& d, double longest) { return 4 * d.alone.count() >= longest; }

enum class OfUnit : std::uint8_t { gather, reduction, all_reduce, other };
OfUnit kind_of(const Operation& op) {
  if (op.unit < 0 || op.host_only || op.comm == Communicator::tensor) return OfUnit::other;
  if (op.action == Action::all_gather) return OfUnit::gather;
  if (op.action == Action::reduce_scatter && op.comm != Communicator::none) return OfUnit::reduction;
  if (op.action == Action::all_reduce && op.comm == Communicator::replicate) return OfUnit::all_reduce;
  return OfUnit::other;
}

std::vector<UnitSums> unit_sums(const Lowered& l, CollectiveShares& held) {
  std::vector<UnitSums> sums(l.plan.units.size());
  std::array<CommunicatorLoad, 3> loads;
  std::array<double, 3> longest{};
  for (std::size_t i = 0; i < l.demands.size(); ++i)
    if (const auto kind = static_cast<std::size_t>(kind_of(l.program.steady_step.ops[i])); kind < longest.size())
      longest[kind] = std::max(longest[kind], l.demands[i].alone.count());
  const Step& step = l.program.steady_step;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    if (op.unit < 0 || op.host_only) continue;
    UnitSums& u = sums[static_cast<std::size_t>(op.unit)];
    const Demand& d = l.demands[i];
    const OfUnit kind = kind_of(op);
    if (const auto k = static_cast<std::size_t>(kind); k < loads.size() && counts(d, longest[k])) {
      loads[k].add(d);
      if (kind == OfUnit::gather) u.all_gather += d.alone.count(), ++u.gathers;
      if (kind == OfUnit::reduction) u.reduce_scatter += d.alone.count(), ++u.reductions;
      if (kind == OfUnit::all_reduce) u.all_reduce += d.alone.count(), ++u.all_reduces;
    }
    if (op.stream != Stream::compute) continue;
    if (op.action == Action::gather_copy_out) u.after_gather.add(d), ++u.copies_out;
    if (op.action == Action::scatter_copy_in) u.before_reduce.add(d);
    if (op.action == Action::optimizer || op.action == Action::fetch_state || op.action == Action::offload_state)
      u.each_step.add(d);
  }
  held = {loads[0].held, loads[1].held, loads[2].held};
  return sums;
}

ShardingParts::Part part_of(const UnitSums& u, const UnitLayout& layout, const ShardingPlan& plan, double share) {
  const auto part = [share](std::int64_t bytes) {
    return static_cast<std::int64_t>(static_cast<double>(bytes) * share);
  };
  ShardingParts::Part p;
  const auto each = [share](double seconds, std::int64_t n) {
    return n > 0 ? seconds / static_cast<double>(n) * share : 0;
  };
  p.all_gather = each(u.all_gather, u.gathers);
  p.reduce_scatter = each(u.reduce_scatter, u.reductions);
  p.all_reduce = each(u.all_reduce, u.all_reduces);
  if (u.copies_out > 0) p.after_gather.add(u.after_gather, share / static_cast<double>(u.copies_out));
  p.before_reduce.add(u.before_reduce, share);
  p.each_step.add(u.each_step, share);
  const std::int64_t compute = size_of(plan.param_dtype), reduce = size_of(plan.reduce_dtype),
                     master = size_of(plan.kept_dtype(/*trained=*/true));
  std::int64_t trained = 0;
  for (const ShardedParam& s : layout.params) trained += s.trainable ? s.numel() : 0;
  if (layout.shards > 1) p.whole = part(layout.gathered_bytes() * layout.shards);
  p.gradient = part(trained * std::min(compute, reduce));
  if (!plan.offload) p.sharded_gradient = part(layout.reduce_elements * std::min(master, reduce));
  return p;
}

void add(ShardingParts::Part& sum, const ShardingParts::Part& p) {
  sum.all_gather += p.all_gather;
  sum.reduce_scatter += p.reduce_scatter;
  sum.all_reduce += p.all_reduce;
  sum.after_gather.add(p.after_gather);
  sum.before_reduce.add(p.before_reduce);
  sum.each_step.add(p.each_step);
  sum.whole += p.whole;
  sum.gradient += p.gradient;
  sum.sharded_gradient += p.sharded_gradient;
}

// The unit that holds the embedding, where the first op is one; -1: there is none.
std::int32_t first_unit(const Lowered& l, const ModelGraph& model) {
  const Op& first = model.ops.front();
  if (first.kind != OpKind::embedding) return -1;
  return unit_of_parameters(l.program.layouts, model)[static_cast<std::size_t>(first.params.front())];
}

Design gathered_twice(std::int64_t replicate, std::size_t grouping, const PricedSpace& s) {
  Design d = first_design(s.space);
  d.grouping = grouping;
  d.replicate = replicate;
  d.batch = {1, 1};
  d.reshard = Reshard::yes;
  return d;
}

// What the units of a design cost; false: it is no legal plan.
bool measure_units(const Design& d, const PricedSpace& s, ShardingParts& parts) {
  const auto l = lowered(d, s.space.ladders.front().front(), s);
  if (!l) return false;
  const std::vector<std::int32_t> block = blocks_of_modules(s.local);
  const std::size_t blocks = count_of(block);
  const std::vector<UnitSums> sums = unit_sums(*l, parts.held);
  parts.blocks.resize(blocks);
  for (std::size_t u = 0; u < sums.size(); ++u) {
    const auto& modules = l->plan.units[u].modules;
    const auto share = 1 / static_cast<double>(modules.size());
    const UnitLayout& layout = l->program.layouts[u];
    for (const std::string& name : modules) {
      const std::int32_t b = block[static_cast<std::size_t>(s.local.find_module(name))];
      add(b >= 0 ? parts.blocks[static_cast<std::size_t>(b)] : parts.rest, part_of(sums[u], layout, l->plan, share));
      if (b + 1 != static_cast<std::int32_t>(blocks) || layout.shards == 1) continue;
      const std::int64_t whole = layout.gathered_bytes() * layout.shards;
      parts.last_unit = parts.last_unit == 0 ? whole : std::min(parts.last_unit, whole);
    }
  }
  const std::int32_t first = first_unit(*l, s.local);
  for (std::size_t i = 0; first >= 0 && i < l->demands.size(); ++i) {
    const Operation& op = l->program.steady_step.ops[i];
    if (op.unit != first) continue;
    const OfUnit kind = kind_of(op);
    if (kind == OfUnit::gather) parts.first_gather = l->demands[i].alone.count();
    if (kind == OfUnit::reduction) parts.last_reduction = l->demands[i].alone.count();
    if (kind == OfUnit::all_reduce) parts.last_all_reduce = l->demands[i].alone.count();
  }
  return true;
}

}  // namespace

ComputeParts compute_parts(const Design& design, const std::string& checkpointing, const PricedSpace& s) {
  ComputeParts parts;
  const std::vector<std::int32_t> block_of = blocks_of_modules(s.local);
  const auto l = lowered(design, checkpointing, s);
  if (!l) return parts;
  parts.blocks.resize(count_of(block_of));
  const auto of = [&](const Operation& op) -> ComputeParts::Part& {
    const std::int32_t m = op.graph_op >= 0 ? s.local.ops[static_cast<std::size_t>(op.graph_op)].module : kNone;
    const std::int32_t b = m >= 0 ? block_of[static_cast<std::size_t>(m)] : -1;
    return b >= 0 ? parts.blocks[static_cast<std::size_t>(b)] : parts.rest;
  };
  const Step& step = l->program.steady_step;
  const std::vector<char> stops = stops_compute(step);
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    if (stops[i] && step.ops[i].graph_op >= 0) of(step.ops[i]).kernels.add_standstill(l->demands[i].alone.count());
    const bool computes = is_kernel(step.ops[i].action) || step.ops[i].action == Action::update_metrics;
    if (computes && step.ops[i].stream == Stream::compute) of(step.ops[i]).kernels.add(l->demands[i]);
  }
  add_memory(*l, of, parts);
  return parts;
}

ShardingParts sharding_parts(std::int64_t replicate, std::size_t grouping, Bytes limit, const PricedSpace& s,
                             const FewUnits* few) {
  ShardingParts parts;
  const Design d = gathered_twice(replicate, grouping, s);
  const auto plan = legal_plan(d, s.space.ladders.front().front(), s);
  if (!plan) return parts;
  const MemoryFloor floor = MemoryFloors(s.local, s.implementation).of_states(*plan);
  parts.possible =
      floor.states + std::max(floor.gradients, floor.largest_unit) + s.cluster.fixed_memory.count() <= limit.count();
  parts.states = floor.states;
  parts.gradients = floor.gradients;
  if (!parts.possible) return parts;
  if (few && measure_units(gathered_twice(replicate, 0, few->space), few->space, parts)) {
    const std::vector<ShardingParts::Part> measured = std::exchange(parts.blocks, {});
    for (const std::size_t b : few->stands_for) parts.blocks.push_back(measured[b]);
    return parts;
  }
  (void)measure_units(d, s, parts);
  return parts;
}

}  // namespace fsdp
