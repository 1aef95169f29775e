// Which plans a search may score: the legal ones, and the least memory that any schedule of one needs. For plans over
// one number of tensor ranks, over which the model is split once.
//
//   Admission admission(model, options, implementation);
//   if (admission.is_legal(plan) && admission.floor(plan) <= limit) ...
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"
#include "planner/search.h"
#include "planner/search/memory_floor.h"

namespace fsdp {

class Admission {
 public:
  // Throws InputError where the model cannot be split as the base plan says.
  Admission(const ModelGraph& whole, const SearchOptions&, const Implementation&);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  [[nodiscard]] const ModelGraph& local() const { return split_ ? *split_ : whole_; }  // what one rank computes

  void check(const ShardingPlan&) const;  // throws InputError: the rule that the plan breaks
  [[nodiscard]] bool is_legal(const ShardingPlan&) const;
  [[nodiscard]] MemoryFloor floor(const ShardingPlan&);

 private:
  const ModelGraph& whole_;
  const std::string digest_;  // of the whole model
  const std::optional<ModelGraph> split_;
  const std::function<void(const ShardingPlan&)>& rule_;
  const Implementation bare_;  // for the floors
  MemoryFloors floors_;        // of what one rank computes
};

}  // namespace fsdp
