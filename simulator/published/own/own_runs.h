// Costs moved to a user's own measured steps.
//
//   std::vector<OwnRun> runs;                                        // a plan with what was measured of it, each
//   const OwnFit fitted = fit_own_runs(runs, base, "calibrate --from measurement.json");
//   write(to_json_text(fitted.costs));                               // "fsdp-plan/costs/1", for --costs
//   fitted.plans[0].unseen                                           // its error by a fit to the other plans alone
//
// What may move: the constants that `calibrate --runs` fits, and of calibrated costs a factor for each group of
// measured times (matrix products, other kernels, copies and the optimizer, collectives, threads that are woken). Each
// is drawn to where it starts, and moves only as far as its range (planner/costs/fitted.h). Steps decide, and where a
// measurement has times by action also the sums of kernels, of backward kernels and of the optimizer, at a third of the
// weight. A constant that nothing measured depends on stays where it was.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/cluster.h"
#include "models/graph.h"
#include "models/implementation.h"
#include "planner/costs.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "simulator/records/rows.h"

namespace fsdp {

struct OwnRun {
  std::string name;  // for people: the file
  ModelGraph model;
  ShardingPlan plan;
  const Implementation* implementation = nullptr;  // one of the program's constants
  ClusterSpec cluster;
  Program program;  // of rank 0
  double measured_step_s = 0;
  std::vector<ActionTime> measured_by_action;  // of rank 0's median step; empty: not observed
};

// Lowers the plan. It has passed `check` against the model.
[[nodiscard]] OwnRun own_run(std::string name, ModelGraph, ShardingPlan, const Implementation&, ClusterSpec,
                             double measured_step_s, std::vector<ActionTime> measured_by_action);

struct OwnConstant {
  std::string name;
  double factor = 1;          // that its start was multiplied by
  double standard_error = 0;  // relative
  bool at_bound = false;      // it would go further: the model lacks something
};

// Of one plan, whose measurements count together. Errors: predicted / measured - 1.
struct OwnPlan {
  std::string name;  // of its first measurement
  std::int64_t measurements = 0;
  double measured_step_s = 0, before = 0, after = 0;  // means over its measurements
  std::optional<double> unseen;                       // by constants fitted without it; empty: there is no other plan
};

struct OwnFit {
  Costs costs;
  std::vector<OwnConstant> constants;  // that moved by 0.5 % or more, in the order of the table
  std::vector<OwnPlan> plans;
};
// `runs`: at least one, all on one platform. Throws InputError("fit", ...) for steps that no costs explain.
[[nodiscard]] OwnFit fit_own_runs(std::span<const OwnRun> runs, const Costs& base, const std::string& source);

}  // namespace fsdp
