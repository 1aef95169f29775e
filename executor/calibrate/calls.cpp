#include "executor/calibrate/calls.h"

#include <utility>

namespace fsdp {

std::shared_ptr<LoneCall::Parts> LoneCall::make(Action action, DType compute, DType reduce, DType master,
                                                std::size_t buffers) {
  auto p = std::make_shared<Parts>();
  p->plan.mesh = {{"replicate", 1}, {"shard", 1}};
  p->plan.units = {{{""}, Reshard::automatic}};
  p->plan.micro_batches = {1};
  p->plan.seq_len = 1;
  p->plan.param_dtype = compute;
  p->plan.reduce_dtype = reduce;
  p->plan.master_dtype = master;
  p->plan.clip_norm = 1e30;  // scales by 1
  p->op.action = action;
  for (std::size_t i = 0; i < buffers; ++i) {
    p->program.buffers.emplace_back();
    p->args.push_back({.buffer = static_cast<std::int32_t>(i)});
  }
  return p;
}

LoneCall LoneCall::of_op(const OpCase& c, bool backward, DType type, std::size_t buffers) {
  const auto p = make(backward ? Action::backward : Action::forward, type, type, type, buffers);
  p->model.ops = {c.op};
  p->model.vocab = c.ids_below;
  p->plan.micro_batches = {c.work.sequences};
  p->plan.seq_len = c.work.seq_len;
  p->op.graph_op = 0;
  return LoneCall(p);
}

LoneCall LoneCall::of_unit(Action action, std::int64_t n, DType compute, DType reduce, DType master,
                           std::size_t buffers, int accumulate) {
  const auto p = make(action, compute, reduce, master, buffers);
  Parameter parameter;
  parameter.name = "p";
  parameter.shape = {n};
  p->model.parameters = {parameter};
  p->program.layouts = {whole_parameter(0, parameter)};
  p->program.layouts[0].param_dtype = compute, p->program.layouts[0].reduce_dtype = reduce;
  for (Buffer& b : p->program.buffers) {
    b.unit = 0;
    b.param = 0;
  }
  p->op.unit = 0;
  if (accumulate >= 0) p->args[static_cast<std::size_t>(accumulate)].access = Access::accumulate;
  return LoneCall(p);
}

void LoneCall::launch(Device& device, std::int32_t op, std::vector<BufferView> views) const {
  std::vector<Arg> args = parts_->args;
  for (std::size_t i = 0; i < args.size(); ++i)
    if (views[i].data == nullptr) args[i].buffer = -1;
  device.launch_kernel(op, Stream::compute, {},
                       {parts_->model, parts_->plan, parts_->program, parts_->training, parts_->op, args,
                        std::move(views), device.rank(), 1000, 1});
}

}  // namespace fsdp
