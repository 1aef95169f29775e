#include "models/graph.h"

#include "models/graph/gradients.h"
#include "models/graph/op_ranges.h"
#include "models/graph/trace_digest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "models/index.h"
#include "models/input/digest.h"
#include "models/input/names.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr std::string_view text(OpKind k) {
  switch (k) {
    case OpKind::embedding: return "embedding";
    case OpKind::position_embedding: return "position_embedding";
    case OpKind::rms_norm: return "rms_norm";
    case OpKind::layer_norm: return "layer_norm";
    case OpKind::linear: return "linear";
    case OpKind::rotary: return "rotary";
    case OpKind::attention: return "attention";
    case OpKind::swiglu: return "swiglu";
    case OpKind::gelu: return "gelu";
    case OpKind::add: return "add";
    case OpKind::cross_entropy: return "cross_entropy";
    case OpKind::opaque: return "opaque";
    case OpKind::moe_route: return "moe_route";
    case OpKind::moe_dispatch: return "moe_dispatch";
    case OpKind::expert_linear: return "expert_linear";
    case OpKind::moe_combine: return "moe_combine";
    case OpKind::geglu: return "geglu";
    case OpKind::scale: return "scale";
    case OpKind::soft_cap: return "soft_cap";
    case OpKind::redistribute: return "redistribute";
    case OpKind::cast: return "cast";
  }
  return {};
}
static_assert(names_all<OpKind>(text, kOpKinds));

// Fields at their default are left out: the key says which field it is, so the text stays unambiguous.
template <class T>
void add_if(Digest& d, std::string_view key, T value, T usual) {
  if (value != usual) d.add(key, value);
}

void add_experts(Digest& d, const Experts& e) {
  if (e.count == 0) return;
  d.add("experts", e.count);
  d.add("top_k", e.top_k);
  d.add("capacity_factor", e.capacity_factor);
  if (e.alone) d.add("alone", e.alone);
}

void add_shape(Digest& d, const OpShape& s) {
  const OpShape usual;
  add_if(d, "in", s.in, usual.in);
  add_if(d, "out", s.out, usual.out);
  add_if(d, "width", s.width, usual.width);
  add_if(d, "groups", s.groups, usual.groups);
  add_if(d, "heads", s.heads, usual.heads);
  add_if(d, "kv_heads", s.kv_heads, usual.kv_heads);
  add_if(d, "head_dim", s.head_dim, usual.head_dim);
  add_if(d, "window", s.window, usual.window);
  add_if(d, "vocab", s.vocab, usual.vocab);
  add_if(d, "positions", s.positions, usual.positions);
  add_if(d, "causal", s.causal, usual.causal);
  add_if(d, "alibi", s.alibi, usual.alibi);
  add_if(d, "packed", s.packed, usual.packed);
  add_if(d, "transposed", s.transposed, usual.transposed);
  add_if(d, "tanh", s.tanh, usual.tanh);
  add_experts(d, s.experts);
  add_if(d, "renormalised", s.renormalised, usual.renormalised);
  add_if(d, "sigmoid", s.sigmoid, usual.sigmoid);
  add_if(d, "chosen_groups", s.chosen_groups, usual.chosen_groups);
  add_if(d, "in_fp32", s.in_fp32, usual.in_fp32);
  add_if(d, "router", s.router, usual.router);
  add_if(d, "eps", s.eps, usual.eps);
  add_if(d, "theta", s.theta, usual.theta);
  add_if(d, "opaque_flops", s.opaque_flops_per_token, usual.opaque_flops_per_token);
  add_if(d, "opaque_bytes", s.opaque_bytes_per_token, usual.opaque_bytes_per_token);
  add_if(d, "opaque_saved", s.opaque_saved_bytes_per_token, usual.opaque_saved_bytes_per_token);
  add_if(d, "rotated", s.rotated, usual.rotated);
  add_if(d, "factor", s.factor, usual.factor);
  add_if(d, "cap", s.cap, usual.cap);
  add_if(d, "score_factor", s.score_factor, usual.score_factor);
  add_if(d, "weight_offset", s.weight_offset, usual.weight_offset);
  if (s.experts.count == 0) add_if(d, "wide_weight", s.wide_weight, usual.wide_weight);  // else as the class says
  add_if(d, "wide_angles", s.wide_angles, usual.wide_angles);
  add_if(d, "interleaved", s.interleaved, usual.interleaved);
  add_if(d, "fast", s.fast, usual.fast);
  add_if(d, "always_masked", s.always_masked, usual.always_masked);
  add_if(d, "v_head_dim", s.v_head_dim, usual.v_head_dim);
  add_if(d, "by_head", s.by_head, usual.by_head);
  add_if(d, "redistribution", static_cast<int>(s.redistribution), static_cast<int>(usual.redistribution));
  add_if(d, "sequence_parts", s.sequence_parts, usual.sequence_parts);
  add_if(d, "vocab_parts", s.vocab_parts, usual.vocab_parts);
  if (s.dtype) d.add("dtype", name(*s.dtype));
  if (s.from) d.add("from", name(*s.from));
  add_if(d, "traced", s.traced, usual.traced);
  add_if(d, "copied", s.copied, usual.copied);
  add_if(d, "dropout", s.dropout, usual.dropout);
  add_if(d, "four_bits", static_cast<int>(s.four_bits), static_cast<int>(usual.four_bits));
}

template <class List>
void add_list(Digest& d, std::string_view key, const List& list) {
  d.add(key, list.size());
  for (const auto& item : list) d.add("", item);
}

}  // namespace

std::string_view name(OpKind kind) { return text(kind); }

std::int64_t Parameter::numel() const {
  std::int64_t n = 1;
  for (std::int64_t d : shape) n = checked_mul(n, d, name);
  return n;
}

std::int64_t Parameter::numbers() const { return checked_mul(numel(), packed, name); }

std::int64_t ModelGraph::parameter_count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters) n = checked_add(n, p.numbers(), p.name);
  return n;
}

std::int64_t ModelGraph::gradient_numel(std::int32_t parameter) const {
  const Parameter& p = parameters[static_cast<std::size_t>(parameter)];
  return p.tensor_gradient == TensorGradient::whole ? checked_mul(p.numel(), tensor_ranks, p.name) : p.numel();
}

std::int32_t ModelGraph::find_module(std::string_view wanted) const {
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (modules[i].name == wanted) return static_cast<std::int32_t>(i);
  }
  return -1;
}

void set_op_ranges(ModelGraph& model) {
  for (Module& m : model.modules) m.op_begin = m.op_end = 0;
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    for (std::int32_t m = model.ops[i].module; m >= 0;) {
      Module& module = model.modules[static_cast<std::size_t>(m)];
      if (module.op_end == 0) module.op_begin = index;
      module.op_end = index + 1;
      m = module.parent;
    }
  }
}

std::vector<std::int32_t> inputs_from_before(const ModelGraph& model, std::int32_t begin, std::int32_t end) {
  std::vector<char> unread(model.tensors.size());
  for (std::int32_t i = 0; i < begin; ++i)
    for (const std::int32_t t : model.ops[at(i)].outputs) unread[at(t)] = 1;
  std::vector<std::int32_t> inputs;
  for (std::int32_t i = begin; i < end; ++i)
    for (const std::int32_t t : model.ops[at(i)].inputs)
      if (std::exchange(unread[at(t)], 0)) inputs.push_back(t);
  return inputs;
}

Gradients needed_gradients(const Op& op, const ModelGraph& model) {
  const auto tensor = [&](std::int32_t t) { return model.tensors[static_cast<std::size_t>(t)].requires_grad; };
  const auto parameter = [&](std::int32_t p) { return model.parameters[static_cast<std::size_t>(p)].trainable; };
  return {op.inputs.empty() || tensor(op.inputs[0]), op.params.empty() || parameter(op.params[0])};
}

// The model's own name, its family and what its config allows at most are for people: two files that describe the same
// modules, parameters and ops have one digest.
std::string ModelGraph::digest() const {
  Digest d;
  for (const Module& m : modules) {
    d.add("module", m.name);
    d.add("class", m.class_name);
    d.add("parent", m.parent);
    d.add("begin", m.op_begin);
    d.add("end", m.op_end);
    d.add("flags", (m.container ? 1 : 0) + (m.block ? 2 : 0));
  }
  for (const Parameter& p : parameters) {
    d.add("parameter", p.name);
    add_list(d, "shape", p.shape);
    add_list(d, "aliases", p.aliases);
    add_list(d, "owners", p.modules);
    d.add("trainable", p.trainable);
  }
  for (const Tensor& t : tensors) {
    d.add("tensor", t.width);
    d.add("kind", static_cast<int>(t.kind) + (t.requires_grad ? 8 : 0));
    add_experts(d, t.experts);
  }
  for (const Op& op : ops) {
    d.add("op", fsdp::name(op.kind));
    d.add("module", op.module);
    add_list(d, "inputs", op.inputs);
    add_list(d, "outputs", op.outputs);
    add_list(d, "params", op.params);
    add_shape(d, op.shape);
  }
  d.add("ids", ids);
  d.add("targets", targets);
  if (prepared) d.add("prepared", prepared);
  add_trace(d, trace);
  return d.text();
}

// The rounding error of double arithmetic must not round up to one more slot. The correction takes less than one slot
// from a whole capacity up to 10^12 tokens (far beyond a micro-batch).
std::int64_t Experts::capacity(std::int64_t tokens) const {
  const double share =
      static_cast<double>(tokens) * static_cast<double>(top_k) / static_cast<double>(count) * capacity_factor;
  if (share >= static_cast<double>(tokens)) return tokens;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(share * (1 - 1e-12))), 1,
                                  std::max<std::int64_t>(1, tokens));
}

std::int64_t rows(const Experts& e, const Workload& w) {
  return e.count == 0 ? w.tokens() : checked_mul(e.multiplied(), e.capacity(w.tokens()), "slots of experts");
}

std::int64_t elements(const Tensor& t, const Workload& w) {
  if (t.kind == TensorKind::loss) return 1;
  return checked_mul(t.width, rows(t.experts, w), "tensor size") / t.sequence_parts;
}

}  // namespace fsdp
