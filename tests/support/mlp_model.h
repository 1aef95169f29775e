// Networks of linear layers by their sizes, as PyTorch's tests of fully_shard use them. A batch here is tokens, so an
// embedding comes first, and the last width is the vocabulary of the loss; gelu stands where those tests have relu.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/graph_builder.h"

namespace fsdp::testing {

struct Mlp {
  std::vector<std::vector<std::int64_t>> blocks = {
      {16, 15, 8}};        // widths: in, hidden..., out; a block's in is the last one's out
  std::int64_t vocab = 0;  // with a head: linear from the last width to it; 0: none, the last width is the vocabulary
  bool bias = true;
  std::vector<int> order = {};  // of the blocks' runs; empty: once each
  bool unused = false;          // a linear layer beside the first block whose result nobody reads
};

class MlpBuilder : GraphBuilder {
 public:
  explicit MlpBuilder(Mlp m) : m_(std::move(m)) {}

  ModelGraph build() {
    begin("mlp", m_.vocab > 0 ? m_.vocab : m_.blocks.back().back());
    module("", "Mlp", -1);
    const std::int64_t first = m_.blocks.front().front();
    const std::int32_t embed = module("embed", "Embedding", 0);
    std::int32_t x = embedding(embed, parameter("embed.weight", embed, {g_.vocab, first}), first);
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
      const std::int64_t last = m_.blocks.back().back();
      x = linear(head, x, layer_params("head", head, last, m_.vocab), last, m_.vocab);
    }
    loss(x);
    if (m_.order.empty()) check_graph(g_, "mlp");  // of what runs twice, ranges are hulls
    return g_;
  }

 private:
  struct Layer {
    std::int32_t module = -1;
    std::int64_t in = 0, out = 0;
    std::vector<std::int32_t> params;
  };
  struct Block {
    std::int32_t module = -1;
    std::vector<Layer> layers;
    std::vector<std::int32_t> acts;
  };

  std::vector<std::int32_t> layer_params(const std::string& name, std::int32_t owner, std::int64_t in,
                                         std::int64_t out) {
    std::vector<std::int32_t> ids = {parameter(name + ".weight", owner, {out, in})};
    if (m_.bias) ids.push_back(parameter(name + ".bias", owner, {out}));
    return ids;
  }
  void beside(std::int32_t x, std::int64_t width) {
    const std::int32_t m = module("unused", "Linear", 0);
    static_cast<void>(linear(m, x, layer_params("unused", m, width, width), width, width));
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
      block.layers.push_back({m, w[i], w[i + 1], layer_params(layer, m, w[i], w[i + 1])});
      if (i + 2 < w.size()) block.acts.push_back(module(name + "." + std::to_string(2 * i + 1), "GELU", block.module));
    }
    declared_.push_back(block);
  }

  std::int32_t run(int b, std::int32_t x) {
    const Block& block = declared_[static_cast<std::size_t>(b)];
    for (std::size_t i = 0; i < block.layers.size(); ++i) {
      const Layer& l = block.layers[i];
      x = linear(l.module, x, l.params, l.in, l.out);
      if (i < block.acts.size()) x = pointwise(OpKind::gelu, block.acts[i], {x}, l.out);
    }
    return x;
  }

  Mlp m_;
  std::vector<Block> declared_;
};

inline ModelGraph mlp(Mlp m = {}) { return MlpBuilder(std::move(m)).build(); }

}  // namespace fsdp::testing
