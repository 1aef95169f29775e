// A small network for tests of order and memory, built by hand so that its numbers can be derived in comments: an embedding, L
// blocks of linear - gelu - linear - add, a head and the loss. Root parameters: embedding and head.
#pragma once

#include <string>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace toy {

using namespace fsdp;

// order: the blocks as they run, each first in its place; empty: once each. A block that runs again has others between.
struct Shape { int blocks = 3; std::int64_t vocab = 11, width = 6, hidden = 10; bool tied = false; std::vector<int> order = {}; };

class Builder {
 public:
  explicit Builder(const Shape& s) : s_(s) {}

  ModelGraph build() {
    g_.name = "toy";
    g_.family = "toy";
    g_.vocab = s_.vocab;
    g_.ids = tensor(TensorKind::ids, 1);
    g_.targets = tensor(TensorKind::ids, 1);
    module("", "Toy", -1);
    const std::int32_t embed = parameter("embed.weight", module("embed", "Embedding", 0), {s_.vocab, s_.width});
    std::int32_t x = op(OpKind::embedding, 1, {g_.ids}, s_.width, {embed}, [&](OpShape& o) { o.vocab = s_.vocab; o.width = s_.width; });
    const std::int32_t list = module("layers", "ModuleList", 0);
    g_.modules[2].container = true;
    if (s_.order.empty())
      for (int b = 0; b < s_.blocks; ++b) x = block(b, list, x);
    for (int b : s_.order) x = g_.find_module("layers." + std::to_string(b)) < 0 ? block(b, list, x) : again(b, x);
    close(list);
    const std::int32_t head = module("head", "Linear", 0);
    std::int32_t weight = embed;
    if (s_.tied) {
      g_.parameters[0].aliases = {"head.weight"};
      g_.parameters[0].modules.push_back(head);
    } else {
      weight = parameter("head.weight", head, {s_.vocab, s_.width});
    }
    const std::int32_t logits = linear(head, x, weight, s_.width, s_.vocab);
    close(0);
    const std::int32_t loss = tensor(TensorKind::loss, 0);
    Op ce;
    ce.kind = OpKind::cross_entropy;
    ce.inputs = {logits, g_.targets};
    ce.outputs = {loss};
    ce.shape.vocab = s_.vocab;
    g_.ops.push_back(ce);
    return g_;
  }

 private:
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
    m.op_begin = m.op_end = static_cast<std::int32_t>(g_.ops.size());
    g_.modules.push_back(m);
    return static_cast<std::int32_t>(g_.modules.size()) - 1;
  }

  void close(std::int32_t m) { g_.modules[static_cast<std::size_t>(m)].op_end = static_cast<std::int32_t>(g_.ops.size()); }

  std::int32_t parameter(const std::string& name, std::int32_t owner, std::vector<std::int64_t> shape) {
    Parameter p;
    p.name = name;
    p.modules = {owner};
    p.shape = std::move(shape);
    g_.parameters.push_back(p);
    return static_cast<std::int32_t>(g_.parameters.size()) - 1;
  }

  template <class Fill>
  std::int32_t op(OpKind kind, std::int32_t m, std::vector<std::int32_t> in, std::int64_t width, std::vector<std::int32_t> params, Fill fill) {
    Op o;
    o.kind = kind;
    o.module = m;
    o.inputs = std::move(in);
    o.params = std::move(params);
    fill(o.shape);
    const std::int32_t out = tensor(TensorKind::activation, width);
    o.outputs = {out};
    g_.ops.push_back(o);
    close(m);
    return out;
  }

  std::int32_t linear(std::int32_t m, std::int32_t x, std::int32_t weight, std::int64_t in, std::int64_t out) {
    return op(OpKind::linear, m, {x}, out, {weight}, [&](OpShape& o) { o.in = in; o.out = out; });
  }

  std::int32_t block(int b, std::int32_t list, std::int32_t x) {
    const std::string name = "layers." + std::to_string(b);
    const std::int32_t m = module(name, "Block", list);
    g_.modules[static_cast<std::size_t>(m)].block = true;
    const std::int32_t up = module(name + ".up", "Linear", m);
    std::int32_t h = linear(up, x, parameter(name + ".up.weight", up, {s_.hidden, s_.width}), s_.width, s_.hidden);
    h = op(OpKind::gelu, module(name + ".act", "GELU", m), {h}, s_.hidden, {}, [&](OpShape& o) { o.width = s_.hidden; });
    const std::int32_t down = module(name + ".down", "Linear", m);
    h = linear(down, h, parameter(name + ".down.weight", down, {s_.width, s_.hidden}), s_.hidden, s_.width);
    return op(OpKind::add, m, {x, h}, s_.width, {}, [&](OpShape& o) { o.width = s_.width; });
  }

  // The ops of a block once more; its modules' ranges become hulls.
  std::int32_t again(int b, std::int32_t x) {
    const std::int32_t m = g_.find_module("layers." + std::to_string(b));
    const std::int32_t up = m + 1, act = m + 2, down = m + 3;
    const auto weight = [&](std::int32_t module) {
      for (std::size_t p = 0; p < g_.parameters.size(); ++p)
        if (g_.parameters[p].modules[0] == module) return static_cast<std::int32_t>(p);
      return -1;
    };
    std::int32_t h = linear(up, x, weight(up), s_.width, s_.hidden);
    h = op(OpKind::gelu, act, {h}, s_.hidden, {}, [&](OpShape& o) { o.width = s_.hidden; });
    h = linear(down, h, weight(down), s_.hidden, s_.width);
    return op(OpKind::add, m, {x, h}, s_.width, {}, [&](OpShape& o) { o.width = s_.width; });
  }

  Shape s_;
  ModelGraph g_;
};

inline ModelGraph model(const Shape& s = {}) { return Builder(s).build(); }

// One unit per block, the rest in the root; everything in fp32 so that sizes are easy.
inline ShardingPlan plan(const ModelGraph& m, std::int64_t shard, std::int64_t replicate = 1) {
  ShardingPlan p;
  p.model_name = m.name;
  p.model_digest = m.digest();
  p.mesh = {{"replicate", replicate}, {"shard", shard}};
  for (const Module& module : m.modules)
    if (module.block) p.units.push_back({{module.name}, Reshard::automatic});
  p.units.push_back({{""}, Reshard::automatic});
  p.micro_batches = {2};
  p.seq_len = 5;
  p.param_dtype = p.reduce_dtype = p.master_dtype = DType::f32;
  return p;
}

}  // namespace toy
