// fsdp1's flat parameters (planner/layout/flat.h): how a rank's part of one begins, and how gradients become one.
#include "planner/layout/flat.h"

#include <utility>

#include "executor/actions/actions.h"

namespace fsdp::actions {
namespace {

// Elements [first, first + count) of a parameter from the run's source. A flat shard cuts through rows; what is read is
// whole rows.
void read_flat(const KernelSet& kernels, const StateReader& state, StatePart part, const Parameter& p,
               std::int64_t first, std::int64_t count, DType type, std::byte* to) {
  const std::int64_t row = p.numel() / p.shape[0], width = size_of(type);
  while (count > 0) {
    const std::int64_t begin = first / row, skipped = first % row;
    const bool whole = skipped == 0 && count >= row;
    const std::int64_t rows = whole ? count / row : 1, taken = whole ? rows * row : std::min(count, row - skipped);
    const Slab slab{0, begin, rows};
    if (whole) {
      kernels.read_state(state, p, part, slab, type, to);
    } else {
      Parameter some = p;
      some.shape = {taken};
      const auto cut = [&, skipped](const Parameter&, StatePart, const Slab&, DType, std::byte* here) {
        std::vector<std::byte> one(at(row * width));
        state(p, part, slab, type, one.data());
        std::copy_n(one.data() + skipped * width, taken * width, here);
      };
      kernels.read_state(cut, some, part, Slab{0, 0, taken}, type, to);
    }
    first += taken, count -= taken, to += taken * width;
  }
}

struct FlatPart {
  std::int32_t param = kNone;
  FlatRange range;
  std::int64_t state = 0;  // place in the optimizer's state
};

// What this rank holds of each parameter. States are as the optimizer sees the shard: with use_orig_params the
// parameters' parts alone, one after the other.
std::vector<FlatPart> parts_of(const KernelCall& c) {
  const UnitLayout& layout = layout_of(c);
  std::vector<FlatPart> parts;
  std::int64_t dense = 0;
  for (const ShardedParam& p : layout.params) {
    const FlatRange range = flat_range(layout, p, shard_rank(c));
    if (range.elements == 0) continue;
    parts.push_back({p.param, range, layout.flat_aligned ? dense : range.offset_in_shard});
    dense += range.elements;
  }
  return parts;
}

}  // namespace

KernelBody init_flat_parameters(const KernelCall& c, const KernelSet& kernels) {
  const DType type = c.plan.master_dtype;
  return [&kernels, parts = parts_of(c), &model = c.model, type, seed = c.plan.seed, shard = c.views[0],
          &state = c.training.state] {
    kernels.zero(shard);
    for (const FlatPart& part : parts) {
      const Parameter& p = model.parameters[at(part.param)];
      const FlatRange& r = part.range;
      std::byte* to = shard.data + r.offset_in_shard * size_of(type);
      if (state) read_flat(kernels, state, StatePart::parameter, p, r.offset_in_param, r.elements, type, to);
      else kernels.initial_values(seed, p, r.offset_in_param, r.elements, type, to);
    }
  };
}

KernelBody init_flat_states(const KernelCall& c, const KernelSet& kernels) {
  return [&kernels, parts = parts_of(c), &model = c.model, type = c.plan.master_dtype, views = c.views,
          &state = c.training.state] {
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (views[i].bytes <= 0) continue;
      kernels.zero(views[i]);
      for (const FlatPart& part : parts)
        if (state)
          read_flat(kernels, state, kStateParts[i], model.parameters[at(part.param)], part.range.offset_in_param,
                    part.range.elements, type, views[i].data + part.state * size_of(type));
    }
  };
}

// Autograd's concatenation: each parameter's gradient to its place, zeros between them and for those without one.
KernelBody concatenate_gradients(const KernelCall& c, const KernelSet& kernels) {
  const UnitLayout& layout = layout_of(c);
  const std::size_t n = layout.params.size();
  if (c.views.size() < n + 1 || c.views.size() > n + 2) expect_args(c, n + 1);  // the last: PyTorch's zeros
  const DType type = c.plan.param_dtype;
  const std::int64_t width = size_of(type);
  const BufferView flat = c.views[n];
  expect_elements(flat, layout.flat_elements, type, "flat gradient");
  struct Copy {
    BufferView from, to;
  };
  std::vector<Copy> copies;  // without a source: zeros
  std::int64_t done = 0, zeros = 0;
  const auto zero_until = [&](std::int64_t end) {
    if (end > done) copies.push_back({{}, {flat.data + done * width, (end - done) * width}});
    zeros += end - done;
    done = end;
  };
  for (std::size_t i = 0; i < n; ++i) {
    const ShardedParam& p = layout.params[i];
    if (c.views[i].data == nullptr) continue;
    expect_elements(c.views[i], p.numel(), type, "gradient");
    zero_until(p.offset);
    copies.push_back({c.views[i], {flat.data + p.offset * width, p.numel() * width}});
    done += p.numel();
  }
  zero_until(layout.flat_elements);
  if (c.views.size() == n + 2) expect_elements(c.views[n + 1], zeros, type, "zeros");
  return [&kernels, copies = std::move(copies)] {
    for (const Copy& copy : copies) {
      if (copy.from.data == nullptr) kernels.zero(copy.to);
      else kernels.copy(copy.to.data, copy.from.data, copy.to.bytes);
    }
  };
}

namespace {

// Of an unsharded gradient that earlier micro-batches have left: without sharding, where each is reduced, what its
// reduction left; else as it was computed.
DType type_of_earlier(const KernelCall& c) {
  const bool reduced = c.plan.shard() == 1 && c.plan.grad_sync == GradSync::every && c.op.micro_batch > 0;
  return reduced ? c.plan.master_dtype : c.plan.param_dtype;
}

}  // namespace

// Unsharded before a reduction, this rank's part after it.
KernelBody add_flat_gradient(const KernelCall& c, const KernelSet& kernels) {
  const UnitLayout& layout = layout_of(c);
  const bool whole = buffer_of(c, 0).kind == BufferKind::gradient;
  const DType from = whole ? c.plan.param_dtype : c.plan.master_dtype;
  const DType into = whole ? type_of_earlier(c) : c.plan.master_dtype;
  const std::int64_t n = whole ? layout.flat_elements : layout.shard_elements;
  expect_elements(c.views[0], n, from, "flat gradient");
  expect_elements(c.views[1], n, into, "flat gradient");
  return [&kernels, from, into, views = c.views, n] { kernels.convert(from, views[0], into, views[1], n, true); };
}

// To the reduce dtype, or padded to equal parts.
KernelBody cast_flat_gradient(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  const UnitLayout& layout = layout_of(c);
  const bool computed = buffer_of(c, 0).kind == BufferKind::gradient;
  const DType from = computed ? type_of_earlier(c) : c.plan.reduce_dtype, to = c.plan.reduce_dtype;
  const std::int64_t n = layout.flat_elements, padded = layout.shard_elements * layout.shards, width = size_of(to);
  const bool pads = from == to;
  expect_elements(c.views[0], n, from, "flat gradient");
  expect_elements(c.views[1], pads ? padded : n, to, "flat gradient");
  const BufferView values{c.views[1].data, n * width};
  const BufferView padding{c.views[1].data + n * width, pads ? (padded - n) * width : 0};
  return [&kernels, from, to, source = c.views[0], values, padding, n] {
    kernels.convert(from, source, to, values, n, false);
    if (padding.bytes > 0) kernels.zero(padding);
  };
}

}  // namespace fsdp::actions
