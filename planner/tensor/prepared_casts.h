// A model in 4 bits with adapters as trl's SFTTrainer prepares it (bf16=True, not sharded), under autocast: peft's
// prepare_model_for_kbit_training makes norms fp32, and so what they return. bitsandbytes' layers return the type of
// what they are called with, so that fp32 flows from the first norm through each feed-forward into the sum that blocks
// hand on; autocast casts what other products read, and adapters' weights, which are fp32.
//
//   const ModelGraph m = with_prepared_casts(prepared, plan, hf_implementation(false), "plan.json");
//   m.ops     -> norm in fp32; cast to bf16, product, cast to fp32, copy; dropout in fp32, cast, A and B; sum in fp32
//
// trl 0.13 (trainer/utils.py, peft_module_casting_to_bf16), peft 0.13 (tuners/lora/bnb.py), bitsandbytes 0.43
// (nn/modules.py, Linear4bit): tests/torch/early/record_prepared.py records it.
#pragma once

#include <string_view>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"

namespace fsdp {

// Throws InputError(setting("implementation"), ...) but for transformers', not compiled, and InputError({where,
// "model"}, ...) for an op of which it is not known what it computes in: all but those of Llama's form.
[[nodiscard]] ModelGraph with_prepared_casts(const ModelGraph&, const ShardingPlan&, const Implementation&,
                                             std::string_view where = "plan");

}  // namespace fsdp
