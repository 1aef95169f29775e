#include "planner/program.h"

#include "models/graph.h"
#include "models/input/names.h"
#include "planner/program/describe.h"

namespace fsdp {

namespace {

constexpr std::string_view text(Action a) {
  switch (a) {
    case Action::init_parameters: return "init_parameters";
    case Action::init_optimizer: return "init_optimizer";
    case Action::load_batch: return "load_batch";
    case Action::forward: return "forward";
    case Action::recompute: return "recompute";
    case Action::backward: return "backward";
    case Action::add_gradient: return "add_gradient";
    case Action::cast_shard: return "cast_shard";
    case Action::gather_copy_in: return "gather_copy_in";
    case Action::all_gather: return "all_gather";
    case Action::gather_copy_out: return "gather_copy_out";
    case Action::accumulate_gradient: return "accumulate_gradient";
    case Action::scatter_copy_in: return "scatter_copy_in";
    case Action::reduce_scatter: return "reduce_scatter";
    case Action::all_reduce: return "all_reduce";
    case Action::finish_gradient: return "finish_gradient";
    case Action::clip_local_norm: return "clip_local_norm";
    case Action::clip_reduce: return "clip_reduce";
    case Action::clip_scale: return "clip_scale";
    case Action::optimizer: return "optimizer";
    case Action::reduce_loss: return "reduce_loss";
    case Action::zero_gradients: return "zero_gradients";
    case Action::read_loss: return "read_loss";
    case Action::host_wait: return "host_wait";
    case Action::keep_shard: return "keep_shard";
    case Action::divide_gradient: return "divide_gradient";
    case Action::shard_to_device: return "shard_to_device";
    case Action::gradient_to_host: return "gradient_to_host";
    case Action::cast_gradient: return "cast_gradient";
    case Action::reorder_shards: return "reorder_shards";
    case Action::reorder_tokens: return "reorder_tokens";
    case Action::slice_gradient: return "slice_gradient";
    case Action::largest_value: return "largest_value";
    case Action::reduce_largest: return "reduce_largest";
    case Action::loss_statistic: return "loss_statistic";
    case Action::offload_activation: return "offload_activation";
    case Action::fetch_activation: return "fetch_activation";
    case Action::offload_state: return "offload_state";
    case Action::fetch_state: return "fetch_state";
    case Action::update_metrics: return "update_metrics";
    case Action::tensor_barrier: return "tensor_barrier";
    case Action::share_part: return "share_part";
    case Action::pull_part: return "pull_part";
    case Action::exchange_part: return "exchange_part";
    case Action::sum_parts: return "sum_parts";
  }
  return {};
}
static_assert(names_all<Action>(text, kActions));

constexpr std::string_view text(Stream s) {
  switch (s) {
    case Stream::compute: return "compute";
    case Stream::copy_in: return "copy_in";
    case Stream::all_gather: return "all_gather";
    case Stream::reduce_scatter: return "reduce_scatter";
    case Stream::all_reduce: return "all_reduce";
    case Stream::tensor: return "tensor";
  }
  return {};
}
static_assert(names_all<Stream>(text, kStreams));

constexpr std::string_view text(BufferKind k) {
  switch (k) {
    case BufferKind::parameter_shard: return "parameter shards";
    case BufferKind::optimizer_state: return "optimizer states";
    case BufferKind::sharded_gradient: return "sharded gradients";
    case BufferKind::cast_shard: return "cast shards";
    case BufferKind::gather: return "gather buffers";
    case BufferKind::unsharded_parameter: return "unsharded parameters";
    case BufferKind::gradient: return "gradients";
    case BufferKind::gradient_accumulator: return "accumulators";
    case BufferKind::reduce_input: return "reduce inputs";
    case BufferKind::reduce_output: return "reduce outputs";
    case BufferKind::activation: return "activations";
    case BufferKind::saved: return "saved for backward";
    case BufferKind::activation_gradient: return "activation gradients";
    case BufferKind::scratch: return "scratch";
    case BufferKind::batch: return "batch";
    case BufferKind::scalar: return "scalars";
    case BufferKind::workspace: return "workspaces";
    case BufferKind::kept_shard: return "kept shards";
  }
  return {};
}
static_assert(names_all<BufferKind>(text, kBufferKinds));

}  // namespace

std::string_view name(Action a) { return text(a); }
std::string_view name(Stream s) { return text(s); }
std::string_view name(BufferKind k) { return text(k); }

int streams_of(const Step& step) {
  for (const Operation& op : step.ops)
    if (op.stream == Stream::tensor) return kStreams;
  return kStreams - 1;
}

std::string unit_text(std::int32_t unit, const ShardingPlan& plan) {
  std::string text = "unit " + std::to_string(unit) + " (";
  const Unit& u = plan.units[static_cast<std::size_t>(unit)];
  for (std::size_t i = 0; i < u.modules.size(); ++i)
    text += (i ? ", " : "") + (u.modules[i].empty() ? std::string("root") : u.modules[i]);
  return text + ")";
}

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
  if (op.products == Products::weight) text += "weight ";
  if (op.part >= 0) text += "part " + std::to_string(op.part) + " ";
  return text + "mb " + std::to_string(op.micro_batch);
}

std::string describe(const Operation& op, const Program&, const ShardingPlan& plan, const ModelGraph& model) {
  return std::string(name(op.action)) + " " + describe_object(op, plan, model);
}

}  // namespace fsdp
