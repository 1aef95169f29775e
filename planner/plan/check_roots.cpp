#include "planner/plan/check_roots.h"

#include <algorithm>
#include <string>

#include "models/index.h"
#include "planner/plan/refusal.h"

namespace fsdp {
namespace {

// What runs in a module of this name; '' is the model itself.
std::string what_runs_in(const std::string& module) {
  return module.empty() ? "an operation of the whole model" : "'" + module + "'";
}

std::string at_unit(std::size_t u) { return "units[" + std::to_string(u) + "].modules"; }

bool whole_model_last(const ShardingPlan& plan) {
  return !plan.units.empty() && plan.units.back().modules == std::vector<std::string>{""};
}

void refuse_beside_roots(const ShardingPlan& plan, std::string_view where) {
  const auto refuse_if = [&](bool broken, const std::string& what, const std::string& remedy) {
    if (broken) refuse(where, "share_comm_context", "several roots are not known here beside " + what, remedy);
  };
  const auto without = [&](bool broken, const std::string& what, const std::string& field_of) {
    refuse_if(broken, what + " (" + field_of + ")", "leave out " + field_of + ", or " + kOneRoot);
  };
  refuse_if(plan.torch != TorchVersion{}, "another release of PyTorch than 2.15 (dialect)",
            std::string("set dialect to \"fsdp2\", or ") + kOneRoot);
  refuse_if(plan.tensor() > 1, "tensor ranks (mesh)", std::string("leave out the tensor dimension, or ") + kOneRoot);
  without(plan.float8 != Float8Plan{}, "products in 8 bits", "float8");
  without(plan.loop != LoopPlan{}, "what the training loop does by hand", "loop");
  without(plan.own_shard() > 0, "units with a mesh of their own", "shard");
  without(plan.offload, "shards in host memory", "offload");
  without(!plan.offload_activations.empty(), "activations in host memory", "offload_activations");
  without(plan.separate_reduce_scatter, "a second communicator, of which each root makes one",
          "separate_reduce_scatter");
}

// A root casts what it is called with and what it returns; how the next root takes that was not recorded.
void refuse_own_dtype(const Unit& unit, std::size_t u, std::string_view where) {
  for (const auto& [dtype, name_of] : {std::pair{unit.param_dtype, "param_dtype"}, {unit.output_dtype, "output_dtype"}})
    if (dtype.has_value())
      refuse(where, "units[" + std::to_string(u) + "]." + name_of,
             "a dtype of its own of the root '" + unit.modules.front() + "' is not known here", "leave it out");
}

// A root's units lie in it with all of their modules, and it is one module, whose forward begins and ends it.
void check_one_root(const ShardingPlan& plan, const PlanIds& ids, const ModelGraph& model,
                    const std::vector<UnitLayout>& layouts, std::size_t u, std::string_view where) {
  const std::string& name = plan.units[u].modules.front();
  const UnitLayout& layout = layouts[u];
  if (layout.root) refuse_own_dtype(plan.units[u], u, where);
  if (layout.root && ids.units[u].size() > 1)
    refuse(where, at_unit(u),
           "the unit of '" + name + "' is a root and has " + std::to_string(ids.units[u].size()) +
               " modules, and PyTorch wants one",
           "leave one module to it, or put it into a unit around it");
  if (layout.root && layout.uses.size() > 1)
    refuse(where, at_unit(u), "'" + name + "' is a root and runs more than once in a forward, which is not known here",
           "put it into a unit around it");
  if (layout.root && !layout.outputs_require_grad)
    refuse(where, at_unit(u),
           "no gradient comes back to the root '" + name +
               "', whose backward PyTorch then never ends: what it prefetches stays until the next forward",
           std::string("train a parameter of it, or ") + kOneRoot);
  const auto first = static_cast<std::size_t>(layout.root_of);
  const Module& root = model.modules[at(ids.units[first].front())];
  for (const std::int32_t m : ids.units[u])
    if (model.modules[at(m)].op_begin < root.op_begin || model.modules[at(m)].op_end > root.op_end)
      refuse(where, at_unit(u),
             "'" + model.modules[at(m)].name + "' lies outside of '" + root.name + "', which holds '" + name +
                 "' of the same unit",
             "use a unit for each of them");
}

}  // namespace

void check_roots(const ShardingPlan& plan, std::string_view where) {
  const bool one = whole_model_last(plan);
  if (one && plan.share_comm_context)
    refuse(where, "share_comm_context", "the unit of the whole model is the only root, which has nothing to share with",
           "leave it out, or remove the last unit");
  if (one) return;
  const bool fsdp2 = plan.dialect == Dialect::fsdp2;
  if (!plan.share_comm_context || !fsdp2 || plan.units.empty())
    refuse(where, "units", "the last unit must be the root",
           std::string("add {\"modules\": [\"\"], \"reshard_after_forward\": \"auto\"} at the end") +
               (fsdp2 ? ", or let the outermost units share their streams (\"share_comm_context\": true); roots with "
                        "streams of their own are not known here"
                      : ""));
  refuse_beside_roots(plan, where);
}

void check_roots(const ShardingPlan& plan, const PlanIds& ids, const ModelGraph& model,
                 const std::vector<UnitLayout>& layouts, std::string_view where) {
  if (!plan.share_comm_context) return;
  std::vector<std::int32_t> holds(model.ops.size(), 0);
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    check_one_root(plan, ids, model, layouts, u, where);
    if (layouts[u].root)
      for (std::int32_t i = layouts[u].op_begin; i < layouts[u].op_end; ++i) ++holds[at(i)];
  }
  for (std::size_t i = 0; i + 1 < holds.size(); ++i) {  // the last one is the loss
    const std::string& name = model.modules[at(model.ops[i].module)].name;
    if (holds[i] > 1)
      refuse(where, "units", what_runs_in(name) + " runs between the modules of another root",
             "use roots that run one after the other");
    if (holds[i] == 0)
      refuse(where, "units", what_runs_in(name) + " runs outside of all roots, which is not known here",
             (name.empty() ? std::string() : "name a unit that holds it, or ") + kOneRoot);
  }
}

}  // namespace fsdp
