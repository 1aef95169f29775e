// The place of every element of a unit: FSDP2's per-parameter sharding (docs/fsdp-order.md A1.11).
//
// Parameter p of shape [d0, ...] on W ranks: chunk rows c = ceil(d0 / W); rank r holds rows [r*c, min((r+1)*c, d0)),
// possibly none, stored padded to c rows. S_g = sum of padded shard elements. The all-gather output is [W, S_g],
// rank-major; each row is the concatenation of the unit's padded shards in parameter order. The reduce-scatter input
// has the same layout, without the parameters that are not trained. A parameter sharded on a dimension d > 0 (which W
// must divide) is cut into W equal slabs along it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"

namespace fsdp {

struct ShardedParam {
  std::int32_t param = kNone;               // id in ModelGraph::parameters
  std::int64_t rows = 0, row_elements = 0;  // size of the sharded dimension; the other sizes, multiplied
  std::int64_t chunk_rows = 0;              // c
  std::int64_t offset = 0;                  // of its padded shard within the unit's shard, in elements
  std::int64_t dim = 0;                     // the sharded dimension
  bool float8 = false;                      // gathered in 8 bits
  DType kept = DType::f32;                  // what its shard is kept in
  bool trainable = true;  // trained, and a gradient reaches it; PyTorch leaves out the others as it does frozen ones
  [[nodiscard]] std::int64_t numel() const { return rows * row_elements; }
  [[nodiscard]] std::int64_t padded_shard() const { return chunk_rows * row_elements; }
  [[nodiscard]] std::int64_t local_row_begin(std::int64_t rank) const {
    return rank * chunk_rows < rows ? rank * chunk_rows : rows;
  }
  [[nodiscard]] std::int64_t gathered_element(DType compute) const { return float8 ? 1 : size_of(compute); }  // bytes
  [[nodiscard]] std::int64_t local_rows(std::int64_t rank) const {
    const std::int64_t end = (rank + 1) * chunk_rows < rows ? (rank + 1) * chunk_rows : rows;
    return end - local_row_begin(rank);
  }
  [[nodiscard]] std::int64_t local_elements(std::int64_t rank) const { return local_rows(rank) * row_elements; }
  friend bool operator==(const ShardedParam&, const ShardedParam&) = default;
};

// How PyTorch averages a unit's gradients over W shards and R replicas (docs/fsdp-order.md A1.8). By default NCCL does
// it. A reduction that could overflow (fp16) divides by about the root of the factor before and by the rest after; a
// forced sum divides after.
enum class ReduceOp : std::uint8_t { average, sum, scaled_sum };
struct GradientScale {
  ReduceOp reduce_scatter = ReduceOp::average, all_reduce = ReduceOp::average;
  double multiply = 1;  // factor of each rank's part of a scaled sum
  // Action::divide_gradient on the reduce-scatter's input, and on the reduced output.
  double divide_before = 1, divide_after = 1;
  double divide_copy = 1;  // W = 1, where there is no reduce-scatter: while its input is copied
  friend bool operator==(const GradientScale&, const GradientScale&) = default;
};
[[nodiscard]] GradientScale gradient_scale(std::int64_t shards, std::int64_t replicas, DType reduce_dtype,
                                           std::optional<double> divide_factor, bool force_sum);

// One forward of a unit within a pass: ops [op_begin, op_end), hooks before the first and after the last. A module
// whose ops form several groups, with other modules' ops between them, has one use per group (not under ddp; units of
// one module).
struct UnitUse {
  std::int32_t op_begin = 0, op_end = 0;
  bool inputs_require_grad = false, outputs_require_grad = false;  // as below, of this use
  friend bool operator==(const UnitUse&, const UnitUse&) = default;
};

struct UnitLayout {
  std::vector<ShardedParam> params;  // the unit's own parameters, in named_parameters() order
  std::int64_t shards = 1;           // W (1 under ddp)
  std::int64_t replicas = 1;         // R: of every shard
  bool own_mesh = false;             // W and R are not those of the plan's mesh
  std::int32_t group_of = kNone;     // the unit whose hooks gather and reduce it, and whose switches hold for it
  std::int64_t shard_elements = 0;   // S_g, padded, equal on every rank
  std::int64_t reduce_elements = 0;  // of S_g, those of trained parameters: what reduce-scatter leaves on each rank
  std::int64_t numel = 0;            // N_g
  // Forward range of its modules: pre-forward before op_begin, post-forward after op_end - 1.
  std::int32_t op_begin = 0, op_end = 0;
  std::int32_t root_of = kNone;  // the outermost unit around it: itself, if it is a root
  bool root = false;
  bool inputs_require_grad = false;   // false: post-backward runs in the final callback
  bool outputs_require_grad = false;  // false: pre-backward never runs (nothing inside or before it is trained)
  std::int64_t flat_elements = 0;     // fsdp1: of the flat parameter, which is sharded as one (layout/flat.h); else 0
  bool flat_aligned = false;          // fsdp1 with use_orig_params
  std::vector<UnitUse> uses;          // in forward order; one for almost every unit, none if it computes nothing
  GradientScale scale;
  DType param_dtype = DType::bf16, reduce_dtype = DType::f32;  // the unit's own, or the plan's
  // Of a rank: its place in the unit's shard group, whose ranks follow one another but for those of tensor groups.
  [[nodiscard]] std::int64_t shard_index(const ShardingPlan& plan, std::int64_t rank) const {
    return rank / plan.tensor() % shards;
  }
  [[nodiscard]] std::int64_t local_elements(std::int64_t shard_rank) const;          // unpadded
  [[nodiscard]] std::int64_t local_trained_elements(std::int64_t shard_rank) const;  // what the optimizer state holds
  [[nodiscard]] std::int64_t float8_elements() const;                                // of S_g, those gathered in 8 bits
  [[nodiscard]] std::int64_t gathered_bytes() const;                                 // what each rank contributes
  // Of a rank's shard: all of it, and what lies before parameter i.
  [[nodiscard]] std::int64_t shard_bytes() const { return shard_begin(params.size()); }
  [[nodiscard]] std::int64_t shard_begin(std::size_t i) const;
  // Elements of S_g that gathering casts to param_dtype.
  [[nodiscard]] std::int64_t cast_elements() const;
  [[nodiscard]] bool trained() const { return reduce_elements > 0; }  // some parameter gets a gradient
  friend bool operator==(const UnitLayout&, const UnitLayout&) = default;
};

// One per unit of the plan, same order. A unit without parameters has an empty list. Throws InputError({where, ...})
// for a parameter that no unit holds, and for a sharded dimension that the ranks do not divide.
[[nodiscard]] std::vector<UnitLayout> unit_layouts(const ShardingPlan&, const PlanIds&, const ModelGraph&,
                                                   std::string_view where = "plan");
// The same of a plan whose names are not resolved yet.
[[nodiscard]] std::vector<UnitLayout> unit_layouts(const ShardingPlan&, const ModelGraph&);

// The unit whose switches hold for unit u: itself, or the one that it is a further group of.
[[nodiscard]] inline const Unit& switches_of(const ShardingPlan& plan, const UnitLayout& layout, std::int32_t u) {
  return plan.units[static_cast<std::size_t>(layout.group_of >= 0 ? layout.group_of : u)];
}

// A parameter that is held whole (ignored by the plan, or alone in a benchmark), as the one parameter of an unsharded
// unit. `id`: in ModelGraph::parameters.
[[nodiscard]] UnitLayout whole_parameter(std::int32_t id, const Parameter&);

// unit_of[p]: the unit that owns parameter p; kNone: the plan ignores it.
[[nodiscard]] std::vector<std::int32_t> unit_of_parameters(const std::vector<UnitLayout>&, const ModelGraph&);

}  // namespace fsdp
