// Private to pytorch.cpp: the constant text of the emitted script.
#pragma once

namespace fsdp {

extern const char* const kPytorchTemplate;   // holds @PLAN@ and @MODEL@
extern const char* const kReferenceModel;    // Llama-like: build_model from the sizes in CONFIG
extern const char* const kTransformersOnly;  // build_model through transformers
extern const char* const kBringYourModel;    // neither: a function that raises, saying so

}  // namespace fsdp
