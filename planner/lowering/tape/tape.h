// Stage one of lowering: the computation of one micro-batch and the lifetimes of its tensors. It knows nothing of
// sharding.
//
// Forward ops in order, then for each op in reverse the recomputation of a checkpointed module (when the backward of
// this op is the first that needs it) and its backward. A value is allocated just before the first op that writes it
// and freed just after the last op that touches it, so memory rises and falls as the implementation's `facts` say.
// Under CheckpointPolicy::selective_op the results that the implementation keeps are not recomputed; where parameters
// are frozen, there is no backward below the first trained one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/dtype.h"
#include "models/graph.h"
#include "models/implementation.h"
#include "planner/lowering/tape/recomputed.h"
#include "planner/plan.h"
#include "planner/program.h"

namespace fsdp {

struct TapeValue {
  std::int64_t bytes = 0;
  BufferKind kind{};
  DType dtype{};
  std::int32_t tensor = kNone;
  bool host = false;        // in (pinned) host memory
  bool until_next = false;  // the training loop holds it until the next forward has made another
  bool stays = false;       // held beyond the ops that read it: Tape::of_graph, Region::held
  // Of a late free, which follows the modules that end with its op as they return: the post-forward hooks of those that
  // begin with graph op `scope` or later come first, those of others afterwards.
  std::int32_t scope = kNone;
};

struct TapeArg {
  enum class Kind : std::uint8_t { absent, value, parameter, gradient, loss };
  Kind kind = Kind::absent;
  Access access = Access::read;
  std::int16_t part = kNone;  // one of TapeOp::parts equal parts of the value; kNone: all of it
  std::int32_t id = kNone;    // value index or parameter id
};

struct TapeOp {
  // load_batch, forward, recompute, backward, add_gradient, offload_activation, fetch_activation or update_metrics; of
  // a model whose ops are split over ranks also the collectives among them (all_gather, reduce_scatter, all_reduce),
  // their copies (reorder_tokens) and loss_statistic
  Action action{};
  bool recomputed = false;  // it runs a forward again
  Products products = Products::all;
  bool second_stream = false;
  std::int32_t graph_op = kNone;
  std::int32_t turn = kNone;  // the graph op in whose turn it runs: its own, or one whose products run with others'
  std::int16_t part = kNone;  // Operation::part
  std::int16_t parts = 1;     // of a product in parts: how many
  Slice args, allocs, inner, frees;  // allocs and frees index values; inner: v appears, ~v goes (Step::inner)
  Slice late_allocs;                 // when post-forward hooks after this op have run
  Slice late_frees;                  // when modules that end with this op have returned (TapeValue::scope)
};

struct Tape {
  std::vector<TapeOp> ops;
  std::vector<TapeArg> args;
  std::vector<TapeValue> values;
  std::vector<std::int32_t> allocs, inner, frees, late_allocs, late_frees;
  std::vector<std::int32_t> of_graph;  // values that go when backward has ended
  // Tape ops of graph op i: forward ops(forward_of[i - 1] .. forward_of[i]], the last of them the one named (almost
  // always the only one; none of a product that ran with others'); backward (recomputation first)
  // ops[backward_begin[i] .. backward_end[i]), possibly none.
  // ops[0] is load_batch.
  std::vector<std::uint32_t> forward_of, backward_begin, backward_end;
  // Of an output layer that runs once per part of the loss, behind the forward of all that comes before it: the tape
  // op of the layer's forward, of the loss's, of the loss's backward and of the layer's, and the one behind.
  std::vector<std::array<std::uint32_t, 5>> parts;
  std::int32_t head = kNone;                // that layer's graph op; kNone: there is none
  bool holds_outputs = false;               // values that are held until_next go when the next forward has ended
  std::int32_t metrics = kNone;             // the tape op behind backward that updates metrics; kNone: there is none
  std::vector<Region> regions;              // of the checkpointed modules, in their order
  std::vector<std::int32_t> recomputed_at;  // by graph op: the region whose recomputation its backward begins with
  // By graph op: it is written out as several operators, of which the first in backward makes its weight's gradient.
  std::vector<char> weight_first;
  std::vector<std::int32_t> region_of;  // by graph op: the last region that it lies in; kNone: none
  // Does the op run again before its backward?
  [[nodiscard]] bool runs_again(std::int32_t graph_op) const {
    return region_of[static_cast<std::size_t>(graph_op)] >= 0;
  }
  [[nodiscard]] std::span<const TapeArg> args_of(const TapeOp& o) const {
    return {args.data() + o.args.begin, o.args.count};
  }
};

[[nodiscard]] Tape make_tape(const ModelGraph&, const Implementation&, const Workload&, DType compute_dtype,
                             const std::vector<std::int32_t>& checkpointed,  // modules
                             CheckpointPolicy = CheckpointPolicy::full,
                             std::int64_t parts = 1,  // in which the output layer and the loss run
                             // those of `checkpointed` whose inputs wait in host memory
                             const std::vector<std::int32_t>& offload_activations = {}, const Reentrant& = {});

}  // namespace fsdp
