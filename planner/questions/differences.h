// In what two plans for the same model, ranks and sequence differ, choice by choice, and the one plan with each of the
// other's choices alone.
//
//   for (const Difference& d : differences(chosen, other, model))
//     d.choice, d.chosen, d.other     // "wrap", "titan", "block:2"
//     score(d.alone)                  // `chosen`, but for this choice
#pragma once

#include <string>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

struct Difference {
  std::string choice, chosen, other;  // its name, and what either plan says of it, in words
  ShardingPlan alone;                 // need not be legal: `check` says
  bool other_training = false;        // it decides what is computed, not only how: the optimizer, dtypes, clipping
};

// In a fixed order; what the seed, names and digests of a plan say does not count. Where units differ, the other's way
// of resharding is a choice of its own only if it is one for all of its units, or its policy's; else it comes with the
// units.
[[nodiscard]] std::vector<Difference> differences(const ShardingPlan& chosen, const ShardingPlan& other,
                                                  const ModelGraph&);

}  // namespace fsdp
