// prime-rl of January 2026 (commit d8f290ef0) training transformers' dense decoders: every block is compiled, the head,
// the norm before it and the loss are eager, and AdamW is PyTorch's default (foreach). Its SFT trainer takes
// cross-entropy of logits cast to fp32, which the forward's output holds until the step ends. Its RL trainer's head and
// loss are one function that goes over the vocabulary in chunks and makes the logits again in backward: an opaque op
// here (simulator/published/chunked_head.h), with the numbers of that file. FlashAttention by its own kernels.
#include "models/implementations/prime_rl.h"

#include <algorithm>
#include <array>

#include "models/implementations/pytorch_ops.h"

namespace fsdp {
namespace {

using namespace pytorch;

OpFacts cross_entropy_of_held_logits(const Op& op, const Workload& w) {
  OpFacts f = cross_entropy(op, w);
  if (w.element_bytes != 2) return f;
  f.saved_extra_bytes = plus(f.saved_extra_bytes, times(row_elements(w, op.shape.vocab), 4));
  f.forward_scratch_bytes = 0;
  f.forward_inside = {};
  return f;
}

// shape.width: tokens of the vocabulary in a chunk. Alive at once, in chunks of fp32: forward the logits in bf16 (a
// half) and in fp32, their difference from the maximum and its exponential; backward the same, and the probabilities
// and the gradient of the chunk before, which Python's variables still hold. Launches of a chunk: 3 make the logits, 15
// and 13 do the rest.
OpFacts chunked_head(const Op& op, const Workload& w) {
  if (op.shape.width == 0) return opaque(op, w);
  const std::int64_t chunk = times(row_elements(w, op.shape.width), 4),
                     bytes = times(w.tokens(), op.shape.opaque_bytes_per_token);
  const std::int64_t chunks = (op.shape.vocab + op.shape.width - 1) / op.shape.width;
  const auto launches = [&](std::int64_t each) {
    return static_cast<std::int16_t>(std::min<std::int64_t>(each * chunks, 10000));
  };
  return {.saved_inputs = 0b1,
          .forward_scratch_bytes = times(chunk, 7) / 2,
          .backward_scratch_bytes = times(chunk, 11) / 2,
          .forward_launches = launches(18),
          .backward_launches = launches(16),
          .forward_traffic_bytes = bytes,
          .backward_traffic_bytes = bytes};
}

template <AttentionKernel kernel>
OpFacts attention_by(const Op& op, const Workload& w) {
  OpFacts f = flash_attention(op, w);
  f.attention = kernel;
  return f;
}

Implementation prime_rl(OpRule attention) {
  Implementation i = hf_implementation(true);
  i.name = "prime-rl";
  i.rules = compiled_rules(composed_rotary_compiled, attention);
  i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = cross_entropy_of_held_logits;
  i.rules[static_cast<std::size_t>(OpKind::opaque)] = chunked_head;
  i.rules[static_cast<std::size_t>(OpKind::scale)] = scale;  // of adapters
  i.optimizer_temp_bytes_per_element = 4;
  i.optimizer_temps_at_once = true;
  i.optimizer_traffic = 80.0 / 28;  // as torchtitan's of 2024
  return i;
}

}  // namespace

const Implementation& prime_rl_implementation(AttentionKernel kernel) {
  static const std::array<Implementation, 2> kForms = {prime_rl(attention_by<AttentionKernel::flash2>),
                                                       prime_rl(attention_by<AttentionKernel::flash3>)};
  return kForms[kernel == AttentionKernel::flash3 ? 1 : 0];
}

}  // namespace fsdp
