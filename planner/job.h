// A job: a model, a plan for it, what implements its ops and what it runs on. Everything after `check` starts from it.
//
//   check(plan, model, "plan.json");
//   Programs programs(resolve(model, plan, find_implementation("native", false, ""), cluster));
//   const Program& p = programs.of(/*rank=*/0);
//   const Prediction prediction = predict(programs, costs);
//   const RunResult result = run(programs, *backend);
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "models/cluster.h"
#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"
#include "planner/program.h"

namespace fsdp {

struct Job {
  ModelGraph model;  // what one rank computes: split over the plan's tensor ranks
  ShardingPlan plan;
  PlanIds ids;  // the plan's names in the model
  Implementation implementation;
  ClusterSpec cluster;
};

// The plan has passed `check` against the model, which may have been split over its tensor ranks.
[[nodiscard]] Job resolve(ModelGraph, ShardingPlan, const Implementation&, ClusterSpec);

// The program of the first rank, without a job, which would copy the model. `local`: what one rank computes.
[[nodiscard]] Program first_program(const ModelGraph& local, const ShardingPlan&, const Implementation&,
                                    const ClusterSpec&);

// The programs of a job's ranks. Ranks of one role have equal programs: equal unpadded shards, and equal places in the
// small groups of an integer reshard. A role is lowered when one of its ranks is first asked for, and kept. Not for use
// by several threads at once.
class Programs {
 public:
  explicit Programs(Job job);
  [[nodiscard]] const Job& job() const { return job_; }

  // Program::rank is the rank of the role that was asked for first. The reference stays valid as long as this object.
  [[nodiscard]] const Program& of(std::int64_t rank);
  [[nodiscard]] std::int64_t lowerings() const { return lowerings_; }  // done so far: one for each role asked for

 private:
  using Role = std::vector<std::int64_t>;
  [[nodiscard]] Role role_of(const std::vector<UnitLayout>&, std::int64_t rank) const;

  Job job_;
  std::map<Role, Program> by_role_;
  std::int64_t lowerings_ = 0;
};

}  // namespace fsdp
