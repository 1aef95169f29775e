// Private to the pytorch emitter: the text of the script.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

extern const char* const kPytorchTemplate;   // holds @PLAN@, @MODEL@ and where tensor parallelism goes
extern const char* const kPytorchRoots;      // of apply_plan: several roots share their streams
extern const char* const kPytorchStates;     // optimizer states wait in host memory
extern const char* const kPytorchFourBits;   // in_four_bits and give_scales; holds @HEAD@ and @DOUBLE@
extern const char* const kPytorchTensor;     // holds @STYLES@
extern const char* const kReferenceModel;    // Llama-like: build_model from the sizes in CONFIG
extern const char* const kTransformersOnly;  // build_model through transformers
extern const char* const kBringYourModel;    // neither: a function that raises, saying so

// @MODEL@: the sizes, the same of a tiny model, and build_model. `tensor`: ranks that all of these divide over.
[[nodiscard]] std::string model_text(const ModelGraph&, std::int64_t tensor);
// Sizes of a model as its ops state them. Empty for an op kind that is absent.
[[nodiscard]] std::optional<OpShape> first_shape(const ModelGraph&, OpKind);

[[nodiscard]] inline const char* python(bool value) { return value ? "True" : "False"; }
[[nodiscard]] std::string python_list(const std::vector<std::string>&);  // of texts

// Lines of PLAN: the orders of forward and backward prefetch, where they are not those in which the script lists its
// units; the roots, where no unit is the whole model.
[[nodiscard]] std::string orders_text(const ShardingPlan&, const ModelGraph&);
[[nodiscard]] std::string roots_text(const ShardingPlan&, const ModelGraph&);

// How the modules of a plan with a tensor dimension are split: split_over_tensor(model, mesh).
[[nodiscard]] std::string tensor_text(const ShardingPlan&, const ModelGraph&);

}  // namespace fsdp
