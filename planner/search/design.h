// A design: what a joint search decides of a plan, without the recomputation, which follows from the memory limit.
//
//   const Space space = space_of(model, cluster, options);         // what may be chosen, and what the user fixed
//   Design d = first_design(space);
//   ShardingPlan p = plan_of(d, space, "first-12");                // with the first 12 blocks recomputed
//   for (const Knob& knob : knobs()) for (const Design& next : knob.near(d, space)) ...
//
// To add a choice: a field of Design, a line in plan_of and a row of the table in knobs.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/cluster.h"
#include "models/graph.h"
#include "planner/search.h"
#include "planner/search/batches.h"

namespace fsdp {

struct Design {
  std::size_t grouping = 0;              // index into Space::groupings
  Reshard reshard = Reshard::automatic;  // of every unit
  std::int64_t kept = 0;                 // so many of the last units of blocks stay gathered from forward to backward
  bool kept_between = false;             // parameters stay gathered from micro-batch to micro-batch
  bool embedding_once = false;           // units of embeddings are not gathered for backward, which reads no weight
  GradSync grad_sync = GradSync::every;
  Batch batch;
  std::int64_t replicate = 1;
  std::int64_t loss_chunks = 1;
  int forward_prefetch = 0, backward_prefetch = 1;
  int reduce_scatter_buffers = 1;
  bool separate_reduce_scatter = false;
  friend bool operator==(const Design&, const Design&) = default;
};

struct Grouping {
  std::string wrap;  // a policy, as typed
  std::vector<Unit> units;
  bool embedding_apart = false;  // some unit holds embeddings alone, whose weights backward does not read
};

// What the search may choose. A list with one value is fixed.
struct Space {
  const ModelGraph* model = nullptr;
  ShardingPlan base;
  std::string digest;      // the model's
  std::int64_t ranks = 1;  // that see sequences of their own
  std::vector<Grouping> groupings;
  std::vector<Reshard> reshards;
  std::vector<Batch> batches;           // micro-batches ascend
  std::vector<std::int64_t> replicas;   // divisors, ascending
  std::vector<std::int64_t> chunks;     // of the loss, ascending
  bool chunk_head = false;              // the output layer runs with each of them
  std::vector<GradSync> syncs;          // of a step with several micro-batches
  std::vector<int> forward_prefetches;  // units ahead
  std::vector<int> buffers;             // of reduce-scatter inputs
  bool kept_free = false, embedding_free = false, second_communicator_free = false;
  // Ladders of recomputation, each a list of policies that keep less and less: rung 0 is common to all.
  std::vector<std::vector<std::string>> ladders;
};

[[nodiscard]] Space space_of(const ModelGraph&, const ClusterSpec&, const SearchOptions&);

// One unit per block, everything else at its default: where a search starts that knows nothing better.
[[nodiscard]] Design first_design(const Space&);

// The plan of a design with a policy of activation checkpointing. Need not be legal: `check` says.
[[nodiscard]] ShardingPlan plan_of(const Design&, const Space&, const std::string& checkpointing);

// "titan, reshard, last 4 units kept, checkpoint first-12, micro-batch 3 x 2, 4 loss chunks, replicate 1"
[[nodiscard]] std::string label_of(const Design&, const Space&, const std::string& checkpointing);

// One choice of a design, and the designs that differ from it on this choice alone and come next to it. A plain choice
// is one that every emitter can say and every user knows.
struct Knob {
  const char* name;
  bool plain;
  std::vector<Design> (*near)(const Design&, const Space&);
  void (*reset)(Design&, const Space&);  // to the default; null: it has none
};
[[nodiscard]] const std::vector<Knob>& knobs();

}  // namespace fsdp
