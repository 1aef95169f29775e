// Shared by the parts of the `fsdp2` dialect: the state of every unit, and the making of a unit's buffers and
// operations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "models/index.h"
#include "planner/layout/unit_order.h"
#include "planner/lowering/dialect.h"

namespace fsdp {

struct Fsdp2Unit {
  bool reshard_after_forward = true;
  // Ranks that keep the parameters together after forward; 0: resharded over all of W, or kept whole.
  std::int64_t small_group = 0;
  bool gathered = false;               // unsharded parameters are live
  bool on_compute = false;             // the pending one was copied in on D (with a handle)
  bool pending = false;                // an all-gather was issued and not yet waited for
  bool kept = false;                   // sharded over the small group
  std::int32_t reshard_event = kNone;  // the operation that made the kept parts; the next all-gather waits for it
  std::int32_t gather = kNone, gather_op = kNone;
  // Per parameter of the unit; kNone: not live. `waiting`: what autograd has of a parameter used more than once, while
  // a gradient of earlier micro-batches lies beside it.
  // `old_shards`: parts kept after a forward whose backward did not gather them; `resting_shards`: the same from step
  // to step.
  std::vector<std::int32_t> full, kept_shards, old_shards, resting_shards, gradient, waiting, accumulator;
  std::vector<int> uses;  // per parameter: gradients that autograd still adds up in this micro-batch
  std::int32_t shard = kNone, sharded_gradient = kNone,
               partial = kNone;         // buffers; partial: HSDP sum of reduce-scatter outputs
  bool has_sharded_gradient = false;    // live in this step
  bool in_backward = false;             // pre-backward has run in this micro-batch
  bool backward_done = false;           // and post-backward
  bool sync = true, all_reduce = true;  // in this backward
  bool last = true;                     // the unit's last backward in the step
  std::int32_t post_reduce_op = kNone;  // last operation of this unit's reduction in this step
};

class Fsdp2Units {
 public:
  explicit Fsdp2Units(const LoweringContext& context)
      : c(context),
        execution_order(fsdp::execution_order(context.program.layouts)),
        units_(context.program.layouts.size()),
        groups_(units_.size()) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const std::size_t n = layout(static_cast<std::int32_t>(u)).params.size();
      for (auto* per_param : {&units_[u].full, &units_[u].kept_shards, &units_[u].old_shards, &units_[u].resting_shards,
                              &units_[u].gradient, &units_[u].waiting, &units_[u].accumulator})
        per_param->assign(n, kNone);
      units_[u].uses.assign(n, 0);
    }
    collect_groups();
    for (std::int32_t u : execution_order)
      forward_order.insert(forward_order.end(), groups(u).begin(), groups(u).end());
    states = execution_order;
    std::erase_if(states, [&](std::int32_t u) { return groups(u).empty(); });
    const auto first = [&](std::int32_t u) {
      const auto& modules = c.ids.units[at(u)];
      return modules.empty() ? kNone : *std::min_element(modules.begin(), modules.end());
    };
    std::stable_sort(states.begin(), states.end(), [&](std::int32_t a, std::int32_t b) { return first(a) < first(b); });
    for (std::int32_t u : states) module_order.insert(module_order.end(), groups(u).begin(), groups(u).end());
  }

  [[nodiscard]] Fsdp2Unit& operator[](std::int32_t u) { return units_[at(u)]; }
  [[nodiscard]] const Fsdp2Unit& operator[](std::int32_t u) const { return units_[at(u)]; }
  [[nodiscard]] std::vector<Fsdp2Unit>& all() { return units_; }
  [[nodiscard]] const UnitLayout& layout(std::int32_t u) const { return c.program.layouts[at(u)]; }
  // The groups of parameters that the hooks of a unit gather and reduce, in the order of their first parameters: that
  // of the unit itself, unless it has no parameters, and those of other meshes.
  [[nodiscard]] const std::vector<std::int32_t>& groups(std::int32_t u) const { return groups_[at(u)]; }
  [[nodiscard]] std::int32_t state_of(std::int32_t u) const { return layout(u).group_of >= 0 ? layout(u).group_of : u; }
  [[nodiscard]] std::int32_t root_of(std::int32_t u) const { return layout(u).root_of; }
  [[nodiscard]] const Unit& switches(std::int32_t u) const { return switches_of(c.plan, layout(u), u); }

  [[nodiscard]] bool hsdp(std::int32_t u) const { return layout(u).replicas > 1; }
  // What differs between releases of PyTorch; docs/fsdp-order.md, "Releases".
  [[nodiscard]] bool before(int minor) const { return c.plan.torch.before(2, minor); }
  // Is a group of one rank gathered without a collective? Since PyTorch 2.9.
  [[nodiscard]] bool copies_alone(std::int32_t u) const { return layout(u).shards == 1 && !c.plan.torch.before(2, 9); }
  [[nodiscard]] DType param_dtype(std::int32_t u) const { return layout(u).param_dtype; }
  [[nodiscard]] DType reduce_dtype(std::int32_t u) const { return layout(u).reduce_dtype; }
  [[nodiscard]] bool casts_shards(std::int32_t u) const { return layout(u).cast_elements() > 0; }
  [[nodiscard]] std::int64_t shard_rank(std::int32_t u) const { return layout(u).shard_index(c.plan, c.program.rank); }

  [[nodiscard]] Operation op(Action action, Stream stream, std::int32_t unit) const {
    return operation(action, stream, unit, micro_batch);
  }
  [[nodiscard]] Operation on_host(Action action, std::int32_t unit) const {
    Operation o = op(action, Stream::compute, unit);
    o.host_only = true;
    return o;
  }

  [[nodiscard]] Buffer buffer(std::int64_t elements, DType dtype, BufferKind kind, Stream pool, std::int32_t unit,
                              std::int32_t param = kNone) const {
    Buffer info;
    info.bytes = elements * size_of(dtype);
    info.dtype = dtype;
    info.kind = kind;
    info.pool = pool;
    info.unit = unit;
    info.param = param;
    info.micro_batch = micro_batch;
    return info;
  }

  [[nodiscard]] std::int64_t gathered_bytes_of(std::int32_t u, const ShardedParam& p) const {  // without padding
    return p.numel() * p.gathered_element(param_dtype(u));
  }
  [[nodiscard]] bool gathers_float8(std::int32_t u) const { return layout(u).float8_elements() > 0; }

  static bool any_live(const std::vector<std::int32_t>& buffers) {
    return std::any_of(buffers.begin(), buffers.end(), [](std::int32_t id) { return id >= 0; });
  }

  static void release_all(StepBuilder& b, std::vector<std::int32_t>& buffers) {
    for (std::int32_t& id : buffers) {
      if (id >= 0) b.release(id);
      id = kNone;
    }
  }

  const LoweringContext c;
  std::vector<std::int32_t> execution_order;  // all units with hooks, each root before its units
  std::vector<std::int32_t> forward_order;    // their groups
  std::vector<std::int32_t> states;           // units with groups, in the order in which the model lists their modules
  std::vector<std::int32_t> module_order;     // their groups
  std::int16_t micro_batch = 0;

 private:
  void collect_groups() {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto group = static_cast<std::int32_t>(u);
      if (!layout(group).params.empty()) groups_[at(state_of(group))].push_back(group);
    }
    for (auto& of_unit : groups_)
      std::sort(of_unit.begin(), of_unit.end(), [&](std::int32_t a, std::int32_t b) {
        return layout(a).params.front().param < layout(b).params.front().param;
      });
  }

  std::vector<Fsdp2Unit> units_;
  std::vector<std::vector<std::int32_t>> groups_;  // by unit
};

}  // namespace fsdp
