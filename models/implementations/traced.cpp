// Eager PyTorch as it ran the model on tensors without data: what its operators make, keep and let go is in the trace
// (models/graph/trace.h), from which the tape is built. Here is what a trace does not show: the host, the optimizer,
// and what is known of an op's saved bytes without a tape. As transformers' Trainer runs models.
#include "models/implementations/traced.h"

#include "models/implementations/pytorch_ops.h"

namespace fsdp {

namespace {

// The part of what autograd keeps that grows with the tokens, rounded down.
OpFacts of_trace(const Op& op, const Workload& w) {
  return {.saved_extra_bytes = pytorch::times(w.tokens(), op.shape.opaque_saved_bytes_per_token)};
}

std::string_view nothing(const Op&) { return {}; }

Implementation of_traces() {
  Implementation i = hf_implementation(false);
  i.name = "traced";
  i.rules.fill(of_trace);
  i.lacks = nothing;
  i.of_traces = true;
  return i;
}

}  // namespace

const Implementation& traced_implementation() {
  static const Implementation traced = of_traces();
  return traced;
}

const Implementation& traced_expandable_implementation() {
  static const Implementation traced = [] {
    Implementation i = of_traces();
    i.name = "traced-expandable";
    i.memory = MemorySource::caching_expandable;
    return i;
  }();
  return traced;
}

}  // namespace fsdp
