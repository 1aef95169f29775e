// The rules of a plan, one function per group, each rule with its own sentence.
#include <algorithm>
#include <cmath>
#include <string>

#include "models/graph/module_names.h"
#include "models/input/limits.h"
#include "models/input/suggest.h"
#include "models/units.h"
#include "planner/layout.h"
#include "planner/plan.h"
#include "planner/plan/check_dtypes.h"
#include "planner/plan/check_fsdp1.h"
#include "planner/plan/check_fsdp2.h"
#include "planner/plan/check_loop.h"
#include "planner/plan/check_optimizer.h"
#include "planner/plan/check_roots.h"
#include "planner/plan/check_sizes.h"
#include "planner/plan/check_tensor.h"
#include "planner/plan/refusal.h"
#include "planner/plan_ids.h"
#include "planner/tensor/local_model.h"

namespace fsdp {
namespace {

std::string shown(const std::string& module) { return module.empty() ? "the root" : "'" + module + "'"; }

bool is_within(const std::string& inner, const std::string& outer) {  // the same module, or one below it
  return outer.empty() || inner == outer || inside(inner, outer);
}

void check_model(const ShardingPlan& plan, const ModelGraph& model, std::string_view digest, std::string_view where) {
  if (plan.model_digest != digest) {
    throw InputError(field(where, "model_digest"),
                     "the plan was made for another model (" + plan.model_name + ", digest " + plan.model_digest +
                         ") than '" + model.name + "' (digest " + std::string(digest) + ")",
                     "make a plan for this model with `fsdp-plan plan`");
  }
}

// Labels that only people read still reach terminals and the comments of emitted scripts.
void check_label(const ShardingPlan& plan, std::string_view where) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(plan.wrap.begin(), plan.wrap.end(), control))
    throw InputError(field(where, "wrap"), "\"" + printable(plan.wrap) + "\" holds a control character",
                     "write it in one line of plain text");
}

void check_mesh(const ShardingPlan& plan, std::string_view where) {
  const Origin at = field(where, "mesh");
  std::int64_t ranks = 1;
  std::size_t position = 0;
  for (const MeshDim& d : plan.mesh) {
    const std::size_t index = d.name == "replicate" ? 0 : d.name == "shard" ? 1 : d.name == "tensor" ? 2 : 3;
    if (index == 3) throw InputError(at, "there is no dimension '" + d.name + "'", "use replicate, shard and tensor");
    if (index < position)
      throw InputError(at, "dimension '" + d.name + "' is repeated or out of order",
                       "write replicate before shard before tensor, each once");
    position = index + 1;
    if (d.size < 1)
      throw InputError(at, "dimension '" + d.name + "' has size " + std::to_string(d.size), "use a size of at least 1");
    if (!kGpus.holds(d.size) || !kGpus.holds(ranks * d.size))
      throw InputError(at, "more than 1,048,576 ranks", "use a smaller mesh");
    ranks *= d.size;
  }
}

// A unit has modules, and the root is the last one, by itself.
void check_places(const ShardingPlan& plan, std::size_t u, std::string_view where) {
  const Unit& unit = plan.units[u];
  const Origin at = field(where, "units[" + std::to_string(u) + "].modules");
  if (unit.modules.empty())
    throw InputError(at, "the unit has no modules", "name at least one module or remove the unit");
  if ((unit.modules.size() > 1 || u + 1 < plan.units_of_modules()) &&
      std::find(unit.modules.begin(), unit.modules.end(), "") != unit.modules.end())
    throw InputError(at, "the root \"\" must be a unit by itself and the last one", "move it to the end");
}

void check_unit(const ShardingPlan& plan, const ModelGraph& model, const PlanIds& ids, std::size_t u,
                std::string_view where) {
  const Unit& unit = plan.units[u];
  const Origin at = field(where, "units[" + std::to_string(u) + "].modules");
  check_places(plan, u, where);
  for (std::size_t i = 0; i < unit.modules.size(); ++i) {
    const std::string& module = unit.modules[i];
    const std::int32_t id = ids.units[u][i];
    const Module& m = model.modules[id];
    if (m.container) {
      throw InputError(at, "'" + module + "' is a " + m.class_name + ", which has no forward of its own",
                       "name the modules inside it");
    }
    if (id != 0 && m.op_begin == m.op_end)
      throw InputError(at, "'" + module + "' computes nothing in forward", "leave it to the unit around it");
  }
}

// Every pair of listed modules: none twice, none inside another of the same unit, none after a unit that holds it.
// Sorted by name with '.' first, a module's subtree follows it directly, so one pass with a stack of open ancestors
// finds every pair.
void check_nesting(const ShardingPlan& plan, std::string_view where) {
  struct Listed {
    std::string key;
    const std::string* name;
    std::size_t unit;
  };
  std::vector<Listed> listed;
  for (std::size_t u = 0; u < plan.units_of_modules(); ++u) {
    for (const std::string& module : plan.units[u].modules) {
      std::string key = module;
      std::replace(key.begin(), key.end(), '.', '\x01');
      listed.push_back({std::move(key), &module, u});
    }
  }
  std::sort(listed.begin(), listed.end(),
            [](const Listed& a, const Listed& b) { return a.key != b.key ? a.key < b.key : a.unit < b.unit; });
  std::vector<const Listed*> open;
  for (const Listed& l : listed) {
    const Origin at = field(where, "units[" + std::to_string(l.unit) + "].modules");
    while (!open.empty() && !is_within(*l.name, *open.back()->name)) open.pop_back();
    if (!open.empty()) {
      const Listed& outer = *open.back();
      if (*l.name == *outer.name)
        throw InputError(at, shown(*l.name) + " is listed twice", "a module belongs to one unit");
      if (l.unit == outer.unit)
        throw InputError(at, shown(*l.name) + " lies inside " + shown(*outer.name) + " of the same unit",
                         "name the outer one only");
      if (l.unit > outer.unit) {
        throw InputError(at,
                         shown(*l.name) + " comes after units[" + std::to_string(outer.unit) + "], which holds " +
                             shown(*outer.name) + " around it",
                         "list inner units before outer ones");
      }
    }
    open.push_back(&l);
  }
}

// units[unit_of[m]] is the innermost unit around module m.
std::vector<std::size_t> innermost_units(const ShardingPlan& plan, const ModelGraph& model, const PlanIds& ids) {
  std::vector<std::size_t> unit_of(model.modules.size(), plan.units.size());
  for (std::size_t u = 0; u < plan.units_of_modules(); ++u) {
    for (const std::int32_t module : ids.units[u]) unit_of[module] = u;
  }
  for (std::size_t m = 1; m < model.modules.size(); ++m) {  // pre-order: the parent comes first
    if (unit_of[m] == plan.units.size()) unit_of[m] = unit_of[model.modules[m].parent];
  }
  return unit_of;
}

void check_parameters(const ShardingPlan& plan, const ModelGraph& model, const PlanIds& ids, std::string_view where) {
  const std::vector<std::size_t> unit_of = innermost_units(plan, model, ids);
  std::vector<char> has_parameters(plan.units.size() + 1, 0);  // the last: in no unit
  const auto place = [&](std::size_t u) {
    return u == plan.units.size() ? std::string("no unit") : "units[" + std::to_string(u) + "]";
  };
  for (const Parameter& p : model.parameters) {
    if (plan.trained_outermost && p.trainable) continue;  // of the root, wherever it is
    const std::size_t unit = unit_of[p.modules.front()];
    has_parameters[unit] = 1;
    for (std::size_t k = 1; k < p.modules.size(); ++k) {
      if (unit_of[p.modules[k]] == unit) continue;
      throw InputError(field(where, "units"),
                       "the tied parameter '" + p.name + "' (also '" +
                           (k - 1 < p.aliases.size() ? p.aliases[k - 1] : "") + "') would lie in " + place(unit) +
                           " and " + place(unit_of[p.modules[k]]) +
                           ", which PyTorch refuses, too: a parameter is sharded once",
                       plan.share_comm_context ? std::string("put both modules into one unit, or ") + kOneRoot
                                               : "put both modules into one unit, or leave both to the root");
    }
  }
  for (std::size_t u = 0; u + 1 < plan.units.size(); ++u) {
    if (has_parameters[u] || plan.dialect == Dialect::fsdp2) continue;  // fsdp2: it has hooks, and no group
    throw InputError(field(where, "units[" + std::to_string(u) + "].modules"),
                     "the unit of " + shown(plan.units[u].modules.front()) + " has no parameters of its own, so that " +
                         std::string(name(plan.dialect)) + " has nothing to do for it",
                     plan.units[u].modules.front().empty() ? "freeze a parameter outside of the other units, or set "
                                                             "trained_outermost to false"
                                                           : "remove it");
  }
}

void check_units(const ShardingPlan& plan, const ModelGraph& model, const PlanIds& ids, std::string_view where) {
  check_roots(plan, where);
  if (plan.units.size() > model.modules.size())
    throw InputError(field(where, "units"), "there are more units than the model has modules", kShowModel);
  for (std::size_t u = 0; u < plan.units.size(); ++u) check_unit(plan, model, ids, u, where);
  check_nesting(plan, where);
  check_trained(plan, model, where);
  check_parameters(plan, model, ids, where);
}

void check_checkpointed(std::vector<std::int32_t> ids, const ModelGraph& model, std::string_view where) {
  const Origin at = field(where, "checkpointed");
  for (const std::int32_t id : ids) {
    if (id == 0) throw InputError(at, "the root cannot be recomputed as a whole", "name its blocks");
    const Module& m = model.modules[id];
    if (m.container)
      throw InputError(at, "'" + m.name + "' is a " + m.class_name + ", which has no forward of its own",
                       "name the modules inside it");
    if (m.op_begin == m.op_end) throw InputError(at, "'" + m.name + "' computes nothing in forward", "remove it");
  }
  std::sort(ids.begin(), ids.end());  // pre-order: a subtree follows its module
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const std::string& before = model.modules[ids[i - 1]].name;
    const std::string& here = model.modules[ids[i]].name;
    if (ids[i] == ids[i - 1]) throw InputError(at, "'" + here + "' is listed twice", "remove one");
    if (is_within(here, before))
      throw InputError(at, "'" + here + "' lies inside '" + before + "', which is recomputed as a whole",
                       "remove one of them");
  }
}

void check_numbers(const ShardingPlan& plan, std::string_view where) {
  const auto refuse_integer = [&](DType t, const char* key) {
    if (t == DType::i64)
      throw InputError(field(where, key), "int64 cannot hold gradients", "use fp64, fp32, bf16 or fp16");
  };
  refuse_integer(plan.param_dtype, "param_dtype");
  refuse_integer(plan.reduce_dtype, "reduce_dtype");
  refuse_integer(plan.master_dtype, "master_dtype");
  if (plan.trained_dtype) refuse_integer(*plan.trained_dtype, "trained_dtype");
  const auto require = [&](bool ok, const char* key, double value, const char* remedy) {
    if (!ok || !std::isfinite(value))
      throw InputError(field(where, key), std::to_string(value) + " is out of range", remedy);
  };
  if (plan.clip_norm)
    require(*plan.clip_norm > 0, "clip_norm", *plan.clip_norm, "use a finite number above 0, or null for no clipping");
  if (!(plan.clip_norm_type >= 1))  // infinity is one
    throw InputError(field(where, "clip_norm_type"), std::to_string(plan.clip_norm_type) + " is no norm",
                     "use a number of at least 1, or inf");
  const auto prefetch = [&](int value, const Limit& limit) {
    if (!limit.holds(value))
      throw InputError(field(where, std::string(limit.field)), std::to_string(value) + " units ahead",
                       "use 0 to " + std::to_string(limit.most));
  };
  prefetch(plan.forward_prefetch, kForwardPrefetch);
  prefetch(plan.backward_prefetch, kBackwardPrefetch);
}

// PyTorch counts what a selectively checkpointed module runs, the gathers of units inside among it, and raises when its
// recomputation runs more of an operation than its forward did: where the forward found a unit prefetched and the
// recomputation does not; under fsdp1 in any case.
void check_selective(const ShardingPlan& plan, std::string_view where) {
  if (plan.checkpoint_policy != CheckpointPolicy::selective_op) return;
  for (const Unit& u : plan.units) {
    if (u.group_of) continue;  // gathered by the hooks of another unit
    for (const std::string& module : u.modules)
      for (const std::string& checkpointed : plan.checkpointed)
        if (inside(module, checkpointed))
          refuse(where, "checkpoint_policy",
                 "'" + checkpointed + "' is recomputed selectively and holds the unit of '" + module +
                     "', whose gathers PyTorch counts among its operations, and may fail on",
                 "use full, or units that hold whole checkpointed modules, such as one per block");
  }
}

void check_dialect(const ShardingPlan& plan, std::string_view where) {
  if (plan.dialect != Dialect::ddp) check_selective(plan, where);
  if (plan.dialect == Dialect::fsdp1) return check_fsdp1(plan, where);
  refuse_fsdp1_choices(plan, where);
  if (plan.grad_sync == GradSync::reduce_scatter_only && plan.replicate() < 2 && plan.own_shard() == 0) {
    throw InputError(field(where, "grad_sync"),
                     "reduce-scatter-only leaves out the all-reduce over replicas, but there is one replica",
                     "use a replicate dimension of at least 2, or every or last");
  }
  if (plan.dialect == Dialect::fsdp2) return check_fsdp2(plan, where);
  refuse_sharding_choices(plan, where);
  if (plan.shard() != 1)
    throw InputError(field(where, "mesh"),
                     "ddp replicates parameters and cannot shard them over " + std::to_string(plan.shard()) + " ranks",
                     "put all ranks into the replicate dimension, or use fsdp2");
  const DType trained = plan.kept_dtype(/*trained=*/true);
  if (plan.param_dtype != plan.master_dtype || plan.reduce_dtype != trained) {
    const bool computes = plan.param_dtype != plan.master_dtype;
    throw InputError(field(where, computes ? "param_dtype" : "reduce_dtype"),
                     "ddp computes and reduces in the dtype its parameters are kept in (" +
                         std::string(name(computes ? plan.master_dtype : trained)) + ")",
                     plan.trained_dtype ? "set param_dtype to master_dtype and reduce_dtype to trained_dtype"
                                        : "set param_dtype and reduce_dtype to master_dtype, or use fsdp2");
  }
  if (plan.grad_sync == GradSync::reduce_scatter_only)
    throw InputError(field(where, "grad_sync"), "ddp has no reduce-scatter", "use every or last");
  if (plan.forward_prefetch != 0)
    throw InputError(field(where, "forward_prefetch"), "ddp gathers nothing, so there is nothing to prefetch", "use 0");
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].reshard_after_forward != Reshard::yes) continue;
    throw InputError(field(where, "units[" + std::to_string(u) + "].reshard_after_forward"),
                     "ddp keeps parameters whole and cannot reshard them", "use \"auto\"");
  }
}

// What the units of a plan have to do with the model, or with one rank's part of it.
void check_rules(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  const PlanIds ids = resolve_ids(plan, model, where);
  check_units(plan, model, ids, where);
  check_checkpointed(ids.checkpointed, model, where);
  const std::vector<UnitLayout> layouts = unit_layouts(plan, ids, model, where);  // every padded size fits 64 bits
  check_roots(plan, ids, model, layouts, where);
  check_ignored(plan, model, layouts, where);
  check_optimizer(plan, model, layouts, where);
  if (plan.dialect == Dialect::fsdp1) check_fsdp1(plan, ids, model, where);
  if (plan.dialect == Dialect::fsdp2) check_fsdp2(plan, model, layouts, where);
  check_float8(plan, model, layouts, where);
  check_four_bits(plan, model, layouts, where);
  check_trained_dtype(plan, model, where);
  check_loop(plan, model, layouts, where);
  check_activations(plan, ids, model, where);
}

// What no model has to be known for, but for the places of units, which are looked at after the names of modules.
void check_alone(const ShardingPlan& plan, std::string_view where) {
  check_label(plan, where);
  check_mesh(plan, where);
  check_batches(plan, where);
  check_numbers(plan, where);
  check_optimizer(plan, where);
  check_dialect(plan, where);
  check_own_mesh(plan, where);
  check_tensor(plan, where);
  check_dtypes(plan, where);
  check_float8(plan, where);
  check_loop(plan, where);
  check_activations(plan, where);
}

}  // namespace

void check(const ShardingPlan& plan, std::string_view where) {
  check_alone(plan, where);
  check_roots(plan, where);
  for (std::size_t u = 0; u < plan.units.size(); ++u) check_places(plan, u, where);
  check_nesting(plan, where);
}

void check_split(const ShardingPlan& plan, const ModelGraph& whole, const ModelGraph& local, std::string_view where) {
  check_split(plan, whole, whole.digest(), local, where);
}

void check_split(const ShardingPlan& plan, const ModelGraph& whole, std::string_view digest, const ModelGraph& local,
                 std::string_view where) {
  check_model(plan, whole, digest, where);
  check_alone(plan, where);
  check_sizes(plan, whole, where);
  if (plan.tensor() > 1) check_tensor_recomputation(plan, whole, where);
  check_rules(plan, local, where);
}

void check(const ShardingPlan& plan, const ModelGraph& whole, std::string_view where) {
  if (!differs_from_local(whole, plan)) return check_split(plan, whole, whole, where);
  const std::string digest = whole.digest();
  check_model(plan, whole, digest, where);
  check_alone(plan, where);
  check_split(plan, whole, digest, local_model(whole, plan, where), where);
}

}  // namespace fsdp
