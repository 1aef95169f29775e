#include "planner/plan/check_dtypes.h"

#include <algorithm>
#include <string>

#include "models/graph/module_names.h"
#include "planner/plan/refusal.h"

namespace fsdp {
namespace {

std::string shown(const Unit& u) { return u.modules.empty() || u.modules[0].empty() ? "the root" : u.modules[0]; }

void check_unit(const ShardingPlan& plan, const Unit& u, const std::string& at, std::string_view where) {
  const auto check = [&](const std::optional<DType>& dtype, const char* name_of) {
    if (!dtype) return;
    const std::string field = at + name_of;
    refuse_if(*dtype == DType::i64 || *dtype == DType::f8, where, field,
              std::string(name(*dtype)) + " cannot hold gradients", "use fp64, fp32, bf16 or fp16");
    refuse_if(plan.dialect != Dialect::fsdp2, where, field,
              "dtypes of one unit are not known under " + std::string(name(plan.dialect)),
              "leave it out, or use fsdp2");
    refuse_if(plan.torch.before(2, 15), where, field, "dtypes of one unit are known as they are in PyTorch 2.15",
              "leave it out, or use fsdp2");
    refuse_if(plan.tensor() > 1, where, field, "dtypes of one unit are not known beside tensor parallelism",
              "leave it out, or use a mesh without a tensor dimension");
  };
  check(u.param_dtype, "param_dtype");
  check(u.reduce_dtype, "reduce_dtype");
  check(u.output_dtype, "output_dtype");
  refuse_if(!u.cast_forward_inputs && (plan.dialect != Dialect::fsdp2 || plan.torch.before(2, 15)), where,
            at + "cast_forward_inputs", "what a unit casts is known for fsdp2 of PyTorch 2.15", "leave it out");
  refuse_if(u.output_dtype && std::find(u.modules.begin(), u.modules.end(), "") != u.modules.end(), where,
            at + "output_dtype", "casting what the root returns is not known here", "leave it out");
}

}  // namespace

void check_dtypes(const ShardingPlan& plan, std::string_view where) {
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    check_unit(plan, plan.units[u], "units[" + std::to_string(u) + "].", where);
  if (!plan.several_dtypes()) return;
  const auto refuse = [&](bool used, const char* name_of, const std::string& what) {
    refuse_if(used, where, name_of, what + " is not known beside units that compute in several dtypes",
              "leave it out, or use one param_dtype for all units");
  };
  refuse(plan.tensor() > 1, "mesh", "tensor parallelism");
  refuse(plan.float8.recipe != Float8Recipe::none, "float8", "multiplying in 8 bits");
  refuse(!plan.ignored.empty(), "ignored", "leaving parameters to themselves");
  refuse(plan.loop.chunk_head, "loop.chunk_head", "running the output layer a part at a time");
  for (const Unit& u : plan.units) {
    if (u.group_of) continue;  // has the hooks of another unit
    for (const std::string& module : u.modules)
      for (const std::string& checkpointed : plan.checkpointed)
        refuse(module != checkpointed && inside(module, checkpointed), "checkpointed",
               "recomputing '" + checkpointed + "', which holds the unit '" + shown(u) + "',");
  }
}

}  // namespace fsdp
