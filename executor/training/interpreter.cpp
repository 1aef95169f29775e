#include "executor/training/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "executor/actions/extents.h"
#include "models/index.h"
#include "models/input/error.h"

namespace fsdp {

std::vector<Comm> sized_communicators(const ShardingPlan& plan) {
  std::vector<Comm> comms;
  const auto add = [&](Comm comm) {
    if (std::find(comms.begin(), comms.end(), comm) == comms.end()) comms.push_back(comm);
  };
  for (const Unit& u : plan.units)
    if (const std::int64_t n = u.reshard_after_forward.ranks; n > 1 && n < plan.shard())
      add({Communicator::reshard, n});
  if (const std::int64_t n = plan.own_shard(); n > 0) {
    add({Communicator::own_shard, n});
    add({Communicator::own_replicate, plan.data_ranks() / n});
  }
  return comms;
}

Interpreter::Interpreter(const ModelGraph& model, const ShardingPlan& plan, const Program& program,
                         const Training& training, Device& device, const KernelHook& hook)
    : model_(model),
      plan_(plan),
      program_(program),
      training_(training),
      device_(device),
      hook_(hook),
      live_(program.buffers.size()),
      gathered_over_(program.buffers.size(), 0) {
  last_.fill(-1);
}

BufferView Interpreter::view(std::int32_t buffer) const {
  if (buffer < 0 || at(buffer) >= live_.size() || live_[at(buffer)].data == nullptr)
    throw InternalError(fmt::format("buffer {} is used while it is not allocated", buffer));
  return live_[at(buffer)];
}

std::vector<BufferView> Interpreter::views(std::span<const Arg> args) const {
  std::vector<BufferView> result;
  result.reserve(args.size());
  for (const Arg& a : args) {
    if (a.buffer < 0) {
      result.emplace_back();
      continue;
    }
    const BufferView whole = view(a.buffer);
    const std::int64_t bytes = a.bytes < 0 ? whole.bytes : a.bytes;
    if (a.offset < 0 || a.offset > whole.bytes || bytes > whole.bytes - a.offset)
      throw InternalError(fmt::format("bytes [{}, +{}) are asked of buffer {}, which holds {}", a.offset, bytes,
                                      a.buffer, whole.bytes));
    result.push_back({whole.data + a.offset, bytes});
  }
  return result;
}

void Interpreter::allocate(std::span<const std::int32_t> buffers) {
  if (!buffers.empty()) take_back(false);
  for (const std::int32_t b : buffers) {
    const Buffer& buffer = program_.buffers.at(at(b));
    if (live_[at(b)].data != nullptr)
      throw InternalError(fmt::format("buffer {} ({}) is allocated twice", b, name(buffer.kind)));
    live_[at(b)] =
        device_.allocate(buffer.pool, buffer.offset, buffer.bytes, buffer.host ? Memory::host : Memory::device);
  }
}

void Interpreter::release(std::span<const std::int32_t> buffers) {
  for (const std::int32_t b : buffers) {
    const Buffer& buffer = program_.buffers.at(at(b));
    if (buffer.recorded_streams == 0) {
      device_.release(buffer.pool, view(b));
    } else {
      WaitingBlock block{buffer.pool, view(b), last_};
      for (std::size_t s = 0; s < block.until.size(); ++s)
        if (((buffer.recorded_streams >> s) & 1U) == 0) block.until[s] = -1;
      waiting_.push_back(block);
    }
    live_[at(b)] = {};
  }
}

// What the streams of freed blocks have passed goes back, as PyTorch's allocator looks before it allocates.
void Interpreter::take_back(bool all) {
  std::erase_if(waiting_, [&](const WaitingBlock& block) {
    const bool passed = all || std::all_of(block.until.begin(), block.until.end(),
                                           [&](std::int32_t op) { return op < 0 || device_.finished(op); });
    if (passed) device_.release(block.pool, block.view);
    return passed;
  });
}

StepRecord Interpreter::run(const Step& step, std::int64_t index, const std::function<void(const Operation&)>& before) {
  StepRecord record;
  const auto begin = std::chrono::steady_clock::now();
  step_ = index;
  launched_.assign(step.ops.size(), 0);
  reduced_in_.assign(program_.layouts.size(), -1);
  last_.fill(-1);
  record.memory.points.reserve(step.ops.size());
  device_.begin_step();
  record.memory.start = device_.allocated_bytes();
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    try {
      if (before) before(op);
      if (!step.inner_of(op).empty())
        throw InternalError("an operation with temporaries of several kernels is not one of the native implementation");
      allocate(step.allocs_of(op));
      MemoryPoint point;
      point.at = device_.allocated_bytes();
      issue(step, static_cast<std::int32_t>(i), record);
      release(step.frees_of(op));
      point.after = device_.allocated_bytes();
      record.memory.points.push_back(point);
    } catch (const RankFailure&) {
      throw;
    } catch (const std::exception& e) {
      throw RankFailure(device_.rank(), static_cast<std::int32_t>(i),
                        fmt::format("rank {}, operation {}: {}", device_.rank(), i, e.what()));
    }
  }
  device_.synchronize();
  take_back(true);
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  record.operations = device_.records();
  for (const OperationRecord& r : record.operations) record.end = std::max(record.end, r.end);
  return record;
}

void Interpreter::issue(const Step& step, std::int32_t index, StepRecord& record) {
  const Operation& op = step.ops[at(index)];
  if (op.action == Action::host_wait) return wait_on_host(step.waits_of(op));
  if (op.action == Action::zero_gradients) return;  // its frees are its work
  std::vector<BufferView> buffers = views(step.args_of(op));
  const auto hooked = [&](KernelBody body) -> KernelBody {
    if (!hook_) return body;
    return [hook = &hook_, op, rank = device_.rank(), inner = std::move(body)] {
      (*hook)(op, rank);
      inner();
    };
  };
  if (op.host_only) return hooked(make_kernel(call(step, op, std::move(buffers))))();  // over when it returns
  if (op.action == Action::read_loss) return read_loss(op, buffers.at(0), record);
  waits_.clear();
  for (const std::int32_t w : step.waits_of(op)) {
    if (w < 0 && at(-1 - w) < step.ops.size()) continue;                    // of the step before, which has ended
    if (w < 0 || w >= index || launched_[at(w)] != 0) waits_.push_back(w);  // host order is enough for the others
  }
  launched_[at(index)] = 1;
  last_[static_cast<std::size_t>(op.stream)] = index;
  if (op.comm == Communicator::tensor && op.action != Action::clip_reduce)
    return issue_over_tensor(step, index, buffers);
  if (is_collective(op.action)) {
    if (op.unit >= 0 && op.action != Action::all_gather) reduced_in_.at(at(op.unit)) = op.micro_batch;
    return issue_collective(op, index, step.args_of(op), buffers);
  }
  KernelCall kernel = call(step, op, std::move(buffers));
  if (hook_) device_.launch(index, op.stream, waits_, hooked(make_kernel(kernel)));
  else device_.launch_kernel(index, op.stream, waits_, std::move(kernel));
}

KernelCall Interpreter::call(const Step& step, const Operation& op, std::vector<BufferView> buffers) const {
  const std::span<const Arg> args = step.args_of(op);
  const bool reduced = op.unit >= 0 && reduced_in_.at(at(op.unit)) == op.micro_batch;
  return {
      model_, plan_, program_, training_, op, args, std::move(buffers), device_.rank(), step_, gather_group(op, args),
      reduced};
}

void Interpreter::wait_on_host(std::span<const std::int32_t> operations) {
  for (const std::int32_t w : operations)  // of the step before: that one has ended
    if (w >= 0 && launched_.at(at(w)) != 0) device_.wait_host(w);
}

// Parts that were kept after forward are gathered over the small group that keeps a whole together.
std::int64_t Interpreter::gather_group(const Operation& op, std::span<const Arg> args) const {
  if (op.unit < 0 || args.empty()) return 1;
  const std::int64_t shards = program_.layouts.at(at(op.unit)).shards,
                     small = plan_.units.at(at(op.unit)).reshard_after_forward.ranks;
  const Buffer& first = program_.buffers.at(at(std::max(args[0].buffer, 0)));
  switch (op.action) {
    case Action::keep_shard: return small;
    case Action::cast_shard: return first.kind == BufferKind::kept_shard ? small : shards;
    case Action::gather_copy_in: {
      if (first.kind == BufferKind::kept_shard) return small;
      const bool whole_shard = first.param >= 0 || first.kind != BufferKind::cast_shard ||
                               first.bytes == program_.layouts[at(op.unit)].shard_elements * size_of(first.dtype);
      return whole_shard ? shards : small;
    }
    case Action::gather_copy_out:
      return first.kind == BufferKind::gather ? gathered_over_.at(at(args[0].buffer)) : shards;
    default: return 1;
  }
}

namespace {

Reduction reduction(ReduceOp op, double multiply) {
  if (op == ReduceOp::scaled_sum) return {ReductionKind::scaled_sum, multiply};
  return op == ReduceOp::average ? Reduction::average : Reduction::sum;
}

}  // namespace

Comm Interpreter::comm_of(const Operation& op) const {
  switch (op.comm) {
    case Communicator::reshard: return {op.comm, plan_.units.at(at(op.unit)).reshard_after_forward.ranks};
    case Communicator::own_shard: return {op.comm, plan_.own_shard()};
    case Communicator::own_replicate: return {op.comm, plan_.data_ranks() / plan_.own_shard()};
    default: return op.comm;
  }
}

void Interpreter::issue_collective(const Operation& op, std::int32_t index, std::span<const Arg> args,
                                   std::span<const BufferView> buffers) {
  const DType reduce = op.unit >= 0 ? program_.layouts.at(at(op.unit)).reduce_dtype : plan_.reduce_dtype;
  const auto reduced = [&] { return program_.layouts.at(at(op.unit)).reduce_elements; };
  const BufferView buffer = buffers[0];
  switch (op.action) {
    case Action::all_gather: {
      const UnitLayout& layout = program_.layouts.at(at(op.unit));
      expect_elements(buffer, layout.shard_elements * layout.shards, layout.param_dtype, "all_gather");
      const std::int64_t ranks = op.comm == Communicator::reshard ? comm_of(op).size : layout.shards;
      gathered_over_.at(at(args[0].buffer)) = ranks;
      const BufferView own = buffers.size() > 1 ? buffers[1] : BufferView{};  // fsdp1's shard; else it is there already
      if (buffers.size() > 1) expect_elements(own, layout.shard_elements, layout.param_dtype, "all_gather source");
      return device_.all_gather(index, op.stream, comm_of(op), waits_, buffer,
                                layout.shard_elements * layout.shards / ranks, layout.param_dtype, own);
    }
    case Action::reduce_scatter: {
      const UnitLayout& layout = program_.layouts.at(at(op.unit));
      expect_elements(buffer, reduced() * layout.shards, reduce, "reduce_scatter input");
      expect_elements(buffers[1], reduced(), reduce, "reduce_scatter output");
      return device_.reduce_scatter(index, op.stream, comm_of(op), waits_, buffer, buffers[1], reduced(), reduce,
                                    layout.shards == 1
                                        ? Reduction::sum  // a copy: where there is a factor, divide_copy has divided
                                        : reduction(layout.scale.reduce_scatter, layout.scale.multiply));
    }
    case Action::all_reduce:
      expect_elements(buffer, reduced(), reduce, "all_reduce");
      return device_.all_reduce(index, op.stream, comm_of(op), waits_, buffer, reduced(), reduce,
                                reduction(program_.layouts.at(at(op.unit)).scale.all_reduce, 1));
    case Action::clip_reduce:
    case Action::reduce_loss:
      expect_elements(buffer, 1, DType::f64, "scalar all-reduce");
      return device_.all_reduce(index, op.stream, comm_of(op), waits_, buffer, 1, DType::f64,
                                op.action != Action::clip_reduce   ? Reduction::average
                                : std::isinf(plan_.clip_norm_type) ? Reduction::maximum
                                                                   : Reduction::sum);
    default: throw InternalError(fmt::format("{} is no collective", name(op.action)));
  }
}

// Of a model that is split over tensor ranks: tokens on their way between ops, what the loss needs of each token, and
// gradients of parameters that every rank holds.
void Interpreter::issue_over_tensor(const Step& step, std::int32_t index, std::span<const BufferView> buffers) {
  const Operation& op = step.ops[at(index)];
  const std::span<const Arg> args = step.args_of(op);
  const BufferView first = buffers[0], last = buffers.back();
  if (op.graph_op < 0) {  // reads a gradient, writes its sum
    const Buffer& made = program_.buffers.at(at(args.back().buffer));
    if (op.action != Action::all_reduce || made.param < 0)
      throw InternalError(fmt::format("{} is no collective over tensor ranks", name(op.action)));
    const DType type = made.kind == BufferKind::gradient_accumulator ? plan_.reduce_dtype : plan_.param_dtype;
    const std::int64_t n = model_.gradient_numel(made.param);
    for (const BufferView v : buffers) expect_elements(v, n, type, "gradient of a part of the tokens");
    return device_.all_reduce(index, op.stream, op.comm, waits_, last, n, type, Reduction::sum, first);
  }
  const Op& graph_op = model_.ops.at(at(op.graph_op));
  const Workload work{plan_.micro_batches.at(static_cast<std::size_t>(op.micro_batch)), plan_.seq_len,
                      size_of(plan_.param_dtype)};
  if (op.action == Action::all_reduce) {  // the first behind the forward is of the largest logits
    const DType type = plan_.param_dtype == DType::f64 ? DType::f64 : DType::f32;
    expect_elements(first, work.tokens(), type, "statistic of a loss");
    const bool largest = index > 0 && step.ops[at(index - 1)].action == Action::forward;
    return device_.all_reduce(index, op.stream, op.comm, waits_, first, work.tokens(), type,
                              largest ? Reduction::maximum : Reduction::sum);
  }
  const std::int64_t part = std::min(elements(model_.tensors.at(at(graph_op.inputs[0])), work),
                                     elements(model_.tensors.at(at(graph_op.outputs[0])), work)),
                     whole = part * model_.tensor_ranks;
  const bool gathers = op.action == Action::all_gather;
  expect_elements(first, gathers ? part : whole, plan_.param_dtype, "tokens");
  expect_elements(last, gathers ? whole : part, plan_.param_dtype, "tokens");
  if (gathers) return device_.all_gather(index, op.stream, op.comm, waits_, last, part, plan_.param_dtype, first);
  device_.reduce_scatter(index, op.stream, op.comm, waits_, first, last, part, plan_.param_dtype, Reduction::sum);
}

// The host waits for everything on the stream that the loss comes from, and takes it.
void Interpreter::read_loss(const Operation& op, BufferView loss, StepRecord& record) {
  expect_elements(loss, 1, DType::f64, "loss");
  const std::int32_t last = last_[static_cast<std::size_t>(op.stream)];
  if (last >= 0) device_.wait_host(last);
  std::vector<std::byte> copy;
  std::memcpy(&record.loss, device_.bytes_of(loss, copy).data(), sizeof(double));
  if (std::isnan(record.loss)) record.loss = std::numeric_limits<double>::quiet_NaN();  // whatever its sign and bits
}

}  // namespace fsdp
