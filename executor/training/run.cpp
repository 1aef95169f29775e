// Executing a plan: every rank's program is lowered, proven, run and measured.
#include "executor/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "executor/ranks/group.h"
#include "executor/training/interpreter.h"
#include "executor/training/rank_run.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "simulator/engine/race.h"

namespace fsdp {
namespace {

void check_runnable(const Job& job, const Backend& backend, const RunOptions& options) {
  const ModelGraph& model = job.model;
  const ShardingPlan& plan = job.plan;
  if (digest(job.implementation) != digest(backend.implementation()))
    throw InputError("implementation",
                     fmt::format("{} cannot run on the {} backend, which runs {}", job.implementation.name,
                                 backend.name(), backend.implementation().name),
                     "resolve the job with the backend's implementation");
  const MeshShape mesh{plan.replicate(), plan.shard(), plan.tensor()}, there = backend.mesh();
  if (plan.ranks() != backend.ranks() || mesh.shard != there.shard || mesh.tensor != there.tensor)
    throw InputError(
        {"plan", "mesh"},
        fmt::format("{} ranks cannot run on a backend of {}", host::mesh_text(mesh), host::mesh_text(there)),
        "make both of one shape");
  const bool own =
      plan.dialect == Dialect::fsdp1 &&
      std::any_of(plan.units.begin(), plan.units.end(), [](const Unit& u) { return u.param_dtype || u.reduce_dtype; });
  if (own)
    throw InputError({"plan", "units"}, "units of fsdp1 with types of their own are predicted, and have no kernels yet",
                     "leave param_dtype and reduce_dtype out there");
  if (plan.trained_dtype)
    throw InputError({"plan", "trained_dtype"},
                     fmt::format("{} beside {} is predicted, and has no kernels yet", name(*plan.trained_dtype),
                                 name(plan.master_dtype)),
                     "leave it out, or run the plan with PyTorch (--emit)");
  for (const DType t : {plan.param_dtype, plan.reduce_dtype, plan.master_dtype})
    if (t == DType::i64)
      throw InputError({"plan", "dtypes"}, fmt::format("{} cannot run on the {} backend", name(t), backend.name()),
                       "use fp64, fp32, bf16 or fp16");
  if (std::any_of(model.ops.begin(), model.ops.end(), [](const Op& o) { return o.kind == OpKind::opaque; }))
    throw InputError("model", "it has opaque operations, which have no kernels",
                     "predict it with `fsdp-plan simulate` instead");
  if (options.steps < (options.single ? 0 : 1) || options.warmup_steps < 0)
    throw InputError(setting("steps"), "must be at least 1", "give a positive number");
  if (options.until_noise && options.after_step)
    throw InputError(setting("until_noise"), "does not know its last step beforehand, which work between steps is told",
                     "give --steps");
  if (options.until_noise && (!(*options.until_noise > 0) || options.steps < static_cast<int>(kFewestToSettle)))
    throw InputError(setting("until_noise"),
                     fmt::format("needs a positive fraction and at least {} steps to reach it in", kFewestToSettle),
                     "give it such as 2%, and more --max-steps");
}

// Lowering offers more than the backends run.
void check_runnable(const ShardingPlan& plan) {
  if (const OptimizerFacts& optimizer = facts_of(plan.optimizer.kind); !optimizer.executed)
    throw InputError({"plan", "optimizer.kind"},
                     fmt::format("{} is {}, which no backend has a kernel for", optimizer.name, optimizer.python),
                     "make the plan with adamw, or predict it with `fsdp-plan simulate` instead");
}

// Throws InternalError for a program that has a race.
void prove_free_of_races(const Program& program, const Job& job, std::int64_t rank) {
  const std::vector<Race> races = find_races(program, 1);
  if (races.empty()) return;
  const Race& r = races.front();
  const Step& step = r.step == 0 ? program.init : r.step == 1 ? program.first_step : program.steady_step;
  const auto text = [&](std::int32_t i) {
    return i >= 0 && static_cast<std::size_t>(i) < step.ops.size()
               ? describe(step.ops[static_cast<std::size_t>(i)], program, job.plan, job.model)
               : std::string("the step before");
  };
  throw InternalError(
      fmt::format("the program of rank {} is not run, it has a race: {}; operation {} ({}) and operation {} ({}), "
                  "buffer {}",
                  rank, r.rule, r.earlier, text(r.earlier), r.later, text(r.later), r.buffer));
}

// Programs that may run: laid out in their arenas and free of races. Each role is prepared once; a rank's program that
// `mutate` has changed is its own.
class ProvenPrograms {
 public:
  ProvenPrograms(Programs& programs, const RunOptions& options) : programs_(programs), options_(options) {}

  [[nodiscard]] Program of(std::int64_t rank) {
    const Program& lowered = programs_.of(rank);
    if (options_.mutate) return prepare(lowered, rank);
    auto role = by_role_.find(&lowered);
    if (role == by_role_.end()) role = by_role_.emplace(&lowered, prepare(lowered, rank)).first;
    Program program = role->second;
    program.rank = rank;
    return program;
  }

 private:
  [[nodiscard]] Program prepare(Program program, std::int64_t rank) const {
    program.rank = rank;
    if (options_.mutate) options_.mutate(program, rank);
    assign_arena(program);
    prove_free_of_races(program, programs_.job(), rank);
    return program;
  }

  Programs& programs_;
  const RunOptions& options_;
  std::map<const Program*, Program> by_role_;  // by the lowered program
};

// A failure in words of the plan: what the operation was that it happened in. All ranks run the same operations; those
// of a rank that is another process are described by this one's.
[[noreturn]] void rethrow(const RankFailure& e, const RunJob& job, const std::vector<std::int64_t>& here) {
  if (e.rank() < 0 || static_cast<std::size_t>(e.rank()) >= job.ranks.size()) throw e;
  const bool local = std::find(here.begin(), here.end(), e.rank()) != here.end();
  const RankJob& r = job.ranks[static_cast<std::size_t>(local ? e.rank() : here.front())];
  const auto* process = dynamic_cast<const ProcessFailure*>(&e);
  const int begun = process != nullptr ? process->steps_begun() : r.stage.load() + 1;  // init is the first
  const Step& step = begun <= 1 ? r.program.init : begun == 2 ? r.program.first_step : r.program.steady_step;
  std::string where = begun <= 1 ? "init" : fmt::format("step {}", job.options.training.steps_done + begun - 1);
  if (e.op() >= 0 && static_cast<std::size_t>(e.op()) < step.ops.size())
    where += fmt::format(", operation {}: {}", e.op(),
                         describe(step.ops[static_cast<std::size_t>(e.op())], r.program, job.plan, job.model));
  throw ProcessFailure(e.rank(), e.op(), begun, fmt::format("{} [{}]", e.what(), where));
}

}  // namespace

RunResult run(Programs& programs, Backend& backend, const RunOptions& options) {
  const ShardingPlan& plan = programs.job().plan;
  check_runnable(programs.job(), backend, options);
  check_runnable(plan);
  const auto job = std::make_shared<RunJob>(programs.job().model, plan, options, backend);
  ProvenPrograms proven(programs, options);
  const std::vector<std::int64_t>& here = job->local_ranks;
  for (const std::int64_t r : here) job->ranks[static_cast<std::size_t>(r)].program = proven.of(r);
  if (options.keep_parameters) job->reserve_results();
  try {
    backend.run([job](Device& device) { job->run_rank(device); }, sized_communicators(plan));
  } catch (const RankFailure& e) {
    rethrow(e, *job, here);
  }
  if (static_cast<std::int64_t>(here.size()) < backend.ranks() && !backend.emulated())
    gather_from_processes(*job, backend);
  RunResult result;
  result.early_stop = job->ranks[static_cast<std::size_t>(here.front())].early_stop;
  if (here.front() == 0 && !options.single) {
    for (std::int64_t r = static_cast<std::int64_t>(here.size()); r < backend.ranks() && !backend.emulated(); ++r)
      job->ranks[static_cast<std::size_t>(r)].program = proven.of(r);
    result.measurement = measure(*job, programs.job().cluster, backend);
  }
  result.parameters = std::move(job->parameters);
  result.first_gradients = std::move(job->first_gradients);
  return result;
}

bool may_exit_after_failure(const Backend& backend) { return backend.name() == "mpi"; }

}  // namespace fsdp
