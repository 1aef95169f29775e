// Arithmetic of each op kind. Matmuls and attention decide step time; the memory-bound kinds have small per-element
// counts (an exponential, a division and a square root count one each) so that sums are complete.
#include <algorithm>

#include "models/graph.h"
#include "models/graph/gradients.h"

namespace fsdp {
namespace {

// Query-key pairs of one sequence and head. Causal: half of the square, as published TFLOP/s figures count. With a
// window w < S the far triangle of side S - w is left out: S*S/2 - (S-w)*(S-w)/2.
double attention_pairs(const OpShape& s, std::int64_t seq_len) {
  const double n = static_cast<double>(seq_len);
  if (!s.causal) return n * n;
  const double beyond = s.window > 0 && s.window < seq_len ? n - static_cast<double>(s.window) : 0;
  return (n * n - beyond * beyond) / 2;
}

// Of attention, of a head: those of a query and those of a value.
double head_channels(const OpShape& s) {
  return static_cast<double>(s.head_dim + (s.v_head_dim > 0 ? s.v_head_dim : s.head_dim));
}

// Per output element of the memory-bound kinds.
double flops_per_element(OpKind kind) {
  switch (kind) {
    case OpKind::position_embedding: return 1;  // one addition
    case OpKind::rms_norm: return 4;            // square, sum, scale by 1/rms, scale by weight
    case OpKind::layer_norm: return 7;          // mean, centre, square, sum, scale, weight, bias
    case OpKind::rotary: return 3;              // x cos + rot(x) sin
    case OpKind::swiglu: return 5;              // exp, add, divide, two products
    case OpKind::gelu: return 8;                // cubic, tanh or erf, products
    case OpKind::geglu: return 9;               // the same, and a product
    case OpKind::scale: return 1;
    case OpKind::soft_cap: return 3;  // quotient, tanh, product
    case OpKind::add: return 1;
    case OpKind::cross_entropy: return 4;  // max, subtract, exp, sum
    case OpKind::moe_route: return 5;      // the same, and a comparison or division
    default: return 0;
  }
}

// Of a token, on average, that an op of experts sees: of one expert its part of them.
double choices(const Experts& e) {
  const double all = static_cast<double>(e.top_k);
  return e.alone ? all / static_cast<double>(e.count) : all;
}

// Elements per row of what such an op makes; of moe_route the probabilities.
double element_width(const Op& op) {
  const OpShape& s = op.shape;
  switch (op.kind) {
    case OpKind::rotary:
      return static_cast<double>(s.heads + (s.packed || op.inputs.size() == 2 ? s.kv_heads : 0)) *
             static_cast<double>(s.rotated > 0 ? s.rotated : s.head_dim);
    case OpKind::cross_entropy: return static_cast<double>(s.vocab);
    case OpKind::moe_route: return static_cast<double>(s.experts.count);
    default: return static_cast<double>(s.width) * static_cast<double>(s.groups);
  }
}

}  // namespace

double forward_flops(const Op& op, const Workload& all) {
  const OpShape& s = op.shape;
  const Workload w = all.seen_by(s);
  const double tokens = static_cast<double>(w.sequences) * static_cast<double>(w.seq_len);
  if (s.traced != kNone) return tokens * s.opaque_flops_per_token;
  const auto row_count = [&] { return static_cast<double>(rows(s.experts, w)); };
  switch (op.kind) {
    case OpKind::embedding:
    case OpKind::moe_dispatch: return 0;  // gathers
    case OpKind::linear: return 2 * tokens * static_cast<double>(s.in) * static_cast<double>(s.out);
    case OpKind::expert_linear:
      return 2 * row_count() * static_cast<double>(s.in) * static_cast<double>(s.out);  // empty slots, too
    case OpKind::moe_combine:  // a product and a sum per choice and channel
      return 2 * tokens * choices(s.experts) * static_cast<double>(s.width);
    case OpKind::add:
    case OpKind::scale:
    case OpKind::swiglu: return row_count() * element_width(op) * flops_per_element(op.kind);
    case OpKind::attention:  // scores and weighted sum: 2 flops per pair and channel each
      return 2 * static_cast<double>(w.sequences) * static_cast<double>(s.heads) * head_channels(s) *
             attention_pairs(s, w.seq_len);
    case OpKind::opaque: return tokens * s.opaque_flops_per_token;
    default: return tokens * element_width(op) * flops_per_element(op.kind);
  }
}

double backward_flops(const Op& op, const Workload& w) {
  if (op.shape.traced != kNone) return 2 * forward_flops(op, w);
  // Scores again, and four gradients: three products over heads of queries and two over those of values.
  if (op.kind == OpKind::attention) {
    const double all = head_channels(op.shape), queries = static_cast<double>(op.shape.head_dim);
    return (2 * all + queries) / all * forward_flops(op, w);
  }
  if (op.kind == OpKind::embedding)
    return static_cast<double>(w.tokens()) * static_cast<double>(op.shape.width);  // scatter-add
  if (op.kind == OpKind::moe_dispatch)  // a token's gradient: the sum over its slots
    return static_cast<double>(w.tokens()) * choices(op.shape.experts) * static_cast<double>(op.shape.width);
  return 2 * forward_flops(op, w);
}

double model_flops_per_token(const ModelGraph& model, std::int64_t seq_len) {
  double flops = 0;
  // 2 for the forward of a matmul, 2 for the gradient of its input and 2 for its weight's, where they are needed.
  const auto matmul = [&](const Op& op) {
    const Gradients needed = needed_gradients(op, model);
    return (2 + (needed.input ? 2 : 0) + (needed.weight ? 2 : 0)) * static_cast<double>(op.shape.in) *
           static_cast<double>(op.shape.out);
  };
  for (const Op& op : model.ops) {
    const OpShape& s = op.shape;
    if (s.traced != kNone) {
      flops += 3 * s.opaque_flops_per_token;
      continue;
    }
    if (op.kind == OpKind::linear) flops += matmul(op);
    if (op.kind == OpKind::expert_linear) flops += matmul(op) * choices(s.experts);
    if (op.kind == OpKind::attention) {  // a token sees no further than its window
      const bool trained = model.tensors[static_cast<std::size_t>(op.outputs[0])].requires_grad;
      const std::int64_t reach = s.window > 0 ? std::min(s.window, seq_len) : seq_len;
      flops += (trained ? 6 : 2) * static_cast<double>(s.heads) * head_channels(s) * static_cast<double>(reach);
    }
    if (op.kind == OpKind::opaque) flops += 3 * s.opaque_flops_per_token;
  }
  return flops;
}

}  // namespace fsdp
