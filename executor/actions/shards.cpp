// Shards: how they begin, and the copies between them and whole parameters.
#include <fmt/format.h>

#include "executor/actions/actions.h"
#include "executor/data/tensor_slab.h"
#include "models/input/error.h"
#include "planner/tensor/parts.h"

namespace fsdp::actions {
namespace {

Slab slab(const ShardedParam& p, std::int64_t rank) { return {p.dim, p.local_row_begin(rank), p.local_rows(rank)}; }

// What dimension `dim` of a row-major tensor is made of: `outer` blocks of rows of `inner` elements.
struct Rows {
  std::int64_t outer = 1, inner = 1;
};
Rows rows_of(const Parameter& p, std::int64_t dim) {
  Rows r;
  for (std::size_t d = 0; d < p.shape.size(); ++d) {
    if (static_cast<std::int64_t>(d) < dim) r.outer *= p.shape[d];
    if (static_cast<std::int64_t>(d) > dim) r.inner *= p.shape[d];
  }
  return r;
}

// A parameter's slab from the run's source, densely.
void fill_slab(const KernelSet& kernels, const StateReader& state, StatePart part, std::uint64_t seed,
               const Parameter& p, const Slab& s, DType type, std::byte* to) {
  const Rows r = rows_of(p, s.dim);
  if (state) return kernels.read_state(state, p, part, s, type, to);
  const std::int64_t width = s.rows * r.inner, whole = p.shape[static_cast<std::size_t>(s.dim)] * r.inner;
  for (std::int64_t o = 0; o < r.outer && width > 0; ++o)
    kernels.initial_values(seed, p, o * whole + s.begin * r.inner, width, type, to + o * width * size_of(type));
}

// Of parameters that are split over tensor ranks first: as the run's source or the plan's seed says.
KernelBody init_parts(const KernelCall& c, const KernelSet& kernels, const UnitLayout& layout) {
  return [&kernels, params = layout.params, &model = c.model, type = c.plan.master_dtype, seed = c.plan.seed,
          rank = shard_rank(c), member = tensor_rank(c), shard = c.views[0], parts = tensor_parts(c.model, c.plan),
          &state = c.training.state] {
    kernels.zero(shard);
    for (const ShardedParam& p : params) {
      const Parameter& parameter = model.parameters[at(p.param)];
      std::byte* to = shard.data + p.offset * size_of(type);
      if (state) {
        const Parameter whole = whole_of(parts[at(p.param)], parameter);
        kernels.read_state(state, whole, StatePart::parameter,
                           whole_slab(parts[at(p.param)], slab(p, rank), whole.shape, member), type, to);
        continue;
      }
      parts[at(p.param)].for_each_run(parameter, member, p.local_row_begin(rank), p.local_rows(rank),
                                      [&](std::int64_t first, std::int64_t count) {
                                        kernels.initial_values(seed, parameter, first, count, type, to);
                                        to += count * size_of(type);
                                      });
    }
  };
}

}  // namespace

KernelBody init_parameters(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 1);
  const DType type = c.plan.master_dtype;
  const auto [layout, rank] = layout_held(c);
  expect_elements(c.views[0], layout.shard_elements, type, "parameter shard");
  if (layout.flat_elements > 0) return init_flat_parameters(c, kernels);
  if (c.plan.tensor() > 1) return init_parts(c, kernels, layout);
  return [&kernels, params = layout.params, &model = c.model, type, seed = c.plan.seed, rank = rank, shard = c.views[0],
          &state = c.training.state] {
    kernels.zero(shard);
    for (const ShardedParam& p : params)
      fill_slab(kernels, state, StatePart::parameter, seed, model.parameters[at(p.param)], slab(p, rank), type,
                shard.data + p.offset * size_of(type));
  };
}

KernelBody init_optimizer(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  const auto [layout, rank] = layout_held(c);
  std::vector<ShardedParam> params;
  for (const ShardedParam& p : layout.params)
    if (p.trainable) params.push_back(p);
  for (const BufferView v : c.views)
    if (v.data != nullptr)
      expect_elements(v, layout.local_trained_elements(rank), c.plan.master_dtype, "optimizer state");
  if (layout.flat_elements > 0) return init_flat_states(c, kernels);
  return [&kernels, views = c.views, &state = c.training.state, params = std::move(params), &model = c.model,
          type = c.plan.master_dtype, rank = rank, member = tensor_rank(c), parts = tensor_parts(c.model, c.plan)] {
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (views[i].bytes <= 0) continue;
      kernels.zero(views[i]);
      std::byte* to = views[i].data;
      for (const ShardedParam& p : params) {
        if (!state) continue;
        const TensorPart& part = parts[at(p.param)];
        const Parameter whole = whole_of(part, model.parameters[at(p.param)]);
        kernels.read_state(state, whole, kStateParts[i], whole_slab(part, slab(p, rank), whole.shape, member), type,
                           to);
        to += p.local_elements(rank) * size_of(type);
      }
    }
  };
}

// A unit's shard, one parameter of it (on its way from the host), or the parts kept after forward (which are in the
// compute dtype).
KernelBody cast_shard(const KernelCall& c, const KernelSet& kernels) {
  if (c.views.size() < 2) expect_args(c, 2);
  const std::size_t sources = c.views.size() - 1;
  const UnitLayout& layout = layout_of(c);
  const bool kept = buffer_of(c, 0).kind == BufferKind::kept_shard;
  const DType from = kept ? layout_of(c).param_dtype : c.plan.master_dtype, to = layout_of(c).param_dtype;
  struct Part {
    BufferView from, to;
    std::int64_t n;
  };
  std::vector<Part> parts;
  std::int64_t done = 0;
  for (std::size_t i = 0; i < sources; ++i) {
    std::int64_t n = layout.shard_elements;
    if (buffer_of(c, i).param >= 0) n = sharded_param(c, i).padded_shard();
    if (kept) n = n * layout.shards / c.group;
    expect_elements(c.views[i], n, from, "shard");
    const std::int64_t bytes = n * size_of(to);
    if (c.views.back().bytes < done + bytes) throw MachineError("cast_shard: the cast shard is too small");
    parts.push_back({c.views[i], {c.views.back().data + done, bytes}, n});
    done += bytes;
  }
  if (done != c.views.back().bytes) throw MachineError("cast_shard: the cast shard is too large");
  return [&kernels, from, to, parts = std::move(parts)] {
    for (const Part& p : parts) kernels.convert(from, p.from, to, p.to, p.n, false);
  };
}

// Its sources, one after the other, into this rank's slot.
KernelBody copy_in(const KernelCall& c, const KernelSet& kernels) {
  if (c.views.size() < 2) expect_args(c, 2);
  const UnitLayout& layout = layout_of(c);
  const DType type = layout_of(c).param_dtype;
  const BufferView into = c.views.back();
  expect_elements(into, layout.shard_elements * layout.shards, type, "gather buffer");
  const std::int64_t slot = layout.shard_elements * layout.shards / c.group;
  std::vector<BufferView> sources(c.views.begin(), c.views.end() - 1);
  std::int64_t bytes = 0;
  for (const BufferView s : sources) bytes += s.bytes;
  expect_elements({into.data, bytes}, slot, type, "shard");
  return [&kernels, sources = std::move(sources), to = into.data + shard_rank(c) % c.group * slot * size_of(type)] {
    std::byte* next = to;
    for (const BufferView s : sources) {
      kernels.copy(next, s.data, s.bytes);
      next += s.bytes;
    }
  };
}

// From the gather buffer; or, on one shard alone, from the shard or its parameters one by one.
KernelBody copy_out(const KernelCall& c, const KernelSet& kernels) {
  const UnitLayout& layout = layout_of(c);
  const std::size_t params = layout.params.size();
  const DType type = layout_of(c).param_dtype;
  if (c.views.size() < params + 1) expect_args(c, params + 1);
  const std::size_t sources = c.views.size() - params;
  if (sources == 1) {
    if (c.group < layout.shards)
      return [&kernels, &layout, type, group = c.group, views = c.views] {
        kernels.gather_parts_copy_out(layout, group, type, views[0], std::span(views).subspan(1));
      };
    return [&kernels, &layout, type, views = c.views] {
      kernels.gather_copy_out(layout, type, views[0], std::span(views).subspan(1));
    };
  }
  expect_args(c, 2 * params);
  if (layout.shards != 1) throw MachineError("gather_copy_out: one source per parameter belongs to a single shard");
  for (std::size_t i = 0; i < params; ++i)
    for (const std::size_t k : {i, params + i})
      expect_elements(c.views[k], layout.params[i].numel(), type, "parameter");
  return [&kernels, params, views = c.views] {
    for (std::size_t i = 0; i < params; ++i) kernels.copy(views[params + i].data, views[i].data, views[i].bytes);
  };
}

KernelBody keep_shard(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  const UnitLayout& layout = layout_of(c);
  const std::int64_t n = sharded_param(c, 1).padded_shard() * layout.shards / c.group;
  for (const BufferView v : c.views) expect_elements(v, n, layout_of(c).param_dtype, "kept part");
  return [&kernels, views = c.views] { kernels.copy(views[1].data, views[0].data, views[0].bytes); };
}

// Towards the parameter's own order after a gather, away from it before a reduction.
KernelBody reorder_shards(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  const ShardedParam& p = sharded_param(c, 1);
  const bool gathered = buffer_of(c, 1).kind == BufferKind::unsharded_parameter;
  const DType type =
      buffer_of(c, 1).kind == BufferKind::gradient_accumulator ? layout_of(c).reduce_dtype : layout_of(c).param_dtype;
  for (const BufferView v : c.views) expect_elements(v, p.numel(), type, "parameter");
  const Rows r = rows_of(parameter(c, p.param), p.dim);
  const std::int64_t piece = p.chunk_rows * r.inner * size_of(type);
  return [&kernels, views = c.views, gathered, outer = r.outer, piece, shards = layout_of(c).shards] {
    kernels.reorder(views[0], views[1], shards, outer, piece, gathered);
  };
}

KernelBody shard_to_device(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  const UnitLayout& layout = layout_of(c);
  const std::int64_t n = layout.flat_elements > 0 ? layout.shard_elements : sharded_param(c, 1).padded_shard();
  for (const BufferView v : c.views) expect_elements(v, n, c.plan.master_dtype, "shard of a parameter");
  return [&kernels, views = c.views] { kernels.copy(views[1].data, views[0].data, views[0].bytes); };
}

}  // namespace fsdp::actions
