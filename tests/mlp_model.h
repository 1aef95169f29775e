// Networks of linear layers by their sizes, as PyTorch's tests of fully_shard use them. A batch here is tokens, so an embedding comes
// first, and the last width is the vocabulary of the loss; gelu stands where those tests have relu.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/graph.h"

namespace fsdp::testing {

struct Mlp {
  std::vector<std::vector<std::int64_t>> blocks = {{16, 15, 8}};   // widths: in, hidden..., out; a block's in is the last one's out
  std::int64_t vocab = 0;                    // with a head: linear from the last width to it; 0: none, the last width is the vocabulary
  bool bias = true;
  std::vector<int> order = {};               // of the blocks' runs; empty: once each
  bool unused = false;                       // a linear layer beside the first block whose result nobody reads
};

class MlpBuilder {
 public:
  explicit MlpBuilder(Mlp m) : m_(std::move(m)) {}

  ModelGraph build() {
    g_.name = g_.family = "mlp";
    g_.vocab = m_.vocab > 0 ? m_.vocab : m_.blocks.back().back();
    g_.ids = tensor(TensorKind::ids, 1);
    g_.targets = tensor(TensorKind::ids, 1);
    module("", "Mlp", -1);
    const std::int64_t first = m_.blocks.front().front();
    const std::int32_t embed = module("embed", "Embedding", 0);
    Op e = op(OpKind::embedding, embed, {g_.ids}, {parameter("embed.weight", embed, {g_.vocab, first})});
    e.shape.vocab = g_.vocab;
    e.shape.width = first;
    std::int32_t x = issue(e, first);
    if (m_.unused) beside(x, first);
    const std::int32_t list = module("layers", "ModuleList", 0);
    g_.modules.back().container = true;
    std::vector<int> order = m_.order;
    if (order.empty())
      for (std::size_t b = 0; b < m_.blocks.size(); ++b) order.push_back(static_cast<int>(b));
    // Modules come in registration order, ops in the order of the runs.
    for (std::size_t b = 0; b < m_.blocks.size(); ++b) declare(static_cast<int>(b), list);
    for (const int b : order) x = run(b, x);
    if (m_.vocab > 0) {
      const std::int32_t head = module("head", "Linear", 0);
      x = linear(head, {"head", m_.blocks.back().back(), m_.vocab, layer_params("head", head, m_.blocks.back().back(), m_.vocab)}, x);
    }
    Op ce;
    ce.kind = OpKind::cross_entropy;
    ce.inputs = {x, g_.targets};
    ce.outputs = {tensor(TensorKind::loss, 1)};
    ce.shape.vocab = g_.vocab;
    g_.ops.push_back(ce);
    ranges();
    if (m_.order.empty()) check_graph(g_, "mlp");                        // of what runs twice, ranges are hulls
    return g_;
  }

 private:
  struct Layer { std::string name; std::int64_t in = 0, out = 0; std::vector<std::int32_t> params; };
  struct Block { std::int32_t module = -1; std::vector<std::pair<std::int32_t, Layer>> layers; std::vector<std::int32_t> acts; };

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
  std::vector<std::int32_t> layer_params(const std::string& name, std::int32_t owner, std::int64_t in, std::int64_t out) {
    std::vector<std::int32_t> ids = {parameter(name + ".weight", owner, {out, in})};
    if (m_.bias) ids.push_back(parameter(name + ".bias", owner, {out}));
    return ids;
  }
  static Op op(OpKind kind, std::int32_t m, std::vector<std::int32_t> in, std::vector<std::int32_t> params) {
    Op o;
    o.kind = kind;
    o.module = m;
    o.inputs = std::move(in);
    o.params = std::move(params);
    return o;
  }
  std::int32_t issue(Op o, std::int64_t width) {
    o.outputs = {tensor(TensorKind::activation, width)};
    g_.ops.push_back(o);
    return o.outputs[0];
  }
  std::int32_t linear(std::int32_t m, const Layer& l, std::int32_t x) {
    Op o = op(OpKind::linear, m, {x}, l.params);
    o.shape.in = l.in;
    o.shape.out = l.out;
    return issue(o, l.out);
  }
  void beside(std::int32_t x, std::int64_t width) {
    const std::int32_t m = module("unused", "Linear", 0);
    static_cast<void>(linear(m, {"unused", width, width, layer_params("unused", m, width, width)}, x));
  }

  void declare(int b, std::int32_t list) {
    const std::string name = "layers." + std::to_string(b);
    Block block;
    block.module = module(name, "Block", list);
    g_.modules.back().block = true;
    const std::vector<std::int64_t>& w = m_.blocks[static_cast<std::size_t>(b)];
    for (std::size_t i = 0; i + 1 < w.size(); ++i) {
      const std::string layer = name + "." + std::to_string(2 * i);
      const std::int32_t m = module(layer, "Linear", block.module);
      block.layers.push_back({m, {layer, w[i], w[i + 1], layer_params(layer, m, w[i], w[i + 1])}});
      if (i + 2 < w.size()) block.acts.push_back(module(name + "." + std::to_string(2 * i + 1), "GELU", block.module));
    }
    declared_.push_back(block);
  }

  std::int32_t run(int b, std::int32_t x) {
    const Block& block = declared_[static_cast<std::size_t>(b)];
    for (std::size_t i = 0; i < block.layers.size(); ++i) {
      x = linear(block.layers[i].first, block.layers[i].second, x);
      if (i == block.acts.size()) continue;
      Op act = op(OpKind::gelu, block.acts[i], {x}, {});
      act.shape.width = block.layers[i].second.out;
      x = issue(act, act.shape.width);
    }
    return x;
  }

  void ranges() {
    std::vector<char> seen(g_.modules.size(), 0);
    for (std::size_t i = 0; i < g_.ops.size(); ++i)
      for (std::int32_t m = g_.ops[i].module; m >= 0; m = g_.modules[static_cast<std::size_t>(m)].parent) {
        Module& module = g_.modules[static_cast<std::size_t>(m)];
        if (seen[static_cast<std::size_t>(m)] == 0) module.op_begin = static_cast<std::int32_t>(i);
        seen[static_cast<std::size_t>(m)] = 1;
        module.op_end = static_cast<std::int32_t>(i) + 1;
      }
  }

  Mlp m_;
  ModelGraph g_;
  std::vector<Block> declared_;
};

inline ModelGraph mlp(Mlp m = {}) { return MlpBuilder(std::move(m)).build(); }

}  // namespace fsdp::testing
