// What one rank does: `lower` makes the Program, the simulator times it and the executor runs it.
//
// A Step is a list of operations in host issue order. Each names its stream, the operations of other streams it waits
// for (an event is "that operation has finished"), the buffers it reads and writes, and the buffers that the host
// allocates just before and frees just after issuing it. Operations on one stream run in order; collectives on one
// communicator run in issue order. Everything is stored flat: `ops[i]` points into `args`, `waits`, `allocs`, `frees`
// of the same Step. Where an index may be absent it is kNone (models/graph.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/dtype.h"
#include "planner/layout.h"

namespace fsdp {

// D C G R A of docs/fsdp-order.md; tensor: of the communicator over the mesh's dimension of that name, and the second
// stream of products that run in parts (Products).
enum class Stream : std::uint8_t { compute, copy_in, all_gather, reduce_scatter, all_reduce, tensor };
inline constexpr int kStreams = static_cast<int>(Stream::tensor) + 1;

// shard_reduce: the same ranks as `shard`, for reduce-scatters that may overlap all-gathers. reshard: groups of n
// consecutive ranks of a shard group (integer reshard after forward).
// own_shard, own_replicate: of units with a mesh of their own (Unit::shard).
enum class Communicator : std::uint8_t {
  none,
  shard,
  replicate,
  world,
  shard_reduce,
  reshard,
  tensor,
  own_shard,
  own_replicate
};
inline constexpr int kCommunicators = static_cast<int>(Communicator::own_replicate) + 1;

// Each row: what the action belongs to, then its args in order ("[k]" = position; an absent one has buffer kNone).
// P = params of the unit in layout order.
// clang-format off
enum class Action : std::uint8_t {
  init_parameters,      // unit        writes: shard
  init_optimizer,       // unit        writes: state1, state2 (zeros; state2 absent for sgd)
  load_batch,           // micro_batch writes: ids, targets; loss, if micro_batch is 0: resets the loss accumulator
  forward,              // graph_op    as recompute
  recompute,            // graph_op    reads: inputs..., params... (unsharded); writes: outputs..., extra; scratch
                        //             (order: inputs, params, outputs, extra, scratch)
  backward,             // graph_op    reads: grad of each output; each input and each output, absent if not saved;
                        //             params..., extra; scratch; then writes: grad of each input, grad of each param,
                        //             absent if not needed
                        //             (order: grad_outputs, inputs, outputs, params, extra, scratch, grad_inputs,
                        //             grad_params)
  add_gradient,         // graph_op    adds args[0] into args[1]: a second use of a tensor or parameter (`tensor` or
                        //             `param` of the buffers)
  cast_shard,           // unit        reads: shard; writes: shard in param_dtype, or a weight of it in 8 bits
  gather_copy_in,       // unit        reads: (cast) shard, or its pieces; writes: own slot of the gather buffer
  all_gather,           // unit        reads + writes: gather buffer, in place; fsdp1: writes the unsharded flat
                        //             parameter, reads the (cast) shard
                        // graph_op    reads: this rank's part; writes: all ranks' parts, one after the other
  gather_copy_out,      // unit        reads: gather buffer (W = 1: the (cast) shard); writes: P unsharded parameters
  accumulate_gradient,  // unit        no-sync; args: P pairs (gradient, accumulator): converts or adds gradient into
                        //             accumulator; an absent gradient: none
  scatter_copy_in,      // unit        reads: P gradients or accumulators (absent: not trained); writes: reduce-scatter
                        //             input [W, S_g], and before it, where it narrows, the same in the gradients' type;
                        //             fsdp1: writes the flat gradient, and zeros for what lies between the gradients
  reduce_scatter,       // unit        reads: input; writes: output [S_g]; average over the mesh as PyTorch does (W = 1:
                        //             a copy)
                        // graph_op    reads: all parts of a sum; writes: this rank's part of it
  all_reduce,           // unit        in place on the reduce output, average over `replicate` (ddp: over `replicate`,
                        //             on the gradient buffer); over `tensor`: reads a gradient, writes its sum
                        // graph_op    in place, over `tensor`, sum or maximum: what a loss needs of each token
  finish_gradient,      // unit        reads: reduce output; writes: sharded gradient (cast) or adds into it
                        //             (Access::accumulate)
  clip_local_norm,      // -           reads: all sharded gradients; writes: norm accumulator (1 element of fp64; sum of
                        //             powers, or the maximum)
  clip_reduce,          // -           all-reduce (sum, or maximum) of the norm over `shard`, `own_shard` or `tensor`
  clip_scale,           // -           reads: norm, or two of parts of them: adds the second to the first; scales all
                        //             sharded gradients by min(1, clip / (norm + 1e-6))
  optimizer,            // unit        reads: sharded gradient; reads + writes: shard, state1, state2
  reduce_loss,          // -           all-reduce (average over `world`) of the loss accumulator (1 element of fp64)
  zero_gradients,       // -           host only: frees the sharded gradients of the step before
  read_loss,            // -           host waits for args[0] (the loss)
  host_wait,            // -           host only: the host goes on when `waits` have finished, and every operation that
                        //             ended then
  keep_shard,           // unit        reads: this rank's part, over the small group, of an unsharded parameter; writes:
                        //             a copy of it
  divide_gradient,      // unit        in place on the reduce input or output (UnitLayout::scale says by what); with two
                        //             buffers: from one to the other
  shard_to_device,      // unit        reads: one parameter of the shard in host memory; writes: its copy on the device
  gradient_to_host,     // unit        reads: one parameter of the reduce output (cast); writes: sharded gradient in
                        //             host memory
  cast_gradient,        // unit        reads: flat gradient; writes: the same in reduce_dtype, padded to W equal parts
  reorder_shards,       // unit        reads: one parameter (or gradient) as W slabs of its sharded dimension; writes:
                        //             it in its own order (or the other way round)
  reorder_tokens,       // graph_op    reads: parts of sequences (or columns) rank by rank; writes: them in their own
                        //             order (or the other way round, or this rank's part of them)
  slice_gradient,       // unit        reads: gradient of a whole parameter; writes: that of this rank's part
  largest_value,        // unit        reads: one weight of the shard; writes: the largest absolute value in it, for its
                        //             scale to 8 bits
                        // -           the same of every weight gathered in 8 bits (reads: shards)
  reduce_largest,       // unit, -     all-reduce (maximum) of those values over `shard`
  loss_statistic,       // graph_op    of a loss whose logits are split, behind each of its all-reduces: args: logits,
                        //             targets (both absent but behind the second), what is kept for backward, the
                        //             number of each token that is reduced, and behind the third the loss
  offload_activation,   // graph_op    reads: what a checkpointed module was called with; writes: a copy in host memory
  fetch_activation,     // graph_op    reads: that copy; writes: it on the device again
  offload_state,        // unit        reads: a state of the optimizer; writes: its place in host memory
  fetch_state,          // unit        reads: that place; writes: the state on the device again
  update_metrics,       // graph_op    reads: logits, targets; what the training loop computes of them behind backward
  // Of products in parts, one per tensor rank: asynchronous tensor parallelism. A rank's workspace is memory that the
  // others read (PyTorch's symmetric memory), no buffer. Part k is of the k-th rank behind this one.
  tensor_barrier,       // graph_op    the tensor ranks wait for each other, and both streams of this one
  share_part,           // graph_op    reads: this rank's rows; writes: its workspace. A barrier before, one behind
  pull_part,            // graph_op    writes: a part, read from the workspace of its rank
  exchange_part,        // graph_op    the same of sums that the rank made for this one. A barrier before, one behind
  sum_parts,            // graph_op    reads: all parts, each a term of this rank's rows; writes: their sum
};
// clang-format on
inline constexpr int kActions = static_cast<int>(Action::sum_parts) + 1;
[[nodiscard]] std::string_view name(Action);
[[nodiscard]] std::string_view name(Stream);
[[nodiscard]] constexpr bool is_kernel(Action a) {  // of an op of the graph
  return a == Action::forward || a == Action::recompute || a == Action::backward;
}
[[nodiscard]] constexpr bool is_collective(Action a) {
  return a == Action::all_gather || a == Action::reduce_scatter || a == Action::all_reduce ||
         a == Action::clip_reduce || a == Action::reduce_loss || a == Action::reduce_largest;
}

enum class BufferKind : std::uint8_t {
  parameter_shard,
  optimizer_state,
  sharded_gradient,  // live from step to step
  cast_shard,
  gather,
  unsharded_parameter,
  gradient,
  gradient_accumulator,
  reduce_input,
  reduce_output,
  activation,
  saved,
  activation_gradient,
  scratch,
  batch,
  scalar,
  workspace,
  kept_shard,  // integer reshard: a unit's parameters over the small group
};
inline constexpr int kBufferKinds = static_cast<int>(BufferKind::kept_shard) + 1;
[[nodiscard]] std::string_view name(BufferKind);

struct Buffer {
  std::int64_t bytes = 0;    // asked for
  std::int64_t offset = -1;  // in the arena of its memory; -1 until assign_arena
  BufferKind kind{};
  Stream pool = Stream::compute;  // the stream whose pool it comes from
  DType dtype = DType::f32;
  bool host = false;  // pinned host memory: not in the device's total
  // Bit s: PyTorch's record_stream marks stream s when the buffer is freed, and the block can be used again once
  // everything issued on s before the free has finished (stream-time free). 0: at once (host-time free). The bit of
  // `pool` itself: marked for the stream that NCCL's backend ran its collectives on beside this one (fsdp1@1.13).
  std::uint8_t recorded_streams = 0;
  std::int32_t unit = kNone, param = kNone, tensor = kNone;  // what it holds, where that applies
  std::int16_t micro_batch = kNone;
  friend bool operator==(const Buffer&, const Buffer&) = default;
};

enum class Access : std::uint8_t { read, write, accumulate };  // accumulate: read and write
struct Arg {
  std::int32_t buffer = kNone;
  Access access = Access::read;
  std::int64_t offset = 0, bytes = -1;  // part of the buffer (ddp: a parameter within its unit); bytes -1: all of it
  friend bool operator==(const Arg&, const Arg&) = default;
};

// What of an op an operation computes, where a linear layer's products do not run together or a recomputation ends in
// the op.
enum class Products : std::uint8_t {
  all,
  rows,    // forward, or the gradient of the input: the rows of one tensor rank
  weight,  // backward: the gradient of the weight alone
  saved,   // of a forward that runs again: what comes before its result, which nothing needs
};

struct Slice {
  std::uint32_t begin = 0, count = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};
struct Operation {
  Action action{};
  Stream stream = Stream::compute;
  Communicator comm = Communicator::none;
  bool host_only = false;  // runs on no stream (zero_gradients, host_wait, an optimizer of offloaded states)
  std::int16_t micro_batch = 0;
  std::int16_t part = kNone;  // of the output layer and the loss, where they run a part of the tokens at a time; of a
                              // product in parts and what moves them
  Products products = Products::all;
  std::int32_t unit = kNone, graph_op = kNone;
  Slice args, waits, allocs, inner, frees;
  friend bool operator==(const Operation&, const Operation&) = default;
};

struct Step {
  std::vector<Operation> ops;  // host issue order
  std::vector<Arg> args;
  // Operations of this Step, by index, that must have finished; -1 - i: operation i of the step before, for host_wait
  // and for gathers that wait for the optimizer alone.
  std::vector<std::int32_t> waits;
  // Buffers, by index, allocated just before and freed just after the host issues the operation.
  std::vector<std::int32_t> allocs, frees;
  // Changes of memory while the host issues an operation of several kernels, in order, between allocs and frees: b >=
  // 0: buffer b is allocated; ~b: freed. PyTorch's temporaries are allocated and freed here. Empty for Steps that our
  // own executor runs.
  std::vector<std::int32_t> inner;
  [[nodiscard]] std::span<const Arg> args_of(const Operation& o) const {
    return {args.data() + o.args.begin, o.args.count};
  }
  [[nodiscard]] std::span<const std::int32_t> waits_of(const Operation& o) const {
    return {waits.data() + o.waits.begin, o.waits.count};
  }
  [[nodiscard]] std::span<const std::int32_t> allocs_of(const Operation& o) const {
    return {allocs.data() + o.allocs.begin, o.allocs.count};
  }
  [[nodiscard]] std::span<const std::int32_t> inner_of(const Operation& o) const {
    return {inner.data() + o.inner.begin, o.inner.count};
  }
  [[nodiscard]] std::span<const std::int32_t> frees_of(const Operation& o) const {
    return {frees.data() + o.frees.begin, o.frees.count};
  }
  friend bool operator==(const Step&, const Step&) = default;
};

// Streams that a step has: all, but that of `tensor` only where something runs on it.
[[nodiscard]] int streams_of(const Step&);

// Calls allocate(buffer) and release(buffer) in the order in which memory changes around an operation.
template <class Allocate, class Release>
void memory_events(const Step& step, const Operation& op, const Allocate& allocate, const Release& release) {
  for (const std::int32_t b : step.allocs_of(op)) allocate(b);
  for (const std::int32_t b : step.inner_of(op)) {
    if (b >= 0) allocate(b);
    else release(~b);
  }
  for (const std::int32_t b : step.frees_of(op)) release(b);
}

// Steps follow one another; the host synchronises at read_loss and host_wait only. Streams carry over: the first
// operation of a stream in a Step runs after that stream's last one in the Step before, and the compute stream's first
// operation of a Step runs after everything in the Step before (the optimizer has waited for all).
struct Program {
  std::string model_digest, plan_digest, implementation;
  Dialect dialect{};
  std::int64_t rank = 0;  // the role this was lowered for
  std::vector<UnitLayout> layouts;
  std::vector<Buffer> buffers;  // of all three steps
  Step init, first_step, steady_step;
  std::int64_t arena_bytes = 0, host_arena_bytes = 0;  // after assign_arena
  friend bool operator==(const Program&, const Program&) = default;
};

// "forward model.layers.3.mlp.gate_proj mb 0", "all_gather unit 4 (model.layers.3)": for errors, traces, `show step`.
[[nodiscard]] std::string describe(const Operation&, const Program&, const ShardingPlan&, const ModelGraph&);

// Fills Buffer::offset and the sizes of the arenas: one region per pool, and a separate one for host memory. Buffers
// with overlapping lifetimes (over init, first step and any number of steady steps) never share bytes; a block with
// recorded_streams is taken for as long as it may wait for them (planner/program/stream_frees.h). Offsets are multiples
// of 64 bytes.
void assign_arena(Program&);

}  // namespace fsdp
