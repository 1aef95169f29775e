// What each Action does on the host: argument positions as planner/program.h lists them.
#include "executor/run_kernels.h"

#include <fmt/format.h>

#include <cstring>

#include "executor/run.h"
#include "models/error.h"

namespace fsdp {
namespace run_kernels {

Workload workload_of(const KernelCall& c) {
  return {c.plan.micro_batches.at(static_cast<std::size_t>(c.op.micro_batch)), c.plan.seq_len, size_of(c.plan.param_dtype)};
}

void expect_args(const KernelCall& c, std::size_t count) {
  if (c.views.size() != count)
    throw MachineError(fmt::format("{} has {} arguments where {} belong", name(c.op.action), c.views.size(), count));
}

const ShardedParam& sharded_param(const KernelCall& c, std::size_t arg) {
  const std::int32_t id = buffer_of(c, arg).param;
  for (const ShardedParam& p : layout_of(c).params)
    if (p.param == id) return p;
  throw MachineError(fmt::format("{}: parameter {} is not of unit {}", name(c.op.action), id, c.op.unit));
}

GradientPlaces gradient_places(const KernelCall& c, std::size_t arg) {
  if (c.plan.dialect == Dialect::ddp) return GradientPlaces::as_shard;
  return buffer_of(c, arg).host ? GradientPlaces::dense : GradientPlaces::trained;
}

namespace {

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

// Rank r of R takes sequences [r B, (r + 1) B) of a step's R B, so that any split of a global batch sees the same data. A run that goes
// on from a checkpoint takes the sequence after its last one first, also where its global batch is another.
KernelBody load_batch(const KernelCall& c) {
  expect_args(c, 3);
  const Workload work = workload_of(c);
  for (const std::size_t i : {0, 1}) expect_elements(c.views[i], work.tokens(), DType::i64, "batch");
  if (c.views[2].data != nullptr) expect_elements(c.views[2], 1, DType::f64, "loss");
  const std::int64_t per_rank = c.plan.sequences_per_rank();
  const std::int64_t per_step = c.plan.ranks() * per_rank, before = c.training.steps_done;
  std::int64_t first = c.training.sequences_done.value_or(before * per_step) + (c.step - before) * per_step + c.rank * per_rank;
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

}  // namespace
}  // namespace run_kernels

KernelBody make_kernel(const KernelCall& c) {
  using namespace run_kernels;
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
    case Action::keep_shard: return keep_shard(c);
    case Action::reorder_shards: return reorder_shards(c);
    case Action::shard_to_device: return shard_to_device(c);
    case Action::gradient_to_host: return gradient_to_host(c);
    case Action::all_gather:
    case Action::reduce_scatter:
    case Action::all_reduce:
    case Action::clip_reduce:
    case Action::reduce_loss:
    case Action::zero_gradients:
    case Action::read_loss:
    case Action::host_wait:
    case Action::cast_gradient: break;
  }
  throw MachineError(fmt::format("{} is no kernel", name(c.op.action)));
}

}  // namespace fsdp
