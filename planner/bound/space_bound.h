// The certificate: a lower bound on the step time of every plan of a space that fits.
//
//   const Certificate c = certify(space, limit, implementation, cluster, costs);
//   c.seconds_per_sequence      // no plan of c.plans is faster, under this cost model
//
// The derivation, and what it leaves out: docs/search.md.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "planner/costs.h"
#include "planner/search/design.h"

namespace fsdp {

struct Certificate {
  double seconds_per_sequence = 0;  // of one rank; 0: nothing is known
  double plans = 0;                 // in the space, legal or not; 1e30 and more are possible
  bool any_fits = true;             // false: proven that no plan of the space fits
  std::string kind;                 // of the plans at the bound: "micro-batch 2 x 1, 8 loss chunks, replicate 1"
};

// With `enough`, seconds per sequence: no more than that is proven, and sooner.
[[nodiscard]] Certificate certify(const Space&, Bytes limit, const Implementation&, const ClusterSpec&, const Costs&,
                                  double enough = std::numeric_limits<double>::infinity());

}  // namespace fsdp
