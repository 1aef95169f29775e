#include "planner/program.h"

#include <array>

#include "models/graph.h"
#include "planner/describe.h"

namespace fsdp {

std::string_view name(Action a) {
  static constexpr std::array<std::string_view, kActions> names = {
      "init_parameters", "init_optimizer",      "load_batch",       "forward",        "recompute",
      "backward",        "add_gradient",        "cast_shard",       "gather_copy_in", "all_gather",
      "gather_copy_out", "accumulate_gradient", "scatter_copy_in",  "reduce_scatter", "all_reduce",
      "finish_gradient", "clip_local_norm",     "clip_reduce",      "clip_scale",     "optimizer",
      "reduce_loss",     "zero_gradients",      "read_loss",        "host_wait",      "keep_shard",
      "divide_gradient", "shard_to_device",     "gradient_to_host", "cast_gradient",  "reorder_shards"};
  return names[static_cast<std::size_t>(a)];
}

std::string_view name(Stream s) {
  static constexpr std::array<std::string_view, kStreams> names = {"compute", "copy_in", "all_gather", "reduce_scatter",
                                                                   "all_reduce"};
  return names[static_cast<std::size_t>(s)];
}

std::string_view name(BufferKind k) {
  static constexpr std::array<std::string_view, kBufferKinds> names = {"parameter shards",
                                                                       "optimizer states",
                                                                       "sharded gradients",
                                                                       "cast shards",
                                                                       "gather buffers",
                                                                       "unsharded parameters",
                                                                       "gradients",
                                                                       "accumulators",
                                                                       "reduce inputs",
                                                                       "reduce outputs",
                                                                       "activations",
                                                                       "saved for backward",
                                                                       "activation gradients",
                                                                       "scratch",
                                                                       "batch",
                                                                       "scalars",
                                                                       "workspaces",
                                                                       "kept shards"};
  return names[static_cast<std::size_t>(k)];
}

namespace {

std::string unit_text(std::int32_t unit, const ShardingPlan& plan) {
  std::string text = "unit " + std::to_string(unit) + " (";
  const Unit& u = plan.units[static_cast<std::size_t>(unit)];
  for (std::size_t i = 0; i < u.modules.size(); ++i)
    text += (i ? ", " : "") + (u.modules[i].empty() ? std::string("root") : u.modules[i]);
  return text + ")";
}

}  // namespace

std::string describe_object(const Operation& op, const ShardingPlan& plan, const ModelGraph& model) {
  std::string text;
  if (op.graph_op >= 0) {
    const Op& graph_op = model.ops[static_cast<std::size_t>(op.graph_op)];
    const std::string module =
        graph_op.module >= 0 ? model.modules[static_cast<std::size_t>(graph_op.module)].name : "loss";
    text = std::string(name(graph_op.kind)) + " " + module + " op " + std::to_string(op.graph_op) + " ";
  } else if (op.unit >= 0) {
    text = unit_text(op.unit, plan) + " ";
  }
  return text + "mb " + std::to_string(op.micro_batch);
}

std::string describe(const Operation& op, const Program&, const ShardingPlan& plan, const ModelGraph& model) {
  return std::string(name(op.action)) + " " + describe_object(op, plan, model);
}

}  // namespace fsdp
