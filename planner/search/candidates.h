// The options of a search: every combination of the choices that the user left open.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/search.h"
#include "planner/search/batches.h"

namespace fsdp {

// The dimensions of the search. A Choice holds the index of the value taken on each.
enum class Axis : std::uint8_t { wrap, reshard, checkpointing, batch, mesh };
inline constexpr int kAxes = static_cast<int>(Axis::mesh) + 1;
using Choice = std::array<int, kAxes>;

struct Option {
  Choice choice{};
  ShardingPlan plan;
  std::string label;
  Batch batch;
  Reshard reshard;            // of every unit, as chosen
  std::string checkpointing;  // the policy, as chosen
  bool naive = false;         // one unit per block, default reshard, no checkpointing, smallest micro-batch, one mesh
};

// Every legal combination; micro-batches ascend fastest. The naive one is among them unless the user has fixed
// otherwise.
[[nodiscard]] std::vector<Option> options(const ModelGraph&, const ClusterSpec&, const SearchOptions&);

// The naive plan within what the user fixed about batch and mesh.
[[nodiscard]] Option naive_option(const ModelGraph&, const ClusterSpec&, const SearchOptions&);

// "wrap, checkpointing and micro-batch; the global batch follows": what was left open.
[[nodiscard]] std::string describe_search(const SearchOptions&);

}  // namespace fsdp
