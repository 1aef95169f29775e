#include "executor/calibrate/ops.h"

#include <algorithm>
#include <numeric>

#include "executor/calibrate/calls.h"
#include "models/implementation.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

OpCase with(OpKind kind, std::vector<std::int64_t> inputs, std::vector<std::int64_t> params, std::int64_t output,
            Workload work, OpShape shape) {
  OpCase c;
  c.op.kind = kind;
  c.op.shape = shape;
  c.op.inputs.assign(inputs.size(), 0);
  c.op.params.assign(params.size(), 0);
  c.op.outputs.assign(1, 0);
  c.work = work;
  c.inputs = std::move(inputs);
  c.params = std::move(params);
  c.output = output;
  return c;
}

// One set of buffers of a kernel: forward's arguments, and backward's beside them.
struct Buffers {
  std::vector<BufferView> forward, backward;
};

BufferView take_bytes(BenchMemory& memory, std::int64_t n) {
  BufferView v = n > 0 ? memory.take(n / 8 + 1, DType::f64) : BufferView{};
  if (n > 0) v.bytes = n;
  return v;
}

// One for all sets: what a kernel leaves there, nobody reads, a product's is large on a GPU, and the kernels that share
// it run one after the other on one stream. It stays warm where inputs and outputs are cold, as an allocator's scratch
// does in a step.
struct Scratch {
  BufferView forward, backward;
};
Scratch make_scratch(const OpFacts& f, Part part, BenchMemory& memory) {
  return {take_bytes(memory, f.forward_scratch_bytes),
          part == Part::forward ? BufferView{} : take_bytes(memory, f.backward_scratch_bytes)};
}

Buffers make_buffers(const OpCase& c, Part part, DType type, const OpFacts& f, const Scratch& scratch,
                     BenchMemory& memory) {
  const bool loss = c.op.kind == OpKind::cross_entropy;
  std::vector<BufferView> inputs, params;
  for (std::size_t i = 0; i < c.inputs.size(); ++i)
    inputs.push_back(c.ids_below > 0 && i == c.ids_at ? memory.take_ids(c.inputs[i], c.ids_below)
                                                      : memory.take(c.inputs[i], type));
  for (const std::int64_t n : c.params) params.push_back(memory.take(n, type));
  std::vector<BufferView> outputs{memory.take(c.output, loss ? DType::f64 : type)};
  if (c.second_output > 0) outputs.push_back(memory.take_ids(c.second_output, 1));
  const BufferView extra = take_bytes(memory, f.saved_extra_bytes);
  Buffers b;
  b.forward = inputs;
  b.forward.insert(b.forward.end(), params.begin(), params.end());
  b.forward.insert(b.forward.end(), outputs.begin(), outputs.end());
  b.forward.insert(b.forward.end(), {extra, scratch.forward});
  if (part == Part::forward) return b;
  b.backward.push_back(loss ? BufferView{} : memory.take(c.output, type));
  if (c.second_output > 0) b.backward.emplace_back();
  b.backward.insert(b.backward.end(), inputs.begin(), inputs.end());
  b.backward.insert(b.backward.end(), outputs.begin(), outputs.end());
  b.backward.insert(b.backward.end(), params.begin(), params.end());
  b.backward.insert(b.backward.end(), {extra, scratch.backward});
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const bool wanted = part != Part::backward_weight && !(c.ids_below > 0 && i == c.ids_at);
    b.backward.push_back(wanted ? memory.take(c.inputs[i], type) : BufferView{});
  }
  for (const std::int64_t n : c.params)
    b.backward.push_back(part != Part::backward_input ? memory.take(n, type) : BufferView{});
  return b;
}

}  // namespace

OpCase linear_case(std::int64_t n, DType type, std::int64_t tokens) {
  const std::int64_t rows = tokens > 0 ? tokens : n;
  OpShape s;
  s.in = s.out = n;
  return with(OpKind::linear, {rows * n}, {n * n}, rows * n, {1, rows, size_of(type)}, s);
}

OpCase op_case(OpKind kind, std::int64_t elements, DType type, const CaseShape& shape) {
  const std::int64_t width = kind == OpKind::cross_entropy ? shape.vocab : shape.width;
  const std::int64_t tokens = std::max<std::int64_t>(1, elements / width), n = tokens * width;
  const Workload work{1, tokens, size_of(type)};
  OpShape s;
  s.width = width;
  switch (kind) {
    case OpKind::embedding: {
      s.vocab = 2048;
      OpCase c = with(kind, {tokens}, {s.vocab * width}, n, work, s);
      c.ids_below = s.vocab;
      return c;
    }
    case OpKind::position_embedding: s.positions = tokens; return with(kind, {n}, {n}, n, work, s);
    case OpKind::rms_norm: return with(kind, {n}, {width}, n, work, s);
    case OpKind::layer_norm: return with(kind, {n}, {width, width}, n, work, s);
    case OpKind::scale:
    case OpKind::gelu: return with(kind, {n}, {}, n, work, s);
    case OpKind::swiglu:
    case OpKind::add: return with(kind, {n, n}, {}, n, work, s);
    case OpKind::rotary: {  // angles are shared by the heads of a token
      s.heads = shape.heads;
      s.head_dim = shape.head_dim;
      const std::int64_t rotated = tokens * s.heads * s.head_dim;
      return with(kind, {rotated}, {}, rotated, work, s);
    }
    case OpKind::attention: {
      s.heads = shape.heads;
      s.kv_heads = shape.kv_heads;
      s.head_dim = shape.head_dim;
      const std::int64_t q = elements * s.heads * s.head_dim, kv = elements * s.kv_heads * s.head_dim;
      return with(kind, {q, kv, kv}, {}, q, {1, elements, size_of(type)}, s);
    }
    case OpKind::cross_entropy: {
      s.vocab = width;
      OpCase c = with(kind, {n, tokens}, {}, 1, work, s);
      c.ids_below = width;
      c.ids_at = 1;
      return c;
    }
    case OpKind::moe_route: {
      s.experts = {.count = 8, .top_k = 2};
      s.renormalised = true;
      const std::int64_t of_logits = std::max<std::int64_t>(1, elements / s.experts.count),
                         choices = of_logits * s.experts.top_k;
      OpCase c = with(kind, {of_logits * s.experts.count}, {}, choices, {1, of_logits, size_of(type)}, s);
      c.op.outputs.assign(2, 0);
      c.second_output = choices;
      return c;
    }
    case OpKind::moe_dispatch:
    case OpKind::moe_combine: {  // any slots: rows are copied and added the same
      s.experts = {.count = 8, .top_k = 2};
      const std::int64_t slots = rows(s.experts, work) * width, choices = tokens * s.experts.top_k;
      OpCase c = kind == OpKind::moe_dispatch ? with(kind, {n, choices}, {}, slots, work, s)
                                              : with(kind, {slots, choices, choices}, {}, n, work, s);
      c.ids_below = slots / width;
      c.ids_at = c.inputs.size() - 1;
      return c;
    }
    case OpKind::linear:
    case OpKind::expert_linear:
    case OpKind::opaque:
    case OpKind::geglu:
    case OpKind::soft_cap:
    case OpKind::redistribute:
    case OpKind::cast: break;
  }
  throw MachineError("no benchmark for " + std::string(name(kind)));
}

Setup kernel_setup(const OpCase& c, Part part, DType type) {
  return [c, part, type](BenchMemory& memory) -> Issue {
    const std::int64_t values =
        std::accumulate(c.inputs.begin(), c.inputs.end(), std::accumulate(c.params.begin(), c.params.end(), c.output));
    const OpFacts f = facts(memory.implementation(), c.op, c.work);
    const Scratch scratch = make_scratch(f, part, memory);
    std::vector<Buffers> sets;
    const Reuse reuse = part == Part::forward && c.op.kind != OpKind::linear ? Reuse::warm : Reuse::cold;
    for (int i = 0; i < buffer_sets(values * size_of(type) * (part == Part::forward ? 1 : 2), reuse); ++i)
      sets.push_back(make_buffers(c, part, type, f, scratch, memory));
    const LoneCall forward = LoneCall::of_op(c, false, type, sets.front().forward.size());
    Device& device = memory.device();
    device.begin_step();
    for (std::size_t i = 0; i < sets.size(); ++i)
      forward.launch(device, static_cast<std::int32_t>(i), sets[i].forward);  // fills what forward keeps for backward
    device.synchronize();
    if (part == Part::forward)
      return [forward, sets = std::move(sets)](Device& d, std::int32_t& op, int i) {
        forward.launch(d, op++, sets[static_cast<std::size_t>(i) % sets.size()].forward);
      };
    const LoneCall backward = LoneCall::of_op(c, true, type, sets.front().backward.size());
    return [backward, sets = std::move(sets)](Device& d, std::int32_t& op, int i) {
      backward.launch(d, op++, sets[static_cast<std::size_t>(i) % sets.size()].backward);
    };
  };
}

}  // namespace fsdp
