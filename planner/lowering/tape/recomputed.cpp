#include "planner/lowering/tape/recomputed.h"

#include <algorithm>

#include "models/index.h"

namespace fsdp {
namespace {

// Has autograd saved anything for the op's backward? A weight counts: it is needed for the gradient of the input. One
// in 4 bits does not: bitsandbytes' function holds it by itself.
bool saves(const Op& op, const OpFacts& f, const ModelGraph& model) {
  if (op.outputs.empty() || !model.tensors[at(op.outputs[0])].requires_grad) return false;
  const bool by_weight =
      !op.params.empty() && op.kind != OpKind::position_embedding && op.shape.four_bits == FourBits::none;
  return f.saved_extra_bytes > 0 || f.saved_outputs != 0 || f.saved_inputs != 0 || by_weight;
}

std::int64_t trained_bytes(const Op& op, const ModelGraph& model, std::int64_t element_bytes) {
  std::int64_t elements = 0;
  for (const std::int32_t p : op.params)
    if (model.parameters[at(p)].trainable) elements += model.parameters[at(p)].numel();
  return elements * element_bytes;
}

}  // namespace

void leave_to_gradients(std::span<OpFacts> facts, const ModelGraph& model, std::span<const std::int32_t> producer,
                        std::int64_t element_bytes) {
  std::vector<std::int64_t> gradients(facts.size(), 0);
  for (const Op& op : model.ops)
    for (const std::int32_t in : op.inputs) {
      const std::int32_t p = producer[at(in)];
      if (p >= 0 && facts[at(p)].makes_result_again) gradients[at(p)] += trained_bytes(op, model, element_bytes);
    }
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (!facts[i].makes_result_again) continue;
    std::int64_t& result = facts[i].backward_again.bytes[0];
    result = gradients[i] == 0 ? 0 : std::max<std::int64_t>(0, result - gradients[i]);
  }
}

bool counts_as_matmul(const Op& op) {
  const bool without_bias = op.params.size() == 1 || op.shape.float8 != Float8Recipe::none;
  return op.kind == OpKind::linear && without_bias && !op.shape.router && op.shape.four_bits == FourBits::none;
}

bool keeps_result(const Implementation& impl, const Op& op, const OpFacts& f, std::int64_t matmul) {
  return impl.keeps_selectively && !op.shape.router && op.shape.four_bits == FourBits::none &&
         impl.keeps_selectively(op, matmul) && f.attention != AttentionKernel::math;
}

void keep_no_copies(std::span<OpFacts> facts_of, const Module& m, const ModelGraph& model, const Implementation& impl,
                    const Workload& work) {
  if (!impl.compiled || model.float8 == Float8Recipe::none) return;
  Implementation without = impl;
  without.float8_copies = Float8Copies::none;
  for (std::int32_t i = m.op_begin; i < m.op_end; ++i)
    if (model.ops[at(i)].kind == OpKind::linear) facts_of[at(i)] = facts(without, model.ops[at(i)], work, model);
}

Region recomputed_region(std::int32_t begin, std::int32_t end, const ModelGraph& model, const Implementation& impl,
                         std::span<const OpFacts> facts, std::span<const std::int32_t> producer) {
  Region r{begin, end, begin - 1, kNone, impl.recompute_stops_early};
  for (std::int32_t i = begin; i < end; ++i) {
    const Op& op = model.ops[at(i)];
    const OpFacts& f = facts[at(i)];
    if (saves(op, f, model)) r.needed_by = i;
    if (f.saved_extra_bytes > 0 || f.saved_outputs != 0) r.last = std::max(r.last, i);
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const std::int32_t p = producer[at(op.inputs[k])];
      if (keeps(f.saved_inputs, k) && p >= begin && p < end) r.last = std::max(r.last, p);
    }
  }
  // What is saved last stops the recomputation: all before it has run then, also where that is a frozen layer's weight.
  r.last = std::max(r.last, r.needed_by - 1);
  // A linear layer in 8 bits is a function of Python's, whose inputs are saved when it has returned.
  if (r.runs() && !impl.compiled && model.ops[at(r.needed_by)].shape.float8 != Float8Recipe::none)
    r.last = std::max(r.last, r.needed_by);
  if (r.runs() && !r.stops_early) r.last = end - 1;
  return r;
}

void make_reentrant(Region& r, std::int32_t module, const Reentrant& reentrant) {
  if (!r.runs()) return;
  const std::vector<std::int32_t>& held = reentrant.leaves_held;
  r.reentrant = true, r.stops_early = false;
  r.last = r.needed_by = r.end - 1;
  r.leaves_held = std::find(held.begin(), held.end(), module) != held.end();
}

}  // namespace fsdp
