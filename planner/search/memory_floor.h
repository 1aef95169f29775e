// Lower bound on the memory of any schedule of a plan, part by part.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"

namespace fsdp {

struct MemoryFloor {
  std::int64_t states = 0;             // parameter shards and optimizer states: there all the time
  std::int64_t gradients = 0;          // sharded gradients, when the optimizer runs
  std::int64_t fetched_states = 0;     // beside them: optimizer states that wait in host memory before
  std::int64_t waiting_gradients = 0;  // gradients that wait while a later micro-batch computes
  std::int64_t gathered = 0;           // units that stay gathered from forward to backward
  std::int64_t largest_unit = 0;       // the largest unit, gathered: its buffer and the parameters copied out
  std::int64_t saved = 0;  // activations at the end of that micro-batch's forward (of the first's, where it needs more)
  [[nodiscard]] std::int64_t forward_end() const { return waiting_gradients + gathered + saved; }
  [[nodiscard]] std::int64_t bytes() const;  // the largest of the three moments
};

[[nodiscard]] MemoryFloor memory_floor(const ModelGraph&, const ShardingPlan&, const Implementation&);

// The same for many plans of one model. What the units hold and what is saved for backward are worked out once for all
// plans that share them.
class MemoryFloors {
 public:
  MemoryFloors(const ModelGraph& model, const Implementation& implementation)  // both outlive it
      : model_(model), implementation_(implementation) {}
  [[nodiscard]] MemoryFloor of(const ShardingPlan&);
  // Without activations and gradients that wait for later micro-batches.
  [[nodiscard]] MemoryFloor of_states(const ShardingPlan& plan) const { return of_units(plan).floor; }

 private:
  struct OfUnits {
    MemoryFloor floor;         // without what is saved
    std::int64_t waiting = 0;  // bytes of gradients that wait, where micro-batches follow each other
  };
  // Sequences, their length, parts of the loss, does the output layer run with each, the type of activations,
  // recomputed modules.
  using Saved = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, DType, std::vector<std::string>>;

  [[nodiscard]] OfUnits of_units(const ShardingPlan&) const;
  [[nodiscard]] const OfUnits& known_of_units(const ShardingPlan&);
  [[nodiscard]] std::int64_t known_saved(const ShardingPlan&, std::int64_t sequences);

  const ModelGraph& model_;
  const Implementation& implementation_;
  std::list<std::pair<ShardingPlan, OfUnits>> of_units_;  // by the plan without its micro-batches and recomputation
  std::map<Saved, std::int64_t> saved_;
};

// "40.1 GiB of saved activations, 12.3 GiB of parameter and optimizer shards": of the moment that needs most, largest
// first.
[[nodiscard]] std::string describe(const MemoryFloor&);

}  // namespace fsdp
