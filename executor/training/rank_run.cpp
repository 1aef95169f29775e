// What one rank of a run does: init, first step, steady steps; and what must hold of each.
#include "executor/training/rank_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "executor/actions/extents.h"
#include "executor/kernels/host_kernel_set.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "planner/layout/flat.h"
#include "planner/layout/gradients.h"
#include "planner/program/stream_frees.h"
#include "simulator/records/step_statistics.h"

namespace fsdp {

RunJob::RunJob(const ModelGraph& m, const ShardingPlan& p, const RunOptions& o, const Backend& backend)
    : model(m),
      plan(p),
      options(o),
      ranks(static_cast<std::size_t>(backend.ranks())),
      local_ranks(backend.local_ranks()),
      parts(tensor_parts(m, p)) {}

void RunJob::reserve_results() {
  for (std::size_t i = 0; i < parts.size(); ++i)
    for (auto* tensors : {&parameters, &first_gradients}) {
      const Parameter& p = model.parameters[i];
      tensors->push_back({p.name, std::vector<double>(static_cast<std::size_t>(parts[i].whole_numel(p)))});
    }
}

// Processes read files of their own; collectives of two plans would hang, or mix up bytes.
void RunJob::check_same_plan(Device& device) const {
  if (local_ranks.size() == ranks.size()) return;
  const std::string mine = model.digest() + plan.digest();
  const std::vector<std::string> all = device.exchange(mine);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r] != mine)
      throw InputError("plan",
                       fmt::format("ranks {} and {} run different plans or models",
                                   std::min<std::int64_t>(device.rank(), static_cast<std::int64_t>(r)),
                                   std::max<std::int64_t>(device.rank(), static_cast<std::int64_t>(r))),
                       "give every process the same files");
}

void RunJob::run_rank(Device& device) {
  check_same_plan(device);
  RankJob& mine = ranks[static_cast<std::size_t>(device.rank())];
  device.reserve_arena(mine.program.arena_bytes);
  const auto start_of = [&](Memory where) {
    const BufferView start = device.allocate(Stream::compute, 0, 0, where);
    device.release(Stream::compute, start);
    return start.data;
  };
  mine.arena = start_of(Memory::device);
  if (mine.program.host_arena_bytes > 0) {
    device.reserve_arena(mine.program.host_arena_bytes, Memory::host);
    mine.host_arena = start_of(Memory::host);
  }
  Interpreter interpreter(model, plan, mine.program, options.training, device, options.in_kernel);
  train(interpreter, mine, device.rank());
  if (device.rank() == local_ranks.front()) account();
}

// The ranks' arenas stay mapped until all ranks have ended.
void RunJob::account() {
  std::int64_t arenas = 0;
  for (const std::int64_t r : local_ranks) {
    RankJob& rank = ranks[static_cast<std::size_t>(r)];
    rank.arena_resident_bytes = resident_bytes(rank.arena, rank.program.arena_bytes);
    arenas += rank.arena_resident_bytes + resident_bytes(rank.host_arena, rank.program.host_arena_bytes);
  }
  memory = process_memory(arenas);
  ranks[static_cast<std::size_t>(local_ranks.front())].process_seconds = own_processor_seconds();
}

void RunJob::train(Interpreter& interpreter, RankJob& mine, std::int64_t rank) {
  const int total = 1 + steady_steps();
  const std::int64_t done_before = options.training.steps_done;
  const auto progress = [&](int done, const StepRecord& step) {
    if (rank == 0 && options.progress) options.progress({done, total, step.loss, step.seconds});
  };
  mine.init = interpreter.run(mine.program.init, done_before);
  check_step(mine.init, mine.program.init.ops, mine, rank, false);
  mine.stage = 1;
  bool kept = !options.keep_parameters;
  mine.first = interpreter.run(mine.program.first_step, done_before, [&](const Operation& op) {
    if (kept || (op.action != Action::clip_local_norm && op.action != Action::optimizer)) return;
    kept = true;  // gradients are complete here, and not yet clipped
    interpreter.device().synchronize();
    keep_gradients(interpreter, mine.program, rank);
  });
  check_step(mine.first, mine.program.first_step.ops, mine, rank, false);
  check_loss(mine.first.loss, rank, 1);
  after_step(interpreter, mine, 1);
  progress(1, mine.first);
  mine.measured_from = static_cast<std::size_t>(warmup());
  mine.steady = StepLog(mine.measured_from, mine.program.steady_step.ops.size());
  for (int s = 1; !mine.early_stop && !finished(interpreter.device(), mine); ++s) {
    mine.stage = s + 1;
    StepRecord record = interpreter.run(mine.program.steady_step, done_before + s);
    check_step(record, mine.program.steady_step.ops, mine, rank, true);
    check_loss(record.loss, rank, s + 1);
    mine.steady.add(record);
    agree_on_stop(interpreter.device(), mine, s + 1);
    after_step(interpreter, mine, s + 1);
    progress(s + 1, record);
  }
  share_times(interpreter.device(), mine);
  if (options.keep_parameters) keep_parameters(interpreter, mine.program, rank);
}

// Every rank learns the times of all, as far as they are not known yet.
void RunJob::share_times(Device& device, RankJob& mine) const {
  const auto fresh = mine.steady.seconds().subspan(mine.slowest.size());
  if (fresh.empty()) return;
  std::string text(fresh.size_bytes(), '\0');
  std::memcpy(text.data(), fresh.data(), text.size());
  const std::vector<std::string> all = device.exchange(text);
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    double most = 0;
    for (const std::string& one : all) {
      double seconds = 0;
      if (one.size() != text.size()) throw MachineError("ranks disagree about how many steps they have run");
      std::memcpy(&seconds, one.data() + i * sizeof(double), sizeof(double));
      most = std::max(most, seconds);
    }
    mine.slowest.push_back(most);
  }
}

// Decided from the times of all ranks, so that all decide alike; looked at after kFewestToSettle steps and then
// whenever a quarter more have run.
bool RunJob::finished(Device& device, RankJob& mine) const {
  const auto most = static_cast<std::size_t>(steady_steps());
  if (!options.until_noise) {
    mine.stopped = counted(options.steps, "step") + ", as asked";
    return mine.steady.size() >= most;
  }
  const std::size_t run = mine.steady.size() - std::min(mine.steady.size(), static_cast<std::size_t>(warmup()));
  const std::size_t looked = mine.slowest.size() - std::min(mine.slowest.size(), static_cast<std::size_t>(warmup()));
  if (run < kFewestToSettle ||
      (run < looked + std::max<std::size_t>(looked / 4, 4) && looked > 0 && mine.steady.size() < most))
    return false;
  share_times(device, mine);
  const auto measured = std::span(mine.slowest).subspan(static_cast<std::size_t>(warmup()));
  const auto settled = settled_after(measured);
  if (settled) mine.measured_from = static_cast<std::size_t>(warmup()) + *settled;
  if (settled && known_after(*settled, measured, *options.until_noise)) {
    mine.stopped =
        fmt::format("the median is known to {:.3g} % (95 % confidence), as asked", 100 * *options.until_noise);
    return true;
  }
  mine.stopped = counted(options.steps, "step") + ", the most allowed";
  return mine.steady.size() >= most;
}

// All ranks end after the same step. The exchange is outside of what is timed. What a run has measured may then be
// warm-up alone: the last step of it counts.
void RunJob::agree_on_stop(Device& device, RankJob& mine, int done) const {
  const int asked = 1 + steady_steps();
  if (!options.asked_to_stop || done >= asked) return;
  for (const std::string& reason : device.exchange(options.asked_to_stop())) {
    if (reason.empty()) continue;
    mine.early_stop = {reason, done, asked};
    mine.stopped = fmt::format("{} after {} of {}", reason, done, counted(asked, "step"));
    mine.measured_from = std::min(mine.measured_from, mine.steady.size() - 1);
    return;
  }
}

// A run that is to keep what it trained (checkpoints) ends before it keeps what diverged. One that is only measured
// goes on: the time of a step does not depend on it.
void RunJob::check_loss(double loss, std::int64_t rank, int done) const {
  if (!options.after_step || std::isfinite(loss)) return;
  throw RankFailure(
      rank, -1,
      fmt::format("the loss of step {} is {}: training has diverged, and nothing of this step is saved; go on from an "
                  "older checkpoint with a lower --lr",
                  options.training.steps_done + done, std::isnan(loss) ? "not a number" : "infinite"));
}

// Where a state is between steps: in host memory, if it was sent there.
static std::int32_t kept_in(std::int32_t buffer, const Step& first_step) {
  for (const Operation& op : first_step.ops)
    if (op.action == Action::offload_state && first_step.args_of(op)[0].buffer == buffer)
      return first_step.args_of(op)[1].buffer;
  return buffer;
}

// What is timed is inside of Interpreter::run alone.
void RunJob::after_step(Interpreter& interpreter, const RankJob& mine, int done) const {
  if (!options.after_step) return;
  const auto view = [&](std::int32_t unit, StatePart part) {
    for (const Operation& op : mine.program.init.ops)
      if (part == StatePart::parameter && op.action == Action::init_parameters && op.unit == unit)
        return interpreter.view(mine.program.init.args_of(op)[0].buffer);
    for (const Operation& op : mine.program.first_step.ops) {
      if (op.action != Action::optimizer || op.unit != unit) continue;
      const auto args = mine.program.first_step.args_of(op);  // sharded gradient, shard, state1, state2
      const std::int32_t buffer = args[1 + static_cast<std::size_t>(part)].buffer;
      return buffer < 0 ? BufferView{} : interpreter.view(kept_in(buffer, mine.program.first_step));
    }
    return BufferView{};
  };
  options.after_step({mine.program, interpreter.device(), options.training.steps_done + done, view,
                      mine.early_stop || done == 1 + steady_steps()});
}

// What the library of matmuls may take by itself is not the kernel's.
std::int64_t RunJob::undeclared(const OperationRecord& record, const Operation& operation) const {
  const bool loads = options.training.state != nullptr;  // reading files takes heap
  if (loads && (operation.action == Action::init_parameters || operation.action == Action::init_optimizer)) return 0;
  std::int64_t longest = 0;
  if (operation.graph_op >= 0 && operation.action != Action::add_gradient) {
    const Op& op = model.ops[static_cast<std::size_t>(operation.graph_op)];
    const std::int64_t sequences = plan.micro_batches[static_cast<std::size_t>(operation.micro_batch)];
    if (op.kind == OpKind::linear) longest = std::max({sequences * plan.seq_len, op.shape.in, op.shape.out});
    if (op.kind == OpKind::expert_linear)
      longest = std::max({op.shape.experts.capacity(sequences * plan.seq_len), op.shape.in, op.shape.out});
    if (op.kind == OpKind::attention) longest = std::max(plan.seq_len, op.shape.head_dim);
  }
  return std::max<std::int64_t>(0, record.heap_bytes - (longest > 0 ? host_matmul_library_workspace(longest) : 0));
}

void RunJob::check_step(const StepRecord& step, const std::vector<Operation>& ops, RankJob& mine, std::int64_t rank,
                        bool steady) const {
  for (const OperationRecord& r : step.operations) {
    const std::int64_t taken = undeclared(r, ops[static_cast<std::size_t>(r.op)]);
    mine.undeclared_bytes = std::max(mine.undeclared_bytes, taken);
    if (taken > 0)
      throw RankFailure(rank, r.op,
                        fmt::format("rank {}: a kernel took {} bytes of heap that no buffer declares", rank, taken));
  }
  if (!steady) return;
  const MemoryTimeline& m = step.memory;
  const std::int64_t end = m.points.empty() ? m.start : m.points.back().after;
  if (frees_at_stream_time(mine.program)) {  // what is held depends on when streams get there; what a step leaves, not
    if (!mine.steady.empty() && mine.steady.memory().start != m.start)
      throw RankFailure(rank, -1,
                        fmt::format("rank {}: a steady step began with {} bytes allocated, and the next with {}", rank,
                                    mine.steady.memory().start, m.start));
    return;
  }
  if (end != m.start)
    throw RankFailure(
        rank, -1,
        fmt::format("rank {}: a steady step began with {} bytes allocated and ended with {}", rank, m.start, end));
  if (!mine.steady.empty() && !(mine.steady.memory() == m))
    throw RankFailure(rank, -1, fmt::format("rank {}: two steady steps allocated differently", rank));
}

// Rows that rank holds of a parameter, `from` on densely, into the whole one, as fp64.
void RunJob::keep_rows(const UnitLayout& layout, const ShardedParam& p, std::int64_t rank, const std::byte* from,
                       std::vector<NamedTensor>& into) const {
  if (!reports(layout, rank, p.param)) return;
  const Parameter& parameter = model.parameters.at(static_cast<std::size_t>(p.param));
  const std::int64_t width = size_of(plan.master_dtype), shard_rank = layout.shard_index(plan, rank);
  double* to = into.at(static_cast<std::size_t>(p.param)).values.data();
  const auto keep = [&](std::int64_t first, std::int64_t n) {
    host_kernel_set().convert(plan.master_dtype, {const_cast<std::byte*>(from), n * width}, DType::f64,
                              {reinterpret_cast<std::byte*>(to + first), n * size_of(DType::f64)}, n, false);
    from += n * width;
  };
  if (p.dim == 0)
    return parts[static_cast<std::size_t>(p.param)].for_each_run(
        parameter, rank % plan.tensor(), p.local_row_begin(shard_rank), p.local_rows(shard_rank), keep);
  std::int64_t outer = 1;
  for (std::int64_t d = 0; d < p.dim; ++d) outer *= parameter.shape[static_cast<std::size_t>(d)];
  const std::int64_t inner = p.row_elements / outer;
  for (std::int64_t o = 0; o < outer; ++o)
    keep((o * p.rows + p.local_row_begin(shard_rank)) * inner, p.local_rows(shard_rank) * inner);
}

// Replicas hold the same, and so do tensor ranks of what is not split: the first speaks.
bool RunJob::reports(const UnitLayout& layout, std::int64_t rank, std::int32_t param) const {
  return rank < layout.shards * plan.tensor() &&
         (rank % plan.tensor() == 0 || parts[static_cast<std::size_t>(param)].split());
}

void RunJob::keep_parameters(Interpreter& interpreter, const Program& program, std::int64_t rank) {
  for (const Operation& op : program.init.ops) {
    if (op.action != Action::init_parameters) continue;
    const std::int32_t buffer = program.init.args_of(op)[0].buffer;
    std::vector<std::byte> copy;
    const std::byte* data = interpreter.device().bytes_of(interpreter.view(buffer), copy).data();
    if (op.unit < 0) {
      keep_whole(program.buffers.at(static_cast<std::size_t>(buffer)).param, rank, data, parameters);
      continue;
    }
    const UnitLayout& layout = program.layouts.at(static_cast<std::size_t>(op.unit));
    if (layout.flat_elements > 0) {
      keep_flat(layout, rank, data, parameters);
      continue;
    }
    for (const ShardedParam& p : layout.params)
      keep_rows(layout, p, rank, data + p.offset * size_of(plan.master_dtype), parameters);
  }
}

void RunJob::keep_gradients(Interpreter& interpreter, const Program& program, std::int64_t rank) {
  for (const Operation& op : program.first_step.ops) {
    if (op.action != Action::optimizer) continue;
    const std::int32_t id = program.first_step.args_of(op)[0].buffer;
    const Buffer& buffer = program.buffers.at(static_cast<std::size_t>(id));
    std::vector<std::byte> copy;
    const std::byte* data = interpreter.device().bytes_of(interpreter.view(id), copy).data();
    if (op.unit < 0) {
      keep_whole(buffer.param, rank, data, first_gradients);
      continue;
    }
    const UnitLayout& layout = program.layouts.at(static_cast<std::size_t>(op.unit));
    if (layout.flat_elements > 0) {
      keep_flat(layout, rank, data, first_gradients);
      continue;
    }
    for_each_trained(
        layout, layout.shard_index(plan, rank), gradient_places(plan, buffer), [&](const TrainedPart& part) {
          for (const ShardedParam& p : layout.params)
            if (p.offset == part.shard && p.trainable)
              keep_rows(layout, p, rank, data + part.gradient * size_of(plan.master_dtype), first_gradients);
        });
  }
}

// This rank's part of a flat parameter, or of its gradient.
void RunJob::keep_flat(const UnitLayout& layout, std::int64_t rank, const std::byte* shard,
                       std::vector<NamedTensor>& into) const {
  const std::int64_t width = size_of(plan.master_dtype);
  for (const ShardedParam& p : layout.params) {
    const FlatRange r = flat_range(layout, p, plan.shard_index(rank));
    if (r.elements == 0 || !reports(layout, rank, p.param)) continue;
    double* to = into.at(static_cast<std::size_t>(p.param)).values.data() + r.offset_in_param;
    host_kernel_set().convert(
        plan.master_dtype, {const_cast<std::byte*>(shard) + r.offset_in_shard * width, r.elements * width}, DType::f64,
        {reinterpret_cast<std::byte*>(to), r.elements * size_of(DType::f64)}, r.elements, false);
  }
}

void RunJob::keep_whole(std::int32_t param, std::int64_t rank, const std::byte* from,
                        std::vector<NamedTensor>& into) const {
  if (rank != 0) return;
  const UnitLayout whole = whole_parameter(param, model.parameters.at(static_cast<std::size_t>(param)));
  keep_rows(whole, whole.params.front(), 0, from, into);
}

}  // namespace fsdp
