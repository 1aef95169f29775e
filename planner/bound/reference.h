// What parts of a plan ask of the machine, measured on a few lowered plans: from these every plan of a space is put
// together, a block and a unit at a time, for a bound (space_bound.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/bound/load.h"
#include "planner/search/design.h"

namespace fsdp {

// A space of plans, and what prices them.
struct PricedSpace {
  const Space& space;
  const ModelGraph& local;  // what one rank computes: the space's model, split over the plans' tensor ranks
  const Implementation& implementation;
  const ClusterSpec& cluster;
  const Costs& costs;
};

// The kernels of one micro-batch and what they leave for backward when forward has ended, block by block.
struct ComputeParts {
  struct Part {
    KernelLoad kernels;         // forward, recomputation and backward
    std::int64_t saved = 0;     // bytes when the first backward begins; of the rest with what the loss needs for itself
    std::int64_t backward = 0;  // of the last block: the most that it and the rest hold in its backward
  };
  std::vector<Part> blocks;
  Part rest;  // embedding, head, loss
};
// With the whole plan recomputed by this policy.
[[nodiscard]] ComputeParts compute_parts(const Design&, const std::string& checkpointing, const PricedSpace&);

// What a block's parameters, and those of the rest, cost over one mesh in units of one grouping.
struct ShardingParts {
  struct Part {
    double all_gather = 0, reduce_scatter = 0;          // seconds of one
    double all_reduce = 0;                              // over replicas
    KernelLoad after_gather, before_reduce, each_step;  // on the compute stream: copies, casts, the optimizer
    std::int64_t whole = 0;                             // bytes, gathered
    std::int64_t gradient = 0, sharded_gradient = 0;    // bytes that wait for a later micro-batch: whole, or reduced
  };
  std::vector<Part> blocks;
  Part rest;
  bool possible = false;  // the plans are legal, and leave room for the states and the largest unit
  CollectiveShares held;  // by the collectives above
  // Of the unit that holds the embedding: nothing is computed in a step before it is gathered, and nothing but the
  // optimizer runs after its gradients begin to be reduced. Seconds.
  double first_gather = 0, last_reduction = 0, last_all_reduce = 0;
  std::int64_t last_unit = 0;              // bytes, gathered, of the smallest unit with a part of the last block
  std::int64_t states = 0, gradients = 0;  // bytes of a rank, all the time and when the optimizer runs
};
// The same units of a model of few blocks: its only grouping, and of each block of the whole model one of these.
struct FewUnits {
  PricedSpace space;
  const std::vector<std::size_t>& stands_for;
};
// With `few`, if there is one, collectives and copies are measured there. Of plans that are not possible nothing is.
[[nodiscard]] ShardingParts sharding_parts(std::int64_t replicate, std::size_t grouping, Bytes limit,
                                           const PricedSpace&, const FewUnits* few = nullptr);

}  // namespace fsdp
