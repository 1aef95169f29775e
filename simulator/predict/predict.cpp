#include "simulator/predict.h"

#include <algorithm>
#include <array>
#include <map>

#include "models/graph/experts.h"
#include "models/input/error.h"
#include "planner/costs/rates.h"
#include "planner/program/stream_frees.h"
#include "simulator/allocator/pinned.h"
#include "simulator/analysis/breakdown.h"
#include "simulator/analysis/critical_path.h"
#include "simulator/analysis/order.h"
#include "simulator/analysis/times.h"
#include "simulator/doubt/doubt.h"
#include "simulator/engine/engine.h"
#include "simulator/engine/memory.h"
#include "simulator/predict/allocation.h"
#include "simulator/predict/retries.h"

namespace fsdp {

namespace {

constexpr std::int64_t kMaxRankRoles = 64;  // ranks up to which every rank's memory is predicted

Bytes scaled(Bytes b, double factor) {
  return Bytes(static_cast<std::int64_t>(static_cast<double>(b.count()) * factor));
}

// Flops per second that utilisation is measured against: the datasheet's; on the host the best calibrated matmul.
double peak_flops(const CostContext& c) {
  if (!c.cluster.host) return matrix_peak(c.plan.param_dtype, c.cluster.gpu);
  double best = 0;
  for (const CurvePoint& p : c.costs.matmul_curve[0]) best = std::max(best, p.size / p.seconds);
  return best;
}

// Recomputed flops in the convention of model_flops_per_token: the whole square of attention counts, although kernels
// compute half of it.
double recomputed_flops(const Step& step, const Demands& demands, const ModelGraph& model) {
  double sum = 0;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    if (step.ops[i].action != Action::recompute) continue;
    const Op& op = model.ops[static_cast<std::size_t>(step.ops[i].graph_op)];
    sum += demands[i].flops.count() * (op.kind == OpKind::attention && op.shape.causal ? 2 : 1);
  }
  return sum;
}

void fill_rates(Prediction& p, const Program& program, const Demands& demands, const CostContext& c) {
  const double tokens_per_rank = static_cast<double>(c.plan.sequences_per_rank()) * static_cast<double>(c.plan.seq_len);
  const double seconds = p.step_time.count(), peak = peak_flops(c);
  p.tokens_per_step = c.plan.tokens_per_step();
  if (seconds <= 0) return;
  p.tokens_per_s = static_cast<double>(p.tokens_per_step) / seconds;
  if (peak <= 0) return;
  const double model_flops = model_flops_per_token(c.model, c.plan.seq_len) * tokens_per_rank;
  p.mfu = model_flops / seconds / peak;
  p.hfu = (model_flops + recomputed_flops(program.steady_step, demands, c.model)) / seconds / peak;
}

// NCCL's communicators, each over its own ranks: that of all ranks and that of a dimension are one where they join the
// same ranks; shard_reduce is a second one on purpose.
std::int64_t communicators_of(const Program& program, const ShardingPlan& plan) {
  std::array<bool, kCommunicators> used{};
  for (const Step* step : {&program.init, &program.first_step, &program.steady_step})
    for (const Operation& op : step->ops) used[static_cast<std::size_t>(op.comm)] = true;
  const auto uses = [&](Communicator c) { return used[static_cast<std::size_t>(c)]; };
  const bool shard = uses(Communicator::shard) && plan.shard() > 1;
  const bool replicate = uses(Communicator::replicate) && plan.replicate() > 1;
  const bool tensor = uses(Communicator::tensor) && plan.tensor() > 1;
  const bool world = uses(Communicator::world) && plan.ranks() > 1 && !(shard && plan.shard() == plan.ranks()) &&
                     !(replicate && plan.replicate() == plan.ranks()) && !(tensor && plan.tensor() == plan.ranks());
  const bool reduce = uses(Communicator::shard_reduce) && plan.shard() > 1;
  const bool own = uses(Communicator::own_shard) && plan.own_shard() > 1;
  const bool own_replicas = uses(Communicator::own_replicate) && plan.own_shard() < plan.data_ranks();
  return std::int64_t{shard} + replicate + tensor + world + reduce + own + own_replicas + uses(Communicator::reshard);
}

// Of products in parts: memory that other ranks read, which comes from the driver, not from the caching allocator. It
// grows to the most that an operation asks for: the rows that it shares, or two parts of sums in turn
// (get_symm_mem_workspace in torch/distributed/_symmetric_memory).
Bytes workspace_of_parts(const Program& program) {
  std::int64_t most = 0;
  for (const Operation& op : program.steady_step.ops) {
    if (op.action != Action::share_part && op.action != Action::exchange_part) continue;
    const Arg& a = program.steady_step.args_of(op)[0];
    const std::int64_t bytes = a.bytes >= 0 ? a.bytes : program.buffers[static_cast<std::size_t>(a.buffer)].bytes;
    most = std::max(most, op.action == Action::exchange_part ? 2 * bytes : bytes);
  }
  return Bytes(most);
}

// Context and communicators: the cluster's figure has one.
Bytes fixed_memory(const Program& program, const CostContext& c) {
  const std::int64_t further = std::max<std::int64_t>(0, communicators_of(program, c.plan) - 1);
  return c.cluster.fixed_memory + Bytes(further * c.cluster.communicator_memory.count()) + workspace_of_parts(program);
}

// Ranks share the memory of their node.
void check_host(Prediction& p, const Program& program, const CostContext& c) {
  if (c.cluster.host || p.memory.host_peak == 0) return;
  const std::int64_t ranks = std::min(c.plan.ranks(), c.cluster.gpus_per_node);
  if (c.implementation.memory != MemorySource::arena) {
    std::int64_t pinned = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) pinned += pinned_peak(program, c.plan, rank);
    p.memory.host_peak = (pinned + ranks - 1) / ranks;
  }
  p.host = HostMemory{static_cast<double>(ranks) * static_cast<double>(p.memory.host_peak),
                      static_cast<double>(c.cluster.host_memory.value_or(Bytes(0)).count())};
  if (!p.host->fits()) p.verdict = Verdict::does_not_fit;
}

// What the limit has to hold beside what is reserved. Where ranks run on processors, offloaded buffers are in the same
// memory.
Bytes beside_reserved(const Prediction& p, const CostContext& c) {
  return p.fixed + Bytes(c.cluster.host ? p.memory.host_peak : 0);
}

// Reserved without a limit; what happens under the limit where that is more.
void fill_reserved(Prediction& p, const Program& program, const CostContext& c, const PredictOptions& asked,
                   const Timeline& steady) {
  p.verdict = Verdict::does_not_fit;
  const Bytes beside = beside_reserved(p, c);
  if (const auto arena = arena_of(program, c)) {
    p.peak_active = p.memory.most ? Bytes(p.memory.most->peak()) : p.peak_allocated;
    p.peak_reserved_estimate = Bytes(*arena);
    if (p.peak_reserved_estimate + beside <= p.memory_limit) p.verdict = Verdict::fits;
    return;
  }
  const CachedAllocation replayed(program, c, steady);
  const bool expandable = c.implementation.memory == MemorySource::caching_expandable;
  const AllocatorPrediction free = replayed.with(kNoLimit, expandable);
  if (free.out_of_memory) throw InternalError("a device without a limit is out of memory");
  p.peak_active = Bytes(free.peak_active);
  p.peak_reserved_estimate = Bytes(free.peak_reserved);
  if (p.peak_reserved_estimate + beside <= p.memory_limit) p.verdict = Verdict::fits;
  const std::int64_t capacity = (p.memory_limit - beside).count();
  if (p.verdict == Verdict::fits || !asked.tight || free.peak_allocated > capacity) return;
  const AllocatorPrediction limited = replayed.with(capacity, expandable);
  if (!limited.out_of_memory) {
    p.alloc_retries = limited.retries_per_step;
    p.retry_stall =
        retry_stall(program, c, replayed.options(capacity, expandable), p.alloc_retries, asked.keep_timeline);
  }
  if (!limited.out_of_memory || (!expandable && !replayed.with(capacity, true).out_of_memory))
    p.verdict = Verdict::tight;
}

// Between which bounds an execution is. Only our executor's are compared with them.
ProgramMemory memory_of_program(const Program& program, const CostContext& c) {
  ProgramMemory memory = replay_memory(program);
  if (frees_at_stream_time(program) && c.implementation.memory == MemorySource::arena)
    memory.most = replay_latest(program);
  return memory;
}

void fill_memory(Prediction& p, const Program& program, const CostContext& c, const PredictOptions& options,
                 const Timeline& steady) {
  p.memory = memory_of_program(program, c);
  p.peak_allocated = Bytes(p.memory.peak);
  p.fixed = fixed_memory(program, c);
  p.memory_limit = options.memory_limit.value_or(default_memory_limit(c.cluster));
  fill_reserved(p, program, c, options, steady);
  p.peak_total = p.peak_reserved_estimate + beside_reserved(p, c);
  check_host(p, program, c);
  p.peak_made_of = p.memory.at_peak;
}

std::string peak_place(const Prediction& p, const Program& program, const CostContext& c) {
  const Step* const steps[3] = {&program.init, &program.first_step, &program.steady_step};
  const char* const names[3] = {"init", "first step", "steady step"};
  if (!p.memory.peak_op) return "before the first operation";
  const Operation& op = steps[p.memory.peak_step]->ops.at(static_cast<std::size_t>(*p.memory.peak_op));
  return describe(op, program, c.plan, c.model) + ", " + names[p.memory.peak_step];
}

// Of memory: ranks with equal unpadded shards allocate alike. The roles of Programs are finer, because an integer
// reshard gives them other places in their small groups. Replicas repeat the roles of their shard group, and the ranks
// of a tensor group are alike.
void fill_roles(Prediction& p, Programs& programs, const CostContext& c) {
  const ShardingPlan& plan = programs.job().plan;
  const std::vector<UnitLayout>& layouts = programs.of(0).layouts;
  std::map<std::vector<std::int64_t>, std::int32_t> roles;
  std::vector<std::int32_t> of_shard;
  const std::int64_t different = plan.own_shard() > 0 ? plan.data_ranks() : plan.shard();  // the others repeat them
  for (std::int64_t s = 0; s < different; ++s) {
    std::vector<std::int64_t> sizes;
    for (const UnitLayout& unit : layouts)
      sizes.push_back(unit.local_elements(unit.shard_index(plan, s * plan.tensor())));
    const auto [it, fresh] = roles.try_emplace(std::move(sizes), static_cast<std::int32_t>(roles.size()));
    if (fresh && it->second > 0) p.other_roles.push_back(memory_of_program(programs.of(s * plan.tensor()), c));
    of_shard.insert(of_shard.end(), static_cast<std::size_t>(plan.tensor()), it->second);
  }
  for (std::int64_t r = 0; r < plan.data_ranks() / different; ++r)
    p.role_of_rank.insert(p.role_of_rank.end(), of_shard.begin(), of_shard.end());
  p.roles = static_cast<std::int64_t>(roles.size());
}

// All but the timeline and what follows from it.
Prediction summary(const Program& program, const CostContext& c, const PredictOptions& options, const Demands& demands,
                   const Timeline& timeline) {
  Prediction p;
  p.ranks = c.plan.ranks();
  p.step_time = Seconds(timeline.duration);
  p.where = where_time_goes(program.steady_step, timeline);
  p.exposed_communication = exposed_communication(p.where);
  if (!options.memory) return p;
  fill_memory(p, program, c, options, timeline);
  fill_rates(p, program, demands, c);
  return p;
}

}  // namespace

Bytes memory_limit(const ClusterSpec& cluster, const MemoryBudget& budget) {
  const Bytes left = scaled(cluster.gpu.usable_memory, 1 - budget.headroom);
  return left > budget.reserve ? left - budget.reserve : Bytes(0);
}

Bytes default_memory_limit(const ClusterSpec& cluster) { return memory_limit(cluster, {}); }

Prediction predict(const Program& program, const CostContext& c, const PredictOptions& options) {
  const Demands demands = demands_of(program.steady_step, program, c);
  return summary(program, c, options, demands, simulate(program.steady_step, demands));
}

Prediction predict(Programs& programs, const Costs& costs, const PredictOptions& options) {
  const Job& job = programs.job();
  const CostContext c{job.model, job.plan, job.implementation, job.cluster, costs};
  const Program& program = programs.of(0);
  const Demands demands = demands_of(program.steady_step, program, c);
  Timeline timeline = simulate(program.steady_step, demands);
  Prediction p = summary(program, c, options, demands, timeline);
  if (!options.memory || !options.keep_timeline) return p;
  p.provenance = provenance_of(program, c);
  if (!c.cluster.host) {
    const Bytes device = c.cluster.gpu.usable_memory;
    const double usable = static_cast<double>((device > options.reserve ? device - options.reserve : device).count()),
                 peak = static_cast<double>(p.peak_total.count());
    const double waits = p.step_time.count() > 0 ? p.exposed_communication.count() / p.step_time.count() : 0;
    const Software software{c.implementation.name, has_experts(c.model)};
    p.doubt = doubt_of(doubt_table(), {software, p.ranks, waits, peak / usable}, p.step_time.count(), peak,
                       static_cast<double>((p.peak_allocated + p.fixed).count()), usable);
  }
  p.peak_at = peak_place(p, program, c);
  if (p.ranks <= kMaxRankRoles) fill_roles(p, programs, c);
  p.critical_path = critical_path(program.steady_step, timeline, c.model);
  p.by_action = times_by_action(program.steady_step, timeline, c.model);
  p.by_unit = times_by_unit(program.steady_step, timeline, c.plan, c.model);
  p.order = order_of(program.steady_step, c.plan, c.model);
  p.issued = issued(program.steady_step);
  p.timeline = std::move(timeline);
  return p;
}

}  // namespace fsdp
