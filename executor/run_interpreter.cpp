#include "executor/run_interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "models/error.h"

namespace fsdp {

namespace {
std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
}  // namespace

void expect_elements(BufferView view, std::int64_t elements, DType type, const char* what) {
  if (view.data == nullptr) throw MachineError(fmt::format("{}: no buffer was given", what));
  if (elements < 0 || view.bytes / size_of(type) != elements || view.bytes % size_of(type) != 0)
    throw MachineError(
        fmt::format("{}: a buffer of {} bytes where the model needs {} {} elements", what, view.bytes, elements, name(type)));
}

DType reduction_type(const ShardingPlan& plan) { return plan.dialect == Dialect::ddp ? plan.master_dtype : plan.reduce_dtype; }

Interpreter::Interpreter(const ModelGraph& model, const ShardingPlan& plan, const Program& program,
                         const Training& training, Device& device, const KernelHook& hook)
    : model_(model), plan_(plan), program_(program), training_(training), device_(device), hook_(hook), live_(program.buffers.size()) {
  last_.fill(-1);
}

BufferView Interpreter::view(std::int32_t buffer) const {
  if (buffer < 0 || at(buffer) >= live_.size() || live_[at(buffer)].data == nullptr)
    throw MachineError(fmt::format("buffer {} is used while it is not allocated", buffer));
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
      throw MachineError(
          fmt::format("bytes [{}, +{}) are asked of buffer {}, which holds {}", a.offset, bytes, a.buffer, whole.bytes));
    result.push_back({whole.data + a.offset, bytes});
  }
  return result;
}

void Interpreter::allocate(std::span<const std::int32_t> buffers) {
  for (const std::int32_t b : buffers) {
    const Buffer& buffer = program_.buffers.at(at(b));
    if (live_[at(b)].data != nullptr) throw MachineError(fmt::format("buffer {} ({}) is allocated twice", b, name(buffer.kind)));
    live_[at(b)] = device_.allocate(buffer.pool, buffer.offset, buffer.bytes);
  }
}

void Interpreter::release(std::span<const std::int32_t> buffers) {
  for (const std::int32_t b : buffers) {
    device_.release(program_.buffers.at(at(b)).pool, view(b));
    live_[at(b)] = {};
  }
}

StepRecord Interpreter::run(const Step& step, std::int64_t index, const std::function<void(const Operation&)>& before) {
  StepRecord record;
  step_ = index;
  launched_.assign(step.ops.size(), 0);
  last_.fill(-1);
  record.memory.points.reserve(step.ops.size());
  device_.begin_step();
  record.memory.start = device_.allocated_bytes();
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    try {
      if (before) before(op);
      if (!step.inner_of(op).empty()) throw MachineError("an operation with temporaries of several kernels is not one of the native implementation");
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
  record.operations = device_.records();
  for (const OperationRecord& r : record.operations) record.end = std::max(record.end, r.end);
  return record;
}

void Interpreter::issue(const Step& step, std::int32_t index, StepRecord& record) {
  const Operation& op = step.ops[at(index)];
  if (op.host_only) return;  // its frees are its work
  std::vector<BufferView> buffers = views(step.args_of(op));
  if (op.action == Action::read_loss) return read_loss(op, buffers.at(0), record);
  waits_.clear();
  for (const std::int32_t w : step.waits_of(op))
    if (w < 0 || w >= index || launched_[at(w)] != 0) waits_.push_back(w);  // host order is enough for the others
  launched_[at(index)] = 1;
  last_[static_cast<std::size_t>(op.stream)] = index;
  if (is_collective(op.action)) return issue_collective(op, index, buffers);
  KernelBody body = make_kernel({model_, plan_, program_, training_, op, step.args_of(op), std::move(buffers), device_.rank(), step_});
  if (hook_)
    body = [hook = &hook_, op, rank = device_.rank(), inner = std::move(body)] {
      (*hook)(op, rank);
      inner();
    };
  device_.launch(index, op.stream, waits_, std::move(body));
}

namespace {

Reduction reduction(ReduceOp op) { return op == ReduceOp::average ? Reduction::average : Reduction::sum; }

}  // namespace

void Interpreter::issue_collective(const Operation& op, std::int32_t index, std::span<const BufferView> buffers) {
  const DType reduce = reduction_type(plan_);
  const auto shard_elements = [&] { return program_.layouts.at(at(op.unit)).shard_elements; };
  const BufferView buffer = buffers[0];
  switch (op.action) {
    case Action::all_gather: {
      const UnitLayout& layout = program_.layouts.at(at(op.unit));
      expect_elements(buffer, layout.shard_elements * layout.shards, plan_.param_dtype, "all_gather");
      return device_.all_gather(index, op.stream, op.comm, waits_, buffer, layout.shard_elements, plan_.param_dtype);
    }
    case Action::reduce_scatter: {
      const UnitLayout& layout = program_.layouts.at(at(op.unit));
      expect_elements(buffer, layout.shard_elements * layout.shards, reduce, "reduce_scatter input");
      expect_elements(buffers[1], layout.shard_elements, reduce, "reduce_scatter output");
      return device_.reduce_scatter(index, op.stream, op.comm, waits_, buffer, buffers[1], layout.shard_elements, reduce,
                                    reduction(layout.scale.reduce_scatter));
    }
    case Action::all_reduce:
      expect_elements(buffer, shard_elements(), reduce, "all_reduce");
      return device_.all_reduce(index, op.stream, op.comm, waits_, buffer, shard_elements(), reduce,
                                reduction(program_.layouts.at(at(op.unit)).scale.all_reduce));
    case Action::clip_reduce:
    case Action::reduce_loss:
      expect_elements(buffer, 1, DType::f64, "scalar all-reduce");
      return device_.all_reduce(index, op.stream, op.comm, waits_, buffer, 1, DType::f64,
                                op.action == Action::clip_reduce ? Reduction::sum : Reduction::average);
    default: throw MachineError(fmt::format("{} is no collective", name(op.action)));
  }
}

// The host waits for everything on the stream that the loss comes from, and takes it.
void Interpreter::read_loss(const Operation& op, BufferView loss, StepRecord& record) {
  expect_elements(loss, 1, DType::f64, "loss");
  const std::int32_t last = last_[static_cast<std::size_t>(op.stream)];
  if (last >= 0) device_.wait_host(last);
  std::memcpy(&record.loss, loss.data, sizeof(double));
}

}  // namespace fsdp
