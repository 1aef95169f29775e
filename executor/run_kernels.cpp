// What each Action does on the host: argument positions as planner/program.h lists them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "executor/run.h"
#include "executor/run_interpreter.h"
#include "models/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

Workload workload_of(const KernelCall& c) {
  return {c.plan.micro_batches.at(static_cast<std::size_t>(c.op.micro_batch)), c.plan.seq_len, size_of(c.plan.param_dtype)};
}
const UnitLayout& layout_of(const KernelCall& c) { return c.program.layouts.at(at(c.op.unit)); }
std::int64_t shard_rank(const KernelCall& c) { return c.plan.dialect == Dialect::ddp ? 0 : c.rank % c.plan.shard(); }

void expect_args(const KernelCall& c, std::size_t count) {
  if (c.views.size() != count)
    throw MachineError(fmt::format("{} has {} arguments where {} belong", name(c.op.action), c.views.size(), count));
}

// --- what the model computes ------------------------------------------------------------------------------------------------

KernelBody typed(const KernelCall& c) {
  std::vector<KernelArg> args;
  for (std::size_t i = 0; i < c.views.size(); ++i) args.push_back({c.views[i], c.args[i].access == Access::accumulate});
  const Op& op = c.model.ops.at(at(c.op.graph_op));
  const double weight = 1.0 / (static_cast<double>(c.plan.sequences_per_rank()) * static_cast<double>(c.plan.seq_len));
  return [&op, work = workload_of(c), type = c.plan.param_dtype, args = std::move(args), weight,
          backward = c.op.action == Action::backward] {
    if (backward) run_backward(op, work, type, args, weight);
    else run_forward(op, work, type, args, weight);
  };
}

// Elements and type of what a buffer holds: a sum of reduced gradients, a tensor's gradient, a parameter's.
KernelBody add_gradient(const KernelCall& c) {
  expect_args(c, 2);
  const Buffer& buffer = c.program.buffers.at(at(c.args[1].buffer));
  DType type = c.plan.param_dtype;
  std::int64_t elements_to_add = 0;
  if (c.op.unit >= 0) {
    type = reduction_type(c.plan);
    elements_to_add = layout_of(c).shard_elements;
  } else if (buffer.tensor >= 0) {
    elements_to_add = elements(c.model.tensors.at(at(buffer.tensor)), workload_of(c));
  } else {
    const std::int32_t param = buffer.param >= 0 ? buffer.param : c.program.buffers.at(at(c.args[0].buffer)).param;
    elements_to_add = c.model.parameters.at(at(param)).numel();
  }
  for (const BufferView v : c.views) expect_elements(v, elements_to_add, type, "add_gradient");
  return [type, from = c.views[0], into = c.views[1], elements_to_add] { add_into(type, from, into, elements_to_add); };
}

// Rank r of R takes sequences [r B, (r + 1) B) of a step's R B, so that any split of a global batch sees the same data.
KernelBody load_batch(const KernelCall& c) {
  expect_args(c, 3);
  const Workload work = workload_of(c);
  for (const std::size_t i : {0, 1}) expect_elements(c.views[i], work.tokens(), DType::i64, "batch");
  if (c.views[2].data != nullptr) expect_elements(c.views[2], 1, DType::f64, "loss");
  const std::int64_t per_rank = c.plan.sequences_per_rank();
  std::int64_t first = (c.step * c.plan.ranks() + c.rank) * per_rank;
  for (std::int16_t m = 0; m < c.op.micro_batch; ++m) first += c.plan.micro_batches[static_cast<std::size_t>(m)];
  if (c.training.tokens) {
    return [work, first, &read = c.training.tokens, views = c.views] {
      auto* ids = reinterpret_cast<std::int64_t*>(views[0].data);
      auto* targets = reinterpret_cast<std::int64_t*>(views[1].data);
      for (std::int64_t s = 0; s < work.sequences; ++s) read(first + s, work.seq_len, ids + s * work.seq_len, targets + s * work.seq_len);
      if (views[2].data != nullptr) std::memset(views[2].data, 0, sizeof(double));
    };
  }
  return [work, first, seed = c.plan.seed, vocab = c.model.vocab, views = c.views] {
    auto* ids = reinterpret_cast<std::int64_t*>(views[0].data);
    auto* targets = reinterpret_cast<std::int64_t*>(views[1].data);
    for (std::int64_t s = 0; s < work.sequences; ++s) {
      std::int64_t token = synthetic_token(seed, first + s, 0, vocab);
      for (std::int64_t p = 0; p < work.seq_len; ++p) {
        *ids++ = token;
        *targets++ = token = synthetic_token(seed, first + s, p + 1, vocab);
      }
    }
    if (views[2].data != nullptr) std::memset(views[2].data, 0, sizeof(double));
  };
}

// --- shards and their copies ------------------------------------------------------------------------------------------------

Slab slab(const ShardedParam& p, std::int64_t rank) { return {p.dim, p.local_row_begin(rank), p.local_rows(rank)}; }

KernelBody init_parameters(const KernelCall& c) {
  expect_args(c, 1);
  const UnitLayout& layout = layout_of(c);
  const DType type = c.plan.master_dtype;
  expect_elements(c.views[0], layout.shard_elements, type, "parameter shard");
  return [&layout, &model = c.model, type, seed = c.plan.seed, rank = shard_rank(c), shard = c.views[0], &state = c.training.state] {
    std::memset(shard.data, 0, static_cast<std::size_t>(shard.bytes));
    for (const ShardedParam& p : layout.params)
      if (state) state(model.parameters[at(p.param)], StatePart::parameter, slab(p, rank), type, shard.data + p.offset * size_of(type));
      else fill_initial_values(seed, model.parameters[at(p.param)], p.local_row_begin(rank) * p.row_elements, p.local_elements(rank),
                          type, shard.data + p.offset * size_of(type));
  };
}

KernelBody init_optimizer(const KernelCall& c) {
  for (const BufferView v : c.views)
    if (v.data != nullptr) expect_elements(v, layout_of(c).local_elements(shard_rank(c)), c.plan.master_dtype, "optimizer state");
  return [views = c.views, &state = c.training.state, &layout = layout_of(c), &model = c.model, type = c.plan.master_dtype, rank = shard_rank(c)] {
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (views[i].bytes <= 0) continue;
      std::memset(views[i].data, 0, static_cast<std::size_t>(views[i].bytes));
      std::byte* to = views[i].data;
      for (const ShardedParam& p : layout.params) {
        if (!state || !p.trainable) continue;
        state(model.parameters[at(p.param)], i == 0 ? StatePart::first_moment : StatePart::second_moment, slab(p, rank), type, to);
        to += p.local_elements(rank) * size_of(type);
      }
    }
  };
}

KernelBody cast_shard(const KernelCall& c) {
  expect_args(c, 2);
  const std::int64_t n = layout_of(c).shard_elements;
  expect_elements(c.views[0], n, c.plan.master_dtype, "parameter shard");
  expect_elements(c.views[1], n, c.plan.param_dtype, "cast shard");
  return [from = c.plan.master_dtype, to = c.plan.param_dtype, views = c.views, n] {
    convert(from, views[0], to, views[1], n, false);
  };
}

KernelBody copy_in(const KernelCall& c) {
  expect_args(c, 2);
  const UnitLayout& layout = layout_of(c);
  const DType type = c.plan.param_dtype;
  expect_elements(c.views[0], layout.shard_elements, type, "shard");
  expect_elements(c.views[1], layout.shard_elements * layout.shards, type, "gather buffer");
  const std::int64_t slot = layout.shard_elements * size_of(type);
  return [from = c.views[0].data, to = c.views[1].data + shard_rank(c) * slot, slot] {
    if (slot > 0) std::memcpy(to, from, static_cast<std::size_t>(slot));
  };
}

KernelBody copy_out(const KernelCall& c) {
  expect_args(c, layout_of(c).params.size() + 1);
  return [&layout = layout_of(c), type = c.plan.param_dtype, views = c.views] {
    gather_copy_out(layout, type, views[0], std::span(views).subspan(1));
  };
}

KernelBody accumulate_gradient(const KernelCall& c) {
  const UnitLayout& layout = layout_of(c);
  expect_args(c, 2 * layout.params.size());
  struct Pair {
    BufferView from, into;
    std::int64_t n;
    bool add;
  };
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < layout.params.size(); ++i) {
    const BufferView from = c.views[2 * i], into = c.views[2 * i + 1];
    if (from.data == nullptr) continue;
    const std::int64_t n = layout.params[i].numel();
    expect_elements(from, n, c.plan.param_dtype, "gradient");
    expect_elements(into, n, c.plan.reduce_dtype, "gradient accumulator");
    pairs.push_back({from, into, n, c.args[2 * i + 1].access == Access::accumulate});
  }
  return [from = c.plan.param_dtype, to = c.plan.reduce_dtype, pairs = std::move(pairs)] {
    for (const Pair& p : pairs) convert(from, p.from, to, p.into, p.n, p.add);
  };
}

// All of a unit's gradients, or all of its accumulators: they differ in type. PyTorch narrows from a copy (before 2.15), here
// every element is narrowed as it is copied: the same values.
KernelBody copy_in_gradients(const KernelCall& c) {
  const std::size_t n = layout_of(c).params.size();
  const bool has_copy = c.args.size() == n + 2 && c.program.buffers.at(at(c.args.back().buffer)).kind == BufferKind::scratch;
  expect_args(c, n + (has_copy ? 2 : 1));
  std::optional<BufferKind> kind;
  for (const Arg& a : c.args.first(n)) {
    if (a.buffer < 0) continue;
    const BufferKind k = c.program.buffers.at(at(a.buffer)).kind;
    if (kind && *kind != k) throw MachineError("scatter_copy_in: gradients and accumulators are mixed");
    kind = k;
  }
  const DType from = kind == BufferKind::gradient_accumulator ? c.plan.reduce_dtype : c.plan.param_dtype;
  return [&layout = layout_of(c), n, from, to = c.plan.reduce_dtype, views = c.views] {
    scatter_copy_in(layout, from, std::span(views).first(n), to, views[n]);
  };
}

KernelBody divide_gradient(const KernelCall& c) {
  const UnitLayout& layout = layout_of(c);
  const DType type = reduction_type(c.plan);
  const bool before = c.program.buffers.at(at(c.args[0].buffer)).kind == BufferKind::reduce_input;
  const std::int64_t n = layout.shard_elements * (before ? layout.shards : 1);
  for (const BufferView v : c.views) expect_elements(v, n, type, "divide_gradient");
  if (c.views.size() == 1)
    return [type, n, v = c.views[0], by = before ? layout.scale.divide_before : layout.scale.divide_after] { scale(type, v, n, 1 / by); };
  return [type, n, views = c.views, by = layout.scale.divide_copy] {
    convert(type, views[0], type, views[1], n, false);
    scale(type, views[1], n, 1 / by);
  };
}

KernelBody finish_gradient(const KernelCall& c) {
  expect_args(c, 2);
  const std::int64_t n = layout_of(c).shard_elements;
  expect_elements(c.views[0], n, c.plan.reduce_dtype, "reduce output");
  expect_elements(c.views[1], n, c.plan.master_dtype, "sharded gradient");
  return [from = c.plan.reduce_dtype, to = c.plan.master_dtype, views = c.views, n,
          add = c.args[1].access == Access::accumulate] { convert(from, views[0], to, views[1], n, add); };
}

// --- clipping and the optimizer -----------------------------------------------------------------------------------------------

struct ShardedGradient {
  BufferView view;
  std::int64_t elements;
};
std::vector<ShardedGradient> gradients_of(const KernelCall& c, std::size_t first, std::size_t count) {
  std::vector<ShardedGradient> result;
  for (std::size_t i = first; i < first + count; ++i) {
    const std::int64_t n = c.program.layouts.at(at(c.program.buffers.at(at(c.args[i].buffer)).unit)).shard_elements;
    expect_elements(c.views[i], n, c.plan.master_dtype, "sharded gradient");
    result.push_back({c.views[i], n});
  }
  return result;
}

KernelBody clip_local_norm(const KernelCall& c) {
  if (c.views.empty()) expect_args(c, 1);
  expect_elements(c.views.back(), 1, DType::f64, "norm");
  return [gradients = gradients_of(c, 0, c.views.size() - 1), type = c.plan.master_dtype, norm = c.views.back()] {
    double sum = 0;
    for (const ShardedGradient& g : gradients) sum += sum_of_squares(type, g.view, g.elements);
    std::memcpy(norm.data, &sum, sizeof sum);
  };
}

// As torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)).
KernelBody clip_scale(const KernelCall& c) {
  if (c.views.empty()) expect_args(c, 1);
  expect_elements(c.views[0], 1, DType::f64, "norm");
  return [gradients = gradients_of(c, 1, c.views.size() - 1), type = c.plan.master_dtype, norm = c.views[0],
          limit = c.plan.clip_norm.value_or(0)] {
    double sum = 0;
    std::memcpy(&sum, norm.data, sizeof sum);
    const double factor = std::min(1.0, limit / (std::sqrt(sum) + 1e-6));
    for (const ShardedGradient& g : gradients) scale(type, g.view, g.elements, factor);
  };
}

KernelBody optimizer_step(const KernelCall& c) {
  if (c.views.size() != 4 && c.views.size() != 5) expect_args(c, 4);  // the fifth: scratch of other implementations
  const UnitLayout& layout = layout_of(c);
  const DType type = c.plan.master_dtype;
  expect_elements(c.views[0], layout.shard_elements, type, "sharded gradient");
  expect_elements(c.views[1], layout.shard_elements, type, "parameter shard");
  const std::int64_t rank = shard_rank(c);
  const bool adam = c.plan.optimizer.kind == OptimizerKind::adamw;
  if (adam)
    for (const std::size_t i : {2, 3}) expect_elements(c.views[i], layout.local_elements(rank), type, "optimizer state");
  Optimizer settings = c.plan.optimizer;
  if (c.training.learning_rate) settings.lr = c.training.learning_rate(c.step);
  return [&layout, type, rank, adam, settings, step = c.step + 1, views = c.views] {
    if (adam) adamw(layout, rank, settings, step, type, views[0], views[1], views[2], views[3]);
    else sgd(layout, rank, settings, type, views[0], views[1], views[2]);
  };
}

}  // namespace

KernelBody make_kernel(KernelCall c) {
  switch (c.op.action) {
    case Action::init_parameters: return init_parameters(c);
    case Action::init_optimizer: return init_optimizer(c);
    case Action::load_batch: return load_batch(c);
    case Action::forward:
    case Action::recompute:
    case Action::backward: return typed(c);
    case Action::add_gradient: return add_gradient(c);
    case Action::cast_shard: return cast_shard(c);
    case Action::gather_copy_in: return copy_in(c);
    case Action::gather_copy_out: return copy_out(c);
    case Action::accumulate_gradient: return accumulate_gradient(c);
    case Action::scatter_copy_in: return copy_in_gradients(c);
    case Action::finish_gradient: return finish_gradient(c);
    case Action::divide_gradient: return divide_gradient(c);
    case Action::clip_local_norm: return clip_local_norm(c);
    case Action::clip_scale: return clip_scale(c);
    case Action::optimizer: return optimizer_step(c);
    case Action::all_gather:
    case Action::reduce_scatter:
    case Action::all_reduce:
    case Action::clip_reduce:
    case Action::reduce_loss:
    case Action::zero_gradients:
    case Action::read_loss:
    case Action::host_wait:
    case Action::keep_shard:
    case Action::shard_to_device:
    case Action::gradient_to_host:
    case Action::cast_gradient:
    case Action::reorder_shards: break;
  }
  throw MachineError(fmt::format("{} is no kernel", name(c.op.action)));
}

}  // namespace fsdp
