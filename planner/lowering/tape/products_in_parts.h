// Writing down asynchronous tensor parallelism: a gather with the products that read it, and a product with the
// reduce-scatter of its sums, in parts of one tensor rank's rows each, on two streams in turn, so that a part moves
// while another is multiplied. As PyTorch 2.15 compiles blocks with _micro_pipeline_tp
// (torch/_inductor/fx_passes/micro_pipeline_tp.py, torch/distributed/_symmetric_memory/__init__.py; the order is
// recorded by tests/torch/record_async_tensor.py). Of n ranks, C the compute stream, S the second one:
//
//   gather and m products       C share_part; m products of its own rows
//                               for k = 1 .. n - 1, on S if k is odd, else on C: pull_part k; m products
//                               the own rows beside the others, if they are needed (S if n is odd, else C)
//                               C tensor_barrier                       n (m + 1) + 1 operations, and 1 for the own rows
//   product and scatter         C tensor_barrier
//                               for k = 1 .. n - 1, on S if k is odd, else on C: product k; exchange_part n - k
//                               C product of its own rows; tensor_barrier; sum_parts             2 n + 2 operations
//
// The gradient of a scatter is a gather with the product for the gradient of the layer's input; that of a gather is the
// sum of several products, and its reduce-scatter stays one by itself. For planner/lowering/tape/ alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "planner/lowering/tape/gradient_writer.h"

namespace fsdp {

class ProductsInParts : protected GradientWriter {
 protected:
  struct Product {
    std::int32_t layer = kNone, result = kNone;  // graph op, value
  };
  struct Readers {                       // of what is gathered
    std::vector<std::int32_t> in_parts;  // layers whose product runs in parts; none: the gather is one by itself
    bool others = false;                 // there are others
  };

  ProductsInParts(const ModelGraph& model, const Implementation& impl, const Workload& work, DType dtype)
      : GradientWriter(model, impl, work, dtype), ranks_(impl.async_tensor ? model.tensor_ranks : 1) {
    if (ranks_ > 1) multiplied_.assign(model.ops.size(), 0);
  }

  // A layer of a compiled block whose one product can run in parts: PyTorch looks for mm, which a bias makes addmm.
  [[nodiscard]] bool runs_in_parts(std::int32_t i) const {
    if (ranks_ == 1 || i < 0) return false;
    const Op& op = model_.ops[at(i)];
    return op.kind == OpKind::linear && op.params.size() == 1 && op.shape.float8 == Float8Recipe::none &&
           in_block(op.module);
  }
  // Of one sequence the gathered rows are a view that PyTorch's pattern does not see: the gather stays one by itself.
  [[nodiscard]] bool gathers_in_parts() const { return ranks_ > 1 && work_.sequences > 1; }

  // The layer's sums are scattered by the op behind it.
  [[nodiscard]] bool scattered_in_parts(std::int32_t layer) const {
    if (!runs_in_parts(layer) || at(layer) + 1 >= model_.ops.size()) return false;
    const Op& next = model_.ops[at(layer) + 1];
    return next.shape.redistribution == Redistribution::scatter && next.inputs[0] == model_.ops[at(layer)].outputs[0];
  }

  // Up to op `last` (kNone: all), without those that are left out.
  [[nodiscard]] Readers readers_of(std::int32_t i, std::int32_t last = kNone,
                                   const std::vector<char>* left_out = nullptr) const {
    Readers readers;
    const Op& op = model_.ops[at(i)];
    if (op.shape.redistribution != Redistribution::gather || !gathers_in_parts()) return readers;
    const std::size_t end = last < 0 ? model_.ops.size() : at(last) + 1;
    for (std::size_t k = at(i) + 1; k < end; ++k) {
      if (model_.ops[k].inputs[0] != op.outputs[0] || (left_out != nullptr && (*left_out)[k] != 0)) continue;
      if (runs_in_parts(static_cast<std::int32_t>(k))) readers.in_parts.push_back(static_cast<std::int32_t>(k));
      else readers.others = true;
    }
    return readers;
  }

  // Has the layer's product (in backward: that for the gradient of its input) run with a gather? Asked once for each.
  [[nodiscard]] bool has_multiplied(std::int32_t layer) {
    return ranks_ > 1 && std::exchange(multiplied_[at(layer)], 0) != 0;
  }

  // In the turn of graph op i. PyTorch makes the rows of `gathered` in the order of the ranks whether they are read or
  // not. `kind`: if they are read afterwards, which takes a copy in the tensor's own order; returns that.
  std::int32_t gather_and_multiply(std::int32_t i, Action action, std::int32_t shard, std::int32_t gathered,
                                   std::optional<BufferKind> kind, std::span<const Product> products) {
    const bool again = action == Action::recompute;
    const std::int32_t rows = new_rows(gathered);
    move(Action::share_part, i, again, {shard, Access::read});
    spans_.push_back({rows, last_op(), kNone});
    for (const Product& p : products) spans_.push_back({p.result, last_op(), kNone});
    for (const Product& p : products)
      multiply(action, i, p.layer, 0, {shard, Access::read}, {p.result, Access::write, 0});
    for (std::int16_t k = 1; k < ranks_; ++k) {
      move(Action::pull_part, i, again, {rows, Access::write, k}, k);
      for (const Product& p : products)
        multiply(action, i, p.layer, k, {rows, Access::read, k}, {p.result, Access::write, k});
    }
    if (kind) {
      move(Action::reorder_tokens, i, again, {shard, Access::read}, static_cast<std::int16_t>(ranks_ % 2));
      tape_.ops.back().products = Products::rows;
      part_arg({rows, Access::write, 0});
    }
    move(Action::tensor_barrier, i, again, {});
    hold_until_now(shard);
    hold_until_now(rows);
    for (const Product& p : products) multiplied_[at(p.layer)] = 1;
    if (!kind) return kNone;
    const std::int32_t whole = new_tensor_value(gathered, *kind, /*wide=*/false);
    begin(Action::reorder_tokens, i);
    tape_.ops.back().recomputed = again;
    value_arg(rows, Access::read);
    value_arg(whole, Access::write);
    return whole;
  }

  // Backward of a scatter of what `layer` makes, in its turn: the gather of the gradient and the product for that of
  // the layer's input. The gradient of the weight follows in the layer's turn.
  void gather_and_multiply_gradient(std::int32_t i, std::int32_t layer, std::int32_t gradient) {
    const Op& op = model_.ops[at(layer)];
    const std::int32_t in = op.inputs[0], out = op.outputs[0];
    const Product product{layer, new_tensor_value(in, BufferKind::activation_gradient, /*wide=*/false)};
    const std::int32_t whole =
        gather_and_multiply(i, Action::backward, gradient, out, BufferKind::activation_gradient, {&product, 1});
    gradients_.read(gradient);
    gradients_.set(out, whole);
    gradients_.set(in, product.result);
  }

  // In the turn of graph op i, a scatter of what `layer` makes of `input`.
  void multiply_and_scatter(std::int32_t i, Action action, std::int32_t layer, std::int32_t input,
                            std::int32_t result) {
    const bool again = action == Action::recompute;
    const std::int32_t sums = new_rows(model_.ops[at(layer)].outputs[0]);
    move(Action::tensor_barrier, i, again, {});
    spans_.push_back({sums, last_op(), kNone});
    const auto ranks = static_cast<std::int16_t>(ranks_);
    for (std::int16_t k = 1; k < ranks; ++k) {
      multiply(action, i, layer, k, {input, Access::read, k}, {});
      move(Action::exchange_part, i, again, {sums, Access::write, static_cast<std::int16_t>(ranks - k)}, k);
    }
    multiply(action, i, layer, 0, {input, Access::read, 0}, {sums, Access::write, 0});
    move(Action::tensor_barrier, i, again, {});
    move(Action::sum_parts, i, again, {sums, Access::read});
    value_arg(result, Access::write);
    hold_until_now(input);
  }

 private:
  // All rows of a tensor, rank by rank.
  [[nodiscard]] std::int32_t new_rows(std::int32_t tensor) {
    return new_value(elements(model_.tensors[at(tensor)], work_) * size_of(dtype_), BufferKind::scratch, dtype_, kNone);
  }

  struct PartArg {
    std::int32_t value = kNone;
    Access access = Access::read;
    std::int16_t part = kNone;
  };

  [[nodiscard]] bool in_block(std::int32_t module) const {
    while (module >= 0 && !model_.modules[at(module)].block) module = model_.modules[at(module)].parent;
    return module >= 0;
  }

  void part_arg(PartArg a) {
    value_arg(a.value, a.access);
    tape_.args.back().part = a.part;
  }

  void begin_part(Action action, std::int32_t graph_op, std::int32_t turn, bool again, std::int16_t k) {
    begin(action, graph_op);
    TapeOp& op = tape_.ops.back();
    op.turn = turn;
    op.recomputed = again;
    op.part = k;
    op.parts = static_cast<std::int16_t>(ranks_);
    op.second_stream = k % 2 == 1;
  }

  // `k` decides the stream.
  void move(Action action, std::int32_t i, bool again, PartArg a, std::int16_t k = 0) {
    begin_part(action, i, i, again, k);
    tape_.ops.back().part = a.part;
    if (a.value >= 0) part_arg(a);
  }

  // The arguments of Action::forward and backward.
  void multiply(Action action, std::int32_t i, std::int32_t layer, std::int16_t k, PartArg from, PartArg into) {
    const bool back = action == Action::backward;
    begin_part(action, layer, i, action == Action::recompute, k);
    tape_.ops.back().products = Products::rows;
    part_arg(from);
    for (int absent = 0; absent < (back ? 2 : 0); ++absent) value_arg(kNone, Access::read);
    arg(Kind::parameter, model_.ops[at(layer)].params[0], Access::read);
    if (!back) part_arg(into);
    for (int absent = 0; absent < 2; ++absent) value_arg(kNone, Access::write);
    if (!back) return;
    part_arg(into);
    value_arg(kNone, Access::write);
  }

  const std::int64_t ranks_;      // 1: nothing runs in parts
  std::vector<char> multiplied_;  // by op; none where nothing runs in parts
};

}  // namespace fsdp
