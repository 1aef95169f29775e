// Private to the pytorch emitter: the text of the script.
#pragma once

#include <string>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

extern const char* const kPytorchTemplate;   // holds @PLAN@, @MODEL@ and where tensor parallelism goes
extern const char* const kPytorchTensor;     // holds @STYLES@
extern const char* const kReferenceModel;    // Llama-like: build_model from the sizes in CONFIG
extern const char* const kTransformersOnly;  // build_model through transformers
extern const char* const kBringYourModel;    // neither: a function that raises, saying so

// How the modules of a plan with a tensor dimension are split: split_over_tensor(model, mesh).
[[nodiscard]] std::string tensor_text(const ShardingPlan&, const ModelGraph&);

}  // namespace fsdp
