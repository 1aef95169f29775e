// What the ranks of a tensor group do beside their collectives.
#include "executor/actions/actions.h"
#include "models/input/error.h"

namespace fsdp::actions {

// Behind a gather from rank by rank to the rows' own order, before a scatter the other way round. The gradient of
// gathered columns is this rank's columns of it.
KernelBody reorder_tokens(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  const Op& op = c.model.ops.at(at(c.op.graph_op));
  const Workload work = workload_of(c);
  const DType type = c.plan.param_dtype;
  const std::int64_t n = c.model.tensor_ranks, width = std::max(op.shape.in, op.shape.out);
  const bool columns = op.shape.redistribution == Redistribution::gather_columns;
  const std::int64_t outer = columns ? work.tokens() : work.sequences;
  const std::int64_t piece = (columns ? width / n : work.seq_len / n * width) * size_of(type);
  expect_elements(c.views[0], work.tokens() * width, type, "tokens of all ranks");
  if (columns && buffer_of(c, 1).kind == BufferKind::activation_gradient) {
    expect_elements(c.views[1], work.tokens() * width / n, type, "columns of one rank");
    return [&kernels, views = c.views, outer, piece, n, member = tensor_rank(c)] {
      for (std::int64_t t = 0; t < outer; ++t)
        kernels.copy(views[1].data + t * piece, views[0].data + (t * n + member) * piece, piece);
    };
  }
  expect_elements(c.views[1], work.tokens() * width, type, "tokens of all ranks");
  const bool from_ranks = buffer_of(c, 0).kind == BufferKind::scratch;
  return [&kernels, views = c.views, n, outer, piece, from_ranks] {
    kernels.reorder(views[0], views[1], n, outer, piece, from_ranks);
  };
}

// This rank's rows are the first (executor/kernels/ops/embedding.cpp).
KernelBody slice_gradient(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  const Buffer& made = buffer_of(c, 1);
  const DType type = made.kind == BufferKind::gradient_accumulator ? c.plan.reduce_dtype : c.plan.param_dtype;
  expect_elements(c.views[0], c.model.gradient_numel(made.param), type, "gradient of a whole parameter");
  expect_elements(c.views[1], parameter(c, made.param).numel(), type, "gradient of a part");
  return [&kernels, views = c.views] { kernels.copy(views[1].data, views[0].data, views[1].bytes); };
}

KernelBody loss_statistic(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 5);
  std::vector<KernelArg> args;
  for (std::size_t i = 0; i < c.views.size(); ++i) args.push_back({c.views[i], c.args[i].access == Access::accumulate});
  return [&kernels, &op = c.model.ops.at(at(c.op.graph_op)), work = workload_of(c), type = c.plan.param_dtype,
          args = std::move(args), weight = token_weight(c)] { kernels.loss_statistic(op, work, type, args, weight); };
}

}  // namespace fsdp::actions
