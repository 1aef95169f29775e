// A small network for tests of order and memory, built by hand so that its numbers can be derived in comments: an
// embedding, L blocks of linear - gelu - linear - add, a head and the loss. Root parameters: embedding and head.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/plan.h"
#include "tests/support/graph_builder.h"

namespace toy {

using namespace fsdp;

// order: the blocks as they run, each first in its place; empty: once each. A block that runs again has others between.
// second_half: two modules hold everything, "0" (the embedding and `blocks` blocks) and "1" (so many, and the head).
struct Shape {
  int blocks = 3;
  std::int64_t vocab = 11, width = 6, hidden = 10;
  bool tied = false;
  std::vector<int> order = {};
  std::optional<int> second_half = {};
};

class Builder : testing::GraphBuilder {
 public:
  explicit Builder(const Shape& s) : s_(s) {}

  ModelGraph build() {
    begin("toy", s_.vocab);
    module("", "Toy", -1);
    if (s_.second_half) return halves();
    const std::int32_t embed = parameter("embed.weight", module("embed", "Embedding", 0), {s_.vocab, s_.width});
    std::int32_t x = embedding(1, embed, s_.width);
    const std::int32_t list = module("layers", "ModuleList", 0);
    g_.modules[2].container = true;
    if (s_.order.empty())
      for (int b = 0; b < s_.blocks; ++b) x = block(b, list, x);
    for (int b : s_.order) x = g_.find_module("layers." + std::to_string(b)) < 0 ? block(b, list, x) : again(b, x);
    const std::int32_t head = module("head", "Linear", 0);
    std::int32_t weight = embed;
    if (s_.tied) {
      g_.parameters[0].aliases = {"head.weight"};
      g_.parameters[0].modules.push_back(head);
    } else {
      weight = parameter("head.weight", head, {s_.vocab, s_.width});
    }
    const std::int32_t logits = linear(head, x, {weight}, s_.width, s_.vocab);
    loss(logits);
    return g_;
  }

 private:
  ModelGraph halves() {
    const std::int32_t first = module("0", "Half", 0);
    const std::int32_t embed = parameter("0.embed.weight", module("0.embed", "Embedding", first), {s_.vocab, s_.width});
    std::int32_t x = blocks_of(first, s_.blocks, embedding(2, embed, s_.width));
    const std::int32_t second = module("1", "Half", 0);
    x = blocks_of(second, *s_.second_half, x);
    const std::int32_t head = module("1.head", "Linear", second);
    loss(linear(head, x, {parameter("1.head.weight", head, {s_.vocab, s_.width})}, s_.width, s_.vocab));
    return g_;
  }

  std::int32_t blocks_of(std::int32_t half, int count, std::int32_t x) {
    const std::string list = g_.modules[static_cast<std::size_t>(half)].name + ".layers";
    const std::int32_t m = module(list, "ModuleList", half);
    g_.modules[static_cast<std::size_t>(m)].container = true;
    for (int b = 0; b < count; ++b) x = block(list + "." + std::to_string(b), m, x);
    return x;
  }

  std::int32_t block(int b, std::int32_t list, std::int32_t x) { return block("layers." + std::to_string(b), list, x); }

  std::int32_t block(const std::string& name, std::int32_t list, std::int32_t x) {
    const std::int32_t m = module(name, "Block", list);
    g_.modules[static_cast<std::size_t>(m)].block = true;
    const std::int32_t up = module(name + ".up", "Linear", m);
    const std::int32_t up_weight = parameter(name + ".up.weight", up, {s_.hidden, s_.width});
    const std::int32_t act = module(name + ".act", "GELU", m), down = module(name + ".down", "Linear", m);
    return run(m, {up, act, down}, up_weight, parameter(name + ".down.weight", down, {s_.width, s_.hidden}), x);
  }

  // The ops of a block once more.
  std::int32_t again(int b, std::int32_t x) {
    const std::int32_t m = g_.find_module("layers." + std::to_string(b));
    const auto weight = [&](std::int32_t module) {
      for (std::size_t p = 0; p < g_.parameters.size(); ++p)
        if (g_.parameters[p].modules[0] == module) return static_cast<std::int32_t>(p);
      return -1;
    };
    return run(m, {m + 1, m + 2, m + 3}, weight(m + 1), weight(m + 3), x);
  }

  struct Parts {
    std::int32_t up = -1, act = -1, down = -1;
  };
  std::int32_t run(std::int32_t m, const Parts& parts, std::int32_t up_weight, std::int32_t down_weight,
                   std::int32_t x) {
    std::int32_t h = linear(parts.up, x, {up_weight}, s_.width, s_.hidden);
    h = pointwise(OpKind::gelu, parts.act, {h}, s_.hidden);
    h = linear(parts.down, h, {down_weight}, s_.hidden, s_.width);
    return pointwise(OpKind::add, m, {x, h}, s_.width);
  }

  Shape s_;
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
