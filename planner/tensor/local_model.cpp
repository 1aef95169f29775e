#include "planner/tensor/local_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/graph/experts.h"
#include "models/index.h"
#include "models/input/error.h"
#include "planner/tensor/adapter_casts.h"
#include "planner/tensor/float8.h"
#include "planner/tensor/prepared_casts.h"
#include "planner/tensor/split.h"
#include "planner/tensor/unit_dtypes.h"

namespace fsdp {
namespace {

bool differs_in_casts(const ModelGraph& model, const ShardingPlan& plan, const Implementation& implementation) {
  if (model.prepared) return !model.adapter_casts;
  if (!implementation.peft_casts) return adapters_compute_apart(model, plan);
  return !model.adapter_casts && casts_for_adapters(model, plan);
}

// A reentrant checkpoint hands gradients down only to inputs that require some: transformers sees to that.
bool lacks_input_gradients(const ModelGraph& model, const ShardingPlan& plan) {
  return plan.reentrant && std::any_of(model.ops.begin(), model.ops.end(), [&](const Op& op) {
           return op.kind == OpKind::embedding && !model.tensors[at(op.outputs[0])].requires_grad;
         });
}

// What a plan can say of a model as transformers 5 builds it, and not of an implementation's own form.
void check_form(const ModelGraph& own, const ShardingPlan& plan, const Implementation& i, std::string_view where) {
  if (plan.param_dtype != DType::bf16 && !has_looped_experts(own))
    throw InputError(Origin{std::string(where), "param_dtype"},
                     fmt::format("{}'s experts multiply in bf16, whatever the model computes in", i.name),
                     "use bf16, or another implementation (hf)");
  for (const ShardDim& d : plan.shard_dims)
    for (const Parameter& p : own.parameters)
      if (p.part_of == d.parameter && dim_of_part(p, d.dim) == d.dim &&
          p.shape[static_cast<std::size_t>(d.dim)] % plan.shard() != 0)
        throw InputError(Origin{std::string(where), "shard_dims"},
                         fmt::format("{} keeps the two halves of '{}' apart, of {} rows, which {} ranks do not divide",
                                     i.name, d.parameter, p.shape[static_cast<std::size_t>(d.dim)], plan.shard()),
                         "shard over fewer ranks (--replicate), or use another implementation (hf)");
}

}  // namespace

bool differs_in_form(const ModelGraph& model, const Implementation& implementation) {
  return implementation.own_form != nullptr && !model.own_form && has_experts(model);
}

ModelGraph local_model(const ModelGraph& model, const ShardingPlan& plan, const Implementation& implementation,
                       std::string_view where) {
  if (differs_in_form(model, implementation)) {
    const ModelGraph own = implementation.own_form(model);
    check_form(own, plan, implementation, where);
    return has_looped_experts(own) ? local_model(own, plan, implementation, where) : local_model(own, plan, where);
  }
  ModelGraph local = local_model(model, plan, where);
  if (model.prepared) return model.adapter_casts ? local : with_prepared_casts(local, plan, implementation, where);
  if (implementation.peft_casts && !local.adapter_casts && casts_for_adapters(local, plan))
    local = with_adapter_casts(local, plan, where);
  else if (!implementation.peft_casts && adapters_compute_apart(local, plan))
    throw InputError(setting("implementation"),
                     fmt::format("{} has no known memory and time for adapters that compute in another type than "
                                 "the weights beside them",
                                 implementation_text(implementation)),
                     "use hf, whose adapters are peft's, or leave trained_dtype out");
  return local;
}

bool differs_from_local(const ModelGraph& model, const ShardingPlan& plan, const Implementation& implementation) {
  return differs_in_form(model, implementation) || differs_from_local(model, plan) ||
         differs_in_casts(model, plan, implementation);
}

ModelGraph local_model(const ModelGraph& model, const ShardingPlan& plan, std::string_view where) {
  ModelGraph local = plan.tensor() != model.tensor_ranks ? split_over_tensor(model, plan, where) : model;
  if (plan.several_dtypes() && !local.unit_dtypes) local = with_unit_dtypes(local, plan, where);
  if (lacks_input_gradients(local, plan)) local = require_input_gradients(std::move(local));
  if (plan.float8.recipe == local.float8) return local;
  const std::vector<char> converted = float8_layers(local, plan.float8);
  // te.fp8_autocast is there in place of torch.autocast: what runs beside the loss is not cast.
  const bool of_loss = plan.float8.recipe == Float8Recipe::delayed;
  for (std::size_t i = 0; i < local.ops.size(); ++i) {
    OpShape& shape = local.ops[i].shape;
    const bool told = converted[i] != 0 || (of_loss && local.ops[i].kind == OpKind::cross_entropy);
    shape.float8 = told ? plan.float8.recipe : Float8Recipe::none;
    shape.float8_weight = converted[i] != 0 && plan.float8.all_gather;
  }
  local.float8 = plan.float8.recipe;
  return local;
}

bool differs_from_local(const ModelGraph& model, const ShardingPlan& plan) {
  return plan.tensor() != model.tensor_ranks || plan.float8.recipe != model.float8 ||
         plan.several_dtypes() != model.unit_dtypes || lacks_input_gradients(model, plan);
}

}  // namespace fsdp
