#include "planner/search/admission.h"

#include "models/input/error.h"
#include "planner/plan/check_tensor.h"
#include "planner/tensor/adapter_casts.h"
#include "planner/tensor/local_model.h"

namespace fsdp {

Admission::Admission(const ModelGraph& whole, const SearchOptions& options, const Implementation& implementation)
    : whole_(whole),
      digest_(whole.digest()),
      split_(differs_from_local(whole, options.base, implementation)
                 ? std::optional(local_model(whole, options.base, implementation))
                 : std::nullopt),
      rule_(options.rule),
      bare_(without_unit_casts(implementation, local(), options.base)),
      floors_(local(), bare_) {}

void Admission::check(const ShardingPlan& plan) const {
  check_split(plan, whole_, digest_, local());
  if (rule_) rule_(plan);
}

bool Admission::is_legal(const ShardingPlan& plan) const {
  try {
    check(plan);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

MemoryFloor Admission::floor(const ShardingPlan& plan) { return floors_.of(plan); }

}  // namespace fsdp
