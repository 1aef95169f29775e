// Units with a mesh of their own: shard_placement_fn with a mesh for each parameter, or fully_shard with another mesh.
#include <algorithm>
#include <cmath>
#include <string>

#include "models/graph/module_names.h"
#include "planner/plan/check_fsdp2.h"
#include "planner/plan/refusal.h"

namespace fsdp {
namespace {

std::string at_unit(std::size_t u, const char* name) { return "units[" + std::to_string(u) + "]." + name; }

bool within(const std::string& module, const std::string& unit) {
  return unit.empty() || module == unit || inside(module, unit);
}

// The unit that u is a further group of: the first one after it around all of its modules that has hooks.
void check_group(const ShardingPlan& plan, std::size_t u, std::string_view where) {
  const Unit& group = plan.units[u];
  if (group.modules.empty())
    refuse(where, at_unit(u, "modules"), "the unit has no modules", "name at least one module or remove the unit");
  const auto around = [&](const std::string& module) {
    return std::find_if(plan.units.begin() + static_cast<std::ptrdiff_t>(u) + 1, plan.units.end(), [&](const Unit& k) {
      return !k.group_of &&
             std::any_of(k.modules.begin(), k.modules.end(), [&](const std::string& m) { return within(module, m); });
    });
  };
  for (const std::string& module : group.modules) {
    const auto unit = around(module);
    if (unit == plan.units.end() || unit->modules.empty() || unit->modules.front() != *group.group_of)
      refuse(where, at_unit(u, "group_of"),
             "'" + module + "' does not belong to the unit of '" + *group.group_of + "', but to " +
                 (unit == plan.units.end() || unit->modules.empty() || unit->modules.front().empty()
                      ? "the root"
                      : "that of '" + unit->modules.front() + "'"),
             "name the first module of the innermost unit around it, which comes later in the list");
  }
  Unit plain{group.modules};
  plain.shard = group.shard;
  plain.group_of = group.group_of;
  if (group != plain)
    refuse(where, at_unit(u, "group_of"),
           "a further group of a unit is gathered, kept, resharded and reduced as that unit's own is, and has no "
           "switches of its own",
           "leave out all but modules, shard and group_of, with reshard_after_forward \"auto\"");
}

void check_size(const ShardingPlan& plan, std::size_t u, std::string_view where) {
  const Unit& unit = plan.units[u];
  const std::int64_t ranks = plan.data_ranks();
  if (ranks % unit.shard != 0)
    refuse(where, at_unit(u, "shard"),
           std::to_string(unit.shard) + " ranks do not divide the " + std::to_string(ranks) + " of the plan's mesh",
           "use a divisor of " + std::to_string(ranks));
  if (unit.shard != plan.own_shard())
    refuse(where, at_unit(u, "shard"),
           "units are sharded over " + std::to_string(plan.own_shard()) + " and over " + std::to_string(unit.shard) +
               " ranks beside the plan's mesh",
           "use one size for all of them");
  if (unit.shard == plan.shard())
    refuse(where, at_unit(u, "shard"), "the plan's mesh shards over " + std::to_string(unit.shard) + " ranks already",
           "leave it out");
  const std::int64_t n = unit.reshard_after_forward.ranks;
  if (n > 1)
    refuse(where, at_unit(u, "reshard_after_forward"),
           "parameters that a part of the ranks keeps together are not known here beside a mesh of the unit's own",
           "use true or false");
}

}  // namespace

void check_own_mesh(const ShardingPlan& plan, std::string_view where) {
  const std::int64_t size = plan.own_shard();
  std::size_t first = plan.units.size();
  for (std::size_t u = plan.units.size(); u-- > 0;)
    if (plan.units[u].shard > 0 || plan.units[u].group_of) first = u;
  if (first == plan.units.size()) return;
  const std::string at = at_unit(first, plan.units[first].shard > 0 ? "shard" : "group_of");
  const auto refuse_if = [&](bool broken, const std::string& problem, const std::string& remedy) {
    if (broken) refuse(where, at, problem, remedy);
  };
  refuse_if(plan.dialect != Dialect::fsdp2, std::string(name(plan.dialect)) + " has one mesh for all parameters",
            "leave it out, or use fsdp2");
  refuse_if(size < 1,
            "a further group of a unit is one that is sharded over other ranks than the unit's own parameters",
            "add \"shard\", or remove the unit");
  refuse_if(plan.torch.before(2, 15), "meshes of single parameters are known as they are in PyTorch 2.15 only",
            "leave it out, or use fsdp2");
  refuse_if(plan.tensor() > 1, "meshes of single units are not known beside tensor parallelism",
            "leave it out, or use a mesh without a tensor dimension");
  refuse_if(plan.separate_reduce_scatter, "a second communicator for reduce-scatters is not known beside two meshes",
            "leave out separate_reduce_scatter");
  refuse_if(plan.float8 != Float8Plan{}, "meshes of single units are not known beside products in 8 bits",
            "leave out float8");
  refuse_if(plan.clip_norm && std::isinf(plan.clip_norm_type),
            "the largest of all gradients is not known here over two meshes", "use another clip_norm_type, such as 2");
  refuse_if(plan.loop.chunk_head, "meshes of single units are not known beside an output layer that runs by itself",
            "leave out loop.chunk_head");
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const Unit& unit = plan.units[u];
    if (unit.group_of && unit.shard < 1)
      refuse(where, at_unit(u, "group_of"),
             "a further group of a unit is one that is sharded over other ranks than the unit's own parameters",
             "add \"shard\", or remove the unit");
    if (unit.shard > 0) check_size(plan, u, where);
    if (!unit.group_of) continue;
    check_group(plan, u, where);
    const auto host = std::find_if(
        plan.units.begin() + static_cast<std::ptrdiff_t>(u), plan.units.end(),
        [&](const Unit& k) { return !k.group_of && !k.modules.empty() && k.modules.front() == *unit.group_of; });
    if (host->shard > 0)
      refuse(where, at_unit(u, "group_of"),
             "all parameters of the unit of '" + *unit.group_of + "' have the mesh of this group",
             "remove the group, whose modules that unit then holds");
    if (host->param_dtype || host->reduce_dtype || host->output_dtype || !host->cast_forward_inputs)
      refuse(where, at_unit(u, "group_of"),
             "the unit of '" + *unit.group_of +
                 "' has dtypes of its own, which is not known here beside a group with another mesh",
             "leave the dtypes of that unit to the plan");
    if (std::any_of(plan.units.begin(), plan.units.begin() + static_cast<std::ptrdiff_t>(u),
                    [&](const Unit& k) { return k.group_of == unit.group_of; }))
      refuse(where, at_unit(u, "group_of"),
             "the unit of '" + *unit.group_of + "' has such a group already, and one group for each mesh",
             "name the modules of both in one group");
    if (host->reshard_after_forward.ranks > 1)
      refuse(where, at_unit(u, "group_of"),
             "the unit of '" + *unit.group_of + "' is kept over " + std::to_string(host->reshard_after_forward.ranks) +
                 " ranks after forward, which is not known here beside a group with another mesh",
             "set its reshard_after_forward to true or false");
  }
}

}  // namespace fsdp
