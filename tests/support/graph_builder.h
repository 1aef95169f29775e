// What hand-made graphs of the tests are put together from: ids come in, modules in registration order, ops in
// execution order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/graph.h"

namespace fsdp::testing {

class GraphBuilder {
 protected:
  void begin(const std::string& name, std::int64_t vocab) {
    g_.name = g_.family = name;
    g_.vocab = vocab;
    g_.ids = tensor(TensorKind::ids, 1);
    g_.targets = tensor(TensorKind::ids, 1);
  }

  std::int32_t tensor(TensorKind kind, std::int64_t width) {
    Tensor t;
    t.kind = kind;
    t.width = width;
    t.requires_grad = kind != TensorKind::ids;
    g_.tensors.push_back(t);
    return static_cast<std::int32_t>(g_.tensors.size()) - 1;
  }

  std::int32_t module(const std::string& name, const std::string& cls, std::int32_t parent) {
    Module m;
    m.name = name;
    m.class_name = cls;
    m.parent = parent;
    g_.modules.push_back(m);
    return static_cast<std::int32_t>(g_.modules.size()) - 1;
  }

  std::int32_t parameter(const std::string& name, std::int32_t owner, std::vector<std::int64_t> shape) {
    Parameter p;
    p.name = name;
    p.modules = {owner};
    p.shape = std::move(shape);
    g_.parameters.push_back(p);
    return static_cast<std::int32_t>(g_.parameters.size()) - 1;
  }

  // Appends an op with one activation of this width, and answers with it. It belongs to the module and to those around
  // it; of what runs twice, ranges are hulls.
  std::int32_t op(OpKind kind, std::int32_t m, std::vector<std::int32_t> in, std::int64_t width,
                  std::vector<std::int32_t> params, const OpShape& shape) {
    Op o;
    o.kind = kind;
    o.module = m;
    o.inputs = std::move(in);
    o.params = std::move(params);
    o.shape = shape;
    const std::int32_t out = tensor(TensorKind::activation, width);
    o.outputs = {out};
    const std::int32_t index = static_cast<std::int32_t>(g_.ops.size());
    g_.ops.push_back(o);
    for (; m >= 0; m = g_.modules[static_cast<std::size_t>(m)].parent) {
      Module& around = g_.modules[static_cast<std::size_t>(m)];
      if (around.op_begin == around.op_end) around.op_begin = index;
      around.op_end = index + 1;
    }
    return out;
  }

  std::int32_t embedding(std::int32_t m, std::int32_t weight, std::int64_t width) {
    OpShape shape;
    shape.vocab = g_.vocab;
    shape.width = width;
    return op(OpKind::embedding, m, {g_.ids}, width, {weight}, shape);
  }

  // params: the weight, and a bias where there is one.
  std::int32_t linear(std::int32_t m, std::int32_t x, std::vector<std::int32_t> params, std::int64_t in,
                      std::int64_t out) {
    OpShape shape;
    shape.in = in;
    shape.out = out;
    return op(OpKind::linear, m, {x}, out, std::move(params), shape);
  }

  // gelu, or a sum of two.
  std::int32_t pointwise(OpKind kind, std::int32_t m, std::vector<std::int32_t> in, std::int64_t width) {
    OpShape shape;
    shape.width = width;
    return op(kind, m, std::move(in), width, {}, shape);
  }

  void loss(std::int32_t logits) {
    Op ce;
    ce.kind = OpKind::cross_entropy;
    ce.inputs = {logits, g_.targets};
    ce.outputs = {tensor(TensorKind::loss, 1)};
    ce.shape.vocab = g_.vocab;
    g_.ops.push_back(ce);
  }

  ModelGraph g_;
};

}  // namespace fsdp::testing
