// Where every element of a unit lives: FSDP2's per-parameter sharding (fsdp-semantics A1.11).
//
// Parameter p of shape [d0, ...] on W ranks: chunk rows c = ceil(d0 / W); rank r holds rows [r*c, min((r+1)*c, d0)), possibly
// none, stored padded to c rows. S_g = sum of padded shard elements. The all-gather output is [W, S_g], rank-major, each row
// the concatenation of the unit's padded shards in parameter order; the reduce-scatter input has the same layout.
#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

struct ShardedParam {
  std::int32_t param = -1;                   // id in ModelGraph::parameters
  std::int64_t rows = 0, row_elements = 0;   // d0 and the product of the others
  std::int64_t chunk_rows = 0;               // c
  std::int64_t offset = 0;                   // of its padded shard within the unit's shard, in elements
  [[nodiscard]] std::int64_t numel() const { return rows * row_elements; }
  [[nodiscard]] std::int64_t padded_shard() const { return chunk_rows * row_elements; }
  [[nodiscard]] std::int64_t local_row_begin(std::int64_t rank) const { return rank * chunk_rows < rows ? rank * chunk_rows : rows; }
  [[nodiscard]] std::int64_t local_rows(std::int64_t rank) const {
    const std::int64_t end = (rank + 1) * chunk_rows < rows ? (rank + 1) * chunk_rows : rows;
    return end - local_row_begin(rank);
  }
  [[nodiscard]] std::int64_t local_elements(std::int64_t rank) const { return local_rows(rank) * row_elements; }
};

struct UnitLayout {
  std::vector<ShardedParam> params;          // the unit's own parameters, in named_parameters() order
  std::int64_t shards = 1;                   // W (1 under ddp)
  std::int64_t shard_elements = 0;           // S_g, padded, equal on every rank
  std::int64_t numel = 0;                    // N_g
  std::int32_t op_begin = 0, op_end = 0;     // forward range of its modules: pre-forward before op_begin, post-forward after op_end - 1
  bool root = false;
  bool inputs_require_grad = false;          // false: post-backward runs in the final callback
  [[nodiscard]] std::int64_t local_elements(std::int64_t shard_rank) const;   // unpadded: what the optimizer state holds
};

// One per unit of the plan, same order. A unit without parameters has an empty list.
[[nodiscard]] std::vector<UnitLayout> unit_layouts(const ShardingPlan&, const ModelGraph&);

// unit_of[p]: which unit owns parameter p.
[[nodiscard]] std::vector<std::int32_t> unit_of_parameters(const std::vector<UnitLayout>&, const ModelGraph&);

}  // namespace fsdp
