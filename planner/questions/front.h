// The front of time and memory: the fastest plan at each of several memory limits, and what more memory would buy.
//
//   Front f = front_of({.most = Bytes(90 GiB), .step = Bytes(8 GiB)}, search_at, score);
//   f.points[2].next_gib        // 0.004: one GiB more makes a step of equal size 0.4 % faster, up to point 1's memory
//
// Each limit is a search of its own. What a plan takes does not depend on the limit, so every plan is simulated once;
// and a plan that the search for one limit found counts for all others that it fits in, so that less memory is never
// faster.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "models/units.h"
#include "planner/search.h"

namespace fsdp {

struct FrontPoint {
  Candidate plan;
  double tokens_per_s = 0;
  // The part by which one GiB more makes it faster, on average up to the memory of the point before; empty for the
  // first point.
  std::optional<double> next_gib;
};

struct Front {
  std::vector<FrontPoint> points;  // memory descends, and speed with it
  std::int64_t searches = 0, simulated = 0;
  bool stopped = false;            // the caller ended it: points may be missing, and better ones
  std::optional<PlanResult> none;  // where not even the first limit holds a plan: its search
};

struct FrontOptions {
  Bytes most;  // the first limit
  // From one to the next, at least; a limit that the last plan leaves unused is passed over. The last one is halved,
  // until the front ends within a quarter of it above a limit in which no plan was found.
  Bytes step;
  std::function<bool()> stop;                                    // as SearchOptions::stop; may be empty
  std::function<void(std::int64_t searches, Bytes limit)> told;  // hears of each search; may be empty
};
// A search under this limit, by this score.
using SearchAt = std::function<PlanResult(Bytes limit, const ScoreFunction&)>;

// `score` is that of plans under the first limit. Plans that are tight do not count: their speed is not known.
[[nodiscard]] Front front_of(const FrontOptions&, const SearchAt&, const ScoreFunction& score);

}  // namespace fsdp
