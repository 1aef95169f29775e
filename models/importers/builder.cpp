#include "models/importers/builder.h"

#include <fmt/format.h>

#include <utility>

#include "models/graph/op_ranges.h"

namespace fsdp {
namespace {

template <class List>
auto& at(List& list, std::int32_t id) {
  return list[static_cast<std::size_t>(id)];
}

}  // namespace

GraphBuilder::GraphBuilder(std::string_view family, std::string_view root_class) {
  graph_.family = family;
  graph_.modules.push_back({.name = "", .class_name = std::string(root_class)});
  params_of_.emplace_back();
  for (std::int32_t* batch : {&graph_.ids, &graph_.targets}) {
    *batch = static_cast<std::int32_t>(graph_.tensors.size());
    graph_.tensors.push_back({TensorKind::ids, 1, false});
  }
}

// --- modules

std::string GraphBuilder::child_name(Id parent, std::string_view name) const {
  const std::string& prefix = at(graph_.modules, parent).name;
  return prefix.empty() ? std::string(name) : fmt::format("{}.{}", prefix, name);
}

GraphBuilder::Id GraphBuilder::module(Id parent, std::string_view name, std::string_view class_name) {
  graph_.modules.push_back({.name = child_name(parent, name), .class_name = std::string(class_name), .parent = parent});
  params_of_.emplace_back();
  return static_cast<Id>(graph_.modules.size()) - 1;
}

GraphBuilder::Id GraphBuilder::list(Id parent, std::string_view name) {
  const Id id = module(parent, name, "ModuleList");
  at(graph_.modules, id).container = true;
  return id;
}

GraphBuilder::Id GraphBuilder::block(Id list, std::int64_t index, std::string_view class_name) {
  const Id id = module(list, fmt::format("{}", index), class_name);
  at(graph_.modules, id).block = true;
  return id;
}

void GraphBuilder::parameter(Id module, std::string_view leaf, std::vector<std::int64_t> shape) {
  at(params_of_, module).push_back(static_cast<std::int32_t>(graph_.parameters.size()));
  graph_.parameters.push_back(
      {.name = child_name(module, leaf), .aliases = {}, .modules = {module}, .shape = std::move(shape)});
}

GraphBuilder::Id GraphBuilder::linear_module(Id parent, std::string_view name, std::int64_t in, std::int64_t out,
                                             bool bias, std::string_view class_name) {
  const Id id = module(parent, name, class_name);
  parameter(id, "weight", {out, in});
  if (bias) parameter(id, "bias", {out});
  return id;
}

GraphBuilder::Id GraphBuilder::conv1d_module(Id parent, std::string_view name, std::int64_t in, std::int64_t out) {
  const Id id = module(parent, name, "Conv1D");
  parameter(id, "weight", {in, out});
  parameter(id, "bias", {out});
  return id;
}

GraphBuilder::Id GraphBuilder::embedding_module(Id parent, std::string_view name, std::int64_t rows, std::int64_t width,
                                                std::string_view class_name) {
  const Id id = module(parent, name, class_name);
  parameter(id, "weight", {rows, width});
  return id;
}

GraphBuilder::Id GraphBuilder::norm_module(Id parent, std::string_view name, std::string_view class_name,
                                           std::int64_t width, bool bias) {
  const Id id = module(parent, name, class_name);
  parameter(id, "weight", {width});
  if (bias) parameter(id, "bias", {width});
  return id;
}

GraphBuilder::Id GraphBuilder::lm_head(Id embedding, bool tied) {
  const std::vector<std::int64_t> rows_and_width = weight_shape(embedding);
  if (!tied) return linear_module(0, "lm_head", rows_and_width[1], rows_and_width[0], false);
  const Id id = module(0, "lm_head", "Linear");
  const std::int32_t shared = at(params_of_, embedding)[0];
  at(params_of_, id).push_back(shared);
  at(graph_.parameters, shared).aliases.push_back(child_name(id, "weight"));
  at(graph_.parameters, shared).modules.push_back(id);
  return id;
}

// --- ops

const std::vector<std::int64_t>& GraphBuilder::weight_shape(Id module) const {
  return at(graph_.parameters, at(params_of_, module)[0]).shape;
}
std::int64_t GraphBuilder::width(Id tensor) const { return at(graph_.tensors, tensor).width; }

GraphBuilder::Id GraphBuilder::tensor(std::int64_t width, const Experts& experts) {
  graph_.tensors.push_back({TensorKind::activation, width, true, experts});
  return static_cast<Id>(graph_.tensors.size()) - 1;
}

GraphBuilder::Id GraphBuilder::op(OpKind kind, Id module, std::vector<Id> inputs, const OpShape& shape,
                                  std::int64_t width) {
  const Id out = tensor(width);
  graph_.ops.push_back({kind, module, std::move(inputs), {out}, at(params_of_, module), shape});
  return out;
}

GraphBuilder::Id GraphBuilder::embedding(Id module, Id ids) {
  const auto& shape = weight_shape(module);
  return op(OpKind::embedding, module, {ids}, {.width = shape[1], .vocab = shape[0]}, shape[1]);
}

GraphBuilder::Id GraphBuilder::position(Id module, Id x) {
  const auto& shape = weight_shape(module);
  return op(OpKind::position_embedding, module, {x}, {.width = shape[1], .positions = shape[0]}, shape[1]);
}

GraphBuilder::Id GraphBuilder::rms_norm(Id module, Id x, std::int64_t groups, double eps, const OpShape& variant) {
  OpShape shape = variant;
  shape.width = weight_shape(module)[0], shape.groups = groups, shape.eps = eps;
  return op(OpKind::rms_norm, module, {x}, shape, shape.in > 0 ? shape.width : width(x));
}

GraphBuilder::Id GraphBuilder::layer_norm(Id module, Id x, double eps) {
  return op(OpKind::layer_norm, module, {x}, {.width = weight_shape(module)[0], .eps = eps}, width(x));
}

GraphBuilder::Id GraphBuilder::linear(Id module, Id x, bool in_fp32) {
  const auto& shape = weight_shape(module);
  const bool transposed = at(graph_.modules, module).class_name == "Conv1D";
  const std::int64_t in = shape[transposed ? 0 : 1], out = shape[transposed ? 1 : 0];
  return op(OpKind::linear, module, {x}, {.in = in, .out = out, .transposed = transposed, .in_fp32 = in_fp32}, out);
}

// Rotation and activations have no parameters, whatever their module has.
GraphBuilder::Id GraphBuilder::rotary(Id module, Id x, OpShape shape) {
  const Id out = tensor((shape.heads + (shape.packed ? shape.kv_heads : 0)) * shape.head_dim);
  graph_.ops.push_back({OpKind::rotary, module, {x}, {out}, {}, shape});
  return out;
}

std::pair<GraphBuilder::Id, GraphBuilder::Id> GraphBuilder::rotary_of_parts(Id module, Id q, Id k,
                                                                            const OpShape& shape) {
  const std::pair<Id, Id> out{tensor(width(q)), tensor(shape.in > 0 ? shape.rotated : width(k))};
  graph_.ops.push_back({OpKind::rotary, module, {q, k}, {out.first, out.second}, {}, shape});
  return out;
}

GraphBuilder::Id GraphBuilder::attention(Id module, const std::vector<Id>& qkv, OpShape shape) {
  shape.packed = qkv.size() < 3;
  shape.sinks = !at(params_of_, module).empty();  // the only parameters of their own that such modules have
  return op(OpKind::attention, module, qkv, shape,
            shape.heads * (shape.v_head_dim > 0 ? shape.v_head_dim : shape.head_dim));
}

GraphBuilder::Id GraphBuilder::swiglu(Id module, Id gate, Id up) {
  return op(OpKind::swiglu, module, {gate, up}, {.width = width(gate)}, width(gate));
}

GraphBuilder::Id GraphBuilder::gelu(Id module, Id x, bool tanh, bool fast) {
  return op(OpKind::gelu, module, {x}, {.width = width(x), .tanh = tanh, .fast = fast}, width(x));
}

GraphBuilder::Id GraphBuilder::geglu(Id module, Id gate, Id up) {
  return op(OpKind::geglu, module, {gate, up}, {.width = width(gate)}, width(gate));
}

// Where a module with a weight scales or caps its result, the op is another one of that module, without its weight.
GraphBuilder::Id GraphBuilder::op_without_weight(OpKind kind, Id module, Id x, OpShape shape) {
  shape.width = width(x);
  const Id out = tensor(shape.width);
  graph_.ops.push_back({kind, module, {x}, {out}, {}, shape});
  return out;
}

GraphBuilder::Id GraphBuilder::scale(Id module, Id x, double factor) {
  return op_without_weight(OpKind::scale, module, x, {.factor = factor});
}

GraphBuilder::Id GraphBuilder::soft_cap(Id module, Id x, double cap) {
  return op_without_weight(OpKind::soft_cap, module, x, {.cap = cap});
}

GraphBuilder::Id GraphBuilder::add(Id module, Id a, Id b) {
  return op(OpKind::add, module, {a, b}, {.width = width(a)}, width(a));
}

// Tensors with slots instead of tokens carry that themselves: only routing, dispatching and combining set it.
GraphBuilder::Id GraphBuilder::packed_swiglu(Id module, Id gate_up, bool clamped) {
  const std::int64_t half = width(gate_up) / 2;
  const Experts experts = at(graph_.tensors, gate_up).experts;
  const Id out = tensor(half, experts);
  graph_.ops.push_back({OpKind::swiglu,
                        module,
                        {gate_up},
                        {out},
                        {},
                        {.width = half, .experts = experts, .packed = true, .clamped = clamped}});
  return out;
}

GraphBuilder::Routing GraphBuilder::moe_route(Id module, Id logits, const Experts& experts, OpShape variant) {
  const Routing out{tensor(experts.top_k), tensor(experts.top_k), variant.wide_weight};
  at(graph_.tensors, out.slots) = {TensorKind::ids, experts.top_k, false};
  variant.experts = experts;
  graph_.ops.push_back({OpKind::moe_route, module, {logits}, {out.weights, out.slots}, {}, variant});
  return out;
}

GraphBuilder::Id GraphBuilder::moe_dispatch(Id module, Id x, const Routing& routing, const Experts& experts,
                                            bool biased) {
  const Id out = tensor(width(x), experts);
  graph_.ops.push_back(
      {OpKind::moe_dispatch,
       module,
       {x, routing.slots},
       {out},
       {},
       {.width = width(x), .experts = experts, .wide_weight = routing.wide_weight, .keeps_order = biased}});
  return out;
}

GraphBuilder::Id GraphBuilder::expert_linear(Id module, std::size_t which, Id x, bool biased) {
  std::vector<std::int32_t> params = {at(params_of_, module)[which]};
  if (biased) params.push_back(at(params_of_, module)[which + 1]);
  const auto& shape = at(graph_.parameters, params[0]).shape;
  const std::int64_t in = shape[biased ? 1 : 2], out_width = shape[biased ? 2 : 1];
  const Experts experts = at(graph_.tensors, x).experts;
  const Id out = tensor(out_width, experts);
  graph_.ops.push_back({OpKind::expert_linear,
                        module,
                        {x},
                        {out},
                        std::move(params),
                        {.in = in, .out = out_width, .experts = experts, .transposed = biased}});
  return out;
}

GraphBuilder::Id GraphBuilder::moe_combine(Id module, Id y, const Routing& routing) {
  const Experts experts = at(graph_.tensors, y).experts;
  const Id out = tensor(width(y));
  graph_.ops.push_back({OpKind::moe_combine,
                        module,
                        {y, routing.weights, routing.slots},
                        {out},
                        {},
                        {.width = width(y), .experts = experts, .wide_weight = routing.wide_weight}});
  return out;
}

ModelGraph GraphBuilder::finish(Id logits, std::int64_t vocab, std::optional<std::int64_t> max_seq_len,
                                std::string_view where) {
  graph_.vocab = vocab;
  graph_.max_seq_len = max_seq_len;
  graph_.tensors.push_back({TensorKind::loss, 1, true});
  const auto loss = static_cast<Id>(graph_.tensors.size()) - 1;
  graph_.ops.push_back({OpKind::cross_entropy, -1, {logits, graph_.targets}, {loss}, {}, {.vocab = vocab}});
  set_op_ranges(graph_);
  check_graph(graph_, where);
  return std::move(graph_);
}

}  // namespace fsdp
