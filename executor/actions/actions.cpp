// What each Action does, with any kernel set. Argument positions are those that planner/program.h lists.
#include "executor/actions/actions.h"

#include <fmt/format.h>

#include "executor/data/synthetic.h"
#include "executor/kernels/host_kernel_set.h"
#include "models/graph/output_layer.h"
#include "models/input/error.h"

namespace fsdp {
namespace actions {

Workload workload_of(const KernelCall& c) {
  const Workload w{c.plan.micro_batches.at(static_cast<std::size_t>(c.op.micro_batch)), c.plan.seq_len,
                   size_of(c.plan.param_dtype)};
  return c.op.part >= 0 ? part_of(w, c.plan.loss_chunks) : w;
}

double token_weight(const KernelCall& c) {
  return 1.0 / (static_cast<double>(c.plan.sequences_per_rank()) * static_cast<double>(c.plan.seq_len));
}

void expect_args(const KernelCall& c, std::size_t count) {
  if (c.views.size() != count)
    throw InternalError(fmt::format("{} has {} arguments where {} belong", name(c.op.action), c.views.size(), count));
}

const ShardedParam& sharded_param(const KernelCall& c, std::size_t arg) {
  const std::int32_t id = buffer_of(c, arg).param;
  for (const ShardedParam& p : layout_of(c).params)
    if (p.param == id) return p;
  throw InternalError(fmt::format("{}: parameter {} is not of unit {}", name(c.op.action), id, c.op.unit));
}

HeldLayout layout_held(const KernelCall& c) {
  if (c.op.unit >= 0) return {layout_of(c), shard_rank(c)};
  const std::int32_t id = buffer_of(c, 0).param;
  return {whole_parameter(id, parameter(c, id)), 0};
}

namespace {

// What a unit's hook casts, or in backward its gradient the other way: the first argument into the output, or into the
// gradient of the input.
KernelBody cast_activation(const KernelCall& c, const KernelSet& kernels) {
  const bool backward = c.op.action == Action::backward;
  expect_args(c, backward ? 6 : 4);
  const Op& op = c.model.ops.at(at(c.op.graph_op));
  const std::size_t into = backward ? 5 : 1;
  const std::int64_t n = elements(c.model.tensors.at(at(op.inputs[0])), workload_of(c));
  DType from = *op.shape.from, to = *op.shape.dtype;
  if (backward) std::swap(from, to);
  expect_elements(c.views[0], n, from, "what is cast");
  expect_elements(c.views[into], n, to, "cast");
  return [&kernels, from, to, n, views = c.views, into, add = c.args[into].access == Access::accumulate] {
    kernels.convert(from, views[0], to, views[into], n, add);
  };
}

KernelBody typed(const KernelCall& c, const KernelSet& kernels) {
  std::vector<KernelArg> args;
  for (std::size_t i = 0; i < c.views.size(); ++i) args.push_back({c.views[i], c.args[i].access == Access::accumulate});
  const Op& op = c.model.ops.at(at(c.op.graph_op));
  if (op.kind == OpKind::cast) return cast_activation(c, kernels);
  return [&kernels, &op, work = workload_of(c).seen_by(op.shape), type = op.shape.dtype.value_or(c.plan.param_dtype),
          args = std::move(args), weight = token_weight(c), backward = c.op.action == Action::backward] {
    if (backward) kernels.backward(op, work, type, args, weight);
    else kernels.forward(op, work, type, args, weight);
  };
}

// A rank that has one part of the vocabulary counts tokens from the part's first: what `read` gives, less `ids_from`
// and `targets_from`. Throws MachineError for a token outside of the whole vocabulary.
TokenReader counted_from(const TokenReader& read, std::uint64_t seed, std::int64_t vocab, std::int64_t ids_from,
                         std::int64_t targets_from) {
  return [read, seed, vocab, ids_from, targets_from](std::int64_t sequence, std::int64_t seq_len, std::int64_t* ids,
                                                     std::int64_t* targets) {
    if (read) read(sequence, seq_len, ids, targets);
    for (std::int64_t p = 0; p < seq_len && !read; ++p) {
      ids[p] = synthetic_token(seed, sequence, p, vocab);
      targets[p] = synthetic_token(seed, sequence, p + 1, vocab);
    }
    for (std::int64_t p = 0; p < seq_len; ++p) {
      for (const std::int64_t token : {ids[p], targets[p]})
        if (token < 0 || token >= vocab)
          throw MachineError(
              fmt::format("token {} of sequence {} is outside of the vocabulary of {}", token, sequence, vocab));
      ids[p] -= ids_from, targets[p] -= targets_from;
    }
  };
}

// The training's tokens, as this rank counts them.
TokenReader tokens_of(const KernelCall& c) {
  std::int64_t ids = 0, targets = 0;  // the part's size, where the vocabulary is split
  for (const Op& op : c.model.ops) {
    if (op.shape.vocab_parts == 1) continue;
    if (op.kind == OpKind::embedding) ids = op.shape.vocab;
    if (op.kind == OpKind::cross_entropy) targets = op.shape.vocab;
  }
  const std::int64_t member = tensor_rank(c);
  return counted_from(c.training.tokens, c.plan.seed, c.model.vocab, member * ids, member * targets);
}

// Rank r of R takes sequences [r B, (r + 1) B) of a step's R B, so that any split of a global batch sees the same data.
// A run that goes on from a checkpoint takes the sequence after its last one first, also where its global batch is
// another. The ranks of a tensor group take the same.
KernelBody load_batch(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 3);
  const Workload work = workload_of(c);
  for (const std::size_t i : {0, 1}) expect_elements(c.views[i], work.tokens(), DType::i64, "batch");
  if (c.views[2].data != nullptr) expect_elements(c.views[2], 1, DType::f64, "loss");
  const std::int64_t per_rank = c.plan.sequences_per_rank();
  const std::int64_t per_step = c.plan.data_ranks() * per_rank, before = c.training.steps_done;
  std::int64_t first = c.training.sequences_done.value_or(before * per_step) + (c.step - before) * per_step +
                       c.rank / c.plan.tensor() * per_rank;
  for (std::int16_t b = 0; b < c.op.micro_batch; ++b) first += c.plan.micro_batches[static_cast<std::size_t>(b)];
  const auto load = [&kernels, work, first, seed = c.plan.seed, vocab = c.model.vocab,
                     views = c.views](const TokenReader& read) {
    kernels.batch(read, seed, first, work, vocab, views[0], views[1]);
    if (views[2].data != nullptr) kernels.zero(views[2]);
  };
  if (c.plan.tensor() == 1 && !c.training.tokens) return [load] { load({}); };
  return [load, read = tokens_of(c)] { load(read); };
}

KernelBody copy_whole(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  if (c.views[0].bytes != c.views[1].bytes)
    throw MachineError(fmt::format("{}: source and target differ in size", name(c.op.action)));
  return [&kernels, views = c.views] { kernels.copy(views[1].data, views[0].data, views[0].bytes); };
}

}  // namespace
}  // namespace actions

KernelBody make_kernel(const KernelCall& c, const KernelSet& kernels) {
  using namespace actions;
  switch (c.op.action) {
    case Action::init_parameters: return init_parameters(c, kernels);
    case Action::init_optimizer: return init_optimizer(c, kernels);
    case Action::load_batch: return load_batch(c, kernels);
    case Action::forward:
    case Action::recompute:
    case Action::backward: return typed(c, kernels);
    case Action::add_gradient: return add_gradient(c, kernels);
    case Action::cast_shard: return cast_shard(c, kernels);
    case Action::gather_copy_in: return copy_in(c, kernels);
    case Action::gather_copy_out: return copy_out(c, kernels);
    case Action::accumulate_gradient: return accumulate_gradient(c, kernels);
    case Action::scatter_copy_in: return copy_in_gradients(c, kernels);
    case Action::cast_gradient: return cast_flat_gradient(c, kernels);
    case Action::finish_gradient: return finish_gradient(c, kernels);
    case Action::divide_gradient: return divide_gradient(c, kernels);
    case Action::clip_local_norm: return clip_local_norm(c, kernels);
    case Action::clip_scale: return clip_scale(c, kernels);
    case Action::optimizer: return optimizer_step(c, kernels);
    case Action::keep_shard: return keep_shard(c, kernels);
    case Action::reorder_shards: return reorder_shards(c, kernels);
    case Action::shard_to_device: return shard_to_device(c, kernels);
    case Action::gradient_to_host: return gradient_to_host(c, kernels);
    case Action::offload_activation:
    case Action::fetch_activation:
    case Action::offload_state:
    case Action::fetch_state: return copy_whole(c, kernels);
    case Action::reorder_tokens: return reorder_tokens(c, kernels);
    case Action::slice_gradient: return slice_gradient(c, kernels);
    case Action::loss_statistic: return loss_statistic(c, kernels);
    case Action::all_gather:
    case Action::reduce_scatter:
    case Action::all_reduce:
    case Action::clip_reduce:
    case Action::reduce_loss:
    case Action::zero_gradients:
    case Action::read_loss:
    case Action::host_wait:
    case Action::largest_value:
    case Action::reduce_largest:
    case Action::update_metrics:
    case Action::tensor_barrier:
    case Action::share_part:
    case Action::pull_part:
    case Action::exchange_part:
    case Action::sum_parts: break;
  }
  throw InternalError(fmt::format("{} is no kernel", name(c.op.action)));
}

KernelBody make_kernel(const KernelCall& c) { return make_kernel(c, host_kernel_set()); }

}  // namespace fsdp
