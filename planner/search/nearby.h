// What one plan becomes under another judge, such as the implementation's compiled variant: its own score there, and
// the best plan that lies near it. Costs a small part of a search.
//
//   const Nearby n = search_near(plan, label, model, cluster, compiled_implementation, options, score);
//   n.better ? n.better->plan : n.same->plan
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/cluster.h"
#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"
#include "planner/search.h"
#include "planner/search/design.h"

namespace fsdp {

// The design that plan_of makes this plan's units, batch, mesh and order from, whatever it recomputes; nullopt: the
// space has none.
[[nodiscard]] std::optional<Design> design_of(const ShardingPlan&, const Space&);

struct Nearby {
  std::optional<Candidate> same;    // the plan itself; none: this implementation does not allow it
  std::optional<Candidate> better;  // one near it that fits where it does not, or that is faster
  std::int64_t simulated = 0;
  [[nodiscard]] const Candidate* best() const { return better ? &*better : same ? &*same : nullptr; }
};

inline constexpr std::int64_t kNearbySimulations = 40;

// Recomputation is fitted to the limit anew, and then one choice after the other is changed, as the joint search does,
// for at most options.most_simulations and kNearbySimulations plans. With Effort::uniform only the plan itself.
[[nodiscard]] Nearby search_near(const ShardingPlan&, const std::string& label, const ModelGraph&, const ClusterSpec&,
                                 const Implementation&, const SearchOptions&, const ScoreFunction&);

}  // namespace fsdp
