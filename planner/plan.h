// A sharding plan: everything that decides the order of work, the memory and the result of a training step, and nothing
// else.
//
//   ShardingPlan plan = parse_plan(text, "plan.json");   // or naive_plan (plan/naive_plan.h), or a search's answer
//   check(plan, model, "plan.json");                     // throws InputError with the first rule that is broken
//   to_json_text(plan)                                   // parse_plan of it == plan
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/dtype.h"
#include "models/graph.h"
#include "planner/optimizer.h"

namespace fsdp {

// The mesh is an ordered list of named dimensions: "replicate", "shard" and "tensor", in that order. Ranks are
// row-major: rank = (replicate_index * shard_size + shard_index) * tensor_size + tensor_index, so that a tensor group
// is contiguous, and a shard group where there is no tensor dimension.
struct MeshDim {
  std::string name;
  std::int64_t size = 1;
  friend bool operator==(const MeshDim&, const MeshDim&) = default;
};

// What happens to a unit's gathered parameters after its forward: over how many ranks they are sharded until backward.
struct Reshard {
  std::int64_t ranks = -1;
  static const Reshard automatic;  // -1: yes, but no for the root
  static const Reshard yes;        // 0: over the whole shard dimension again; nothing is kept
  static const Reshard
      no;  // 1: kept whole
           // n > 1: over groups of n consecutive ranks (fsdp2's integer); n must divide W; n = W is yes
  friend bool operator==(const Reshard&, const Reshard&) = default;
  friend auto operator<=>(const Reshard&, const Reshard&) = default;
};
inline constexpr Reshard Reshard::automatic{-1};
inline constexpr Reshard Reshard::yes{0};
inline constexpr Reshard Reshard::no{1};

enum class Dialect : std::uint8_t { fsdp2, fsdp1, ddp };
inline constexpr int kDialects = static_cast<int>(Dialect::ddp) + 1;
enum class GradSync : std::uint8_t {
  every,                // reduce after every micro-batch
  last,                 // only after the last (no_sync before)
  reduce_scatter_only,  // reduce-scatter every micro-batch, all-reduce over `replicate` after the last
};
inline constexpr int kGradSyncs = static_cast<int>(GradSync::reduce_scatter_only) + 1;

// One call of fully_shard: its modules' parameters that no inner unit has claimed share one all-gather and one
// reduce-scatter. Everything below `reshard_after_forward` is one of fsdp2's run-time switches, at PyTorch's default.
struct Unit {
  std::vector<std::string> modules;  // names; {""} is the root
  Reshard reshard_after_forward = Reshard::automatic;
  bool reshard_after_backward = true;  // false: parameters stay whole for the next micro-batch (not past the last: the
                                       // optimizer changes them)
  bool unshard_in_backward = true;     // false: backward does not need this unit's weights (an embedding)
  std::optional<GradSync> grad_sync = {};             // instead of the plan's
  std::optional<double> gradient_divide_factor = {};  // instead of the number of ranks
  // Explicit prefetch lists instead of the plan's counts: units, each named by its first module, in order. An empty
  // list: none (forward), PyTorch's default (backward).
  std::vector<std::string> forward_prefetch = {}, backward_prefetch = {};
  // A MixedPrecisionPolicy of its own: dtypes instead of the plan's; that of what its modules return, if they do not
  // return what they compute; false: they are called with what the modules before have made, in their dtype.
  std::optional<DType> param_dtype = {}, reduce_dtype = {}, output_dtype = {};
  bool cast_forward_inputs = true;
  // fsdp2: a mesh of the unit's own. Its parameters are sharded over groups of so many consecutive ranks (of those that
  // see sequences of their own) and replicated over these groups; 0: as the plan's mesh says. All units that have one
  // have the same.
  std::int64_t shard = 0;
  // With `shard`: not a call of fully_shard, but a second group of parameters of that unit's call (shard_placement_fn),
  // named by its first module. It has that unit's hooks and switches, and gathers and reductions of its own.
  std::optional<std::string> group_of = {};
  friend bool operator==(const Unit&, const Unit&) = default;
};

// Are its modules weights of peft's adapters, as peft names them?
[[nodiscard]] bool of_adapters(const Unit&);

// How the modules in `checkpointed` are recomputed.
enum class CheckpointPolicy : std::uint8_t {
  full,          // everything inside is recomputed
  selective_op,  // torchtitan's policy: results of attention and of every second matmul are kept
};
inline constexpr int kCheckpointPolicies = static_cast<int>(CheckpointPolicy::selective_op) + 1;

// A PyTorch release whose behaviour a dialect follows where releases differ; {0, 0} is the newest one known here.
struct TorchVersion {
  int major = 0, minor = 0;
  [[nodiscard]] bool before(int other_major, int other_minor) const {  // false for the newest
    return major != 0 && (major != other_major ? major < other_major : minor < other_minor);
  }
  friend bool operator==(const TorchVersion&, const TorchVersion&) = default;
};

// How a module's parameters and what it computes are split over the mesh's `tensor` dimension, as DTensor's parallel
// styles of the same names do (torchtitan's plan for Llama).
enum class TensorStyle : std::uint8_t {
  colwise,   // ColwiseParallel: by output features; reads whole sequences
  rowwise,   // RowwiseParallel: by input features (an embedding: by rows); its sums are scattered over the sequence
  sequence,  // SequenceParallel: every rank holds the parameters and sees its part of each sequence (or of the heads)
};
inline constexpr int kTensorStyles = static_cast<int>(TensorStyle::sequence) + 1;
struct ModuleStyle {
  std::string module;  // a name; a part of it may be "*": "model.layers.*.mlp.up_proj"
  TensorStyle style{};
  friend bool operator==(const ModuleStyle&, const ModuleStyle&) = default;
};
struct TensorPlan {
  std::vector<ModuleStyle> modules;  // every module that holds parameters, in one way
  bool loss_parallel = true;         // the loss of logits that stay split; false: they are gathered first
  friend bool operator==(const TensorPlan&, const TensorPlan&) = default;
};

// Linear layers that multiply in 8 bits, as torchao's float8 training does under torchtitan's filter: those whose sides
// are multiples of 16, without the output layer. mxfp8 has that, too, and multiples of 32, as torchtitan's converter
// does without a list of names. In llm-foundry TransformerEngine has all but the output layer, or none.
struct Float8Plan {
  Float8Recipe recipe = Float8Recipe::none;
  bool all_gather = false;          // tensorwise: weights are cast before they are gathered, and gathered in 8 bits
  bool precomputed_scales = false;  // with all_gather: the scales of all weights after the optimizer, in one all-reduce
  friend bool operator==(const Float8Plan&, const Float8Plan&) = default;
};

// What the training loop does beside calling the model, by methods of fully_shard's modules. Each is off by default.
struct LoopPlan {
  bool unshard_async = false;        // every gather has a handle, and is copied in on the compute stream
                                     // (_set_unshard_async_op)
  bool post_optim_event = false;     // a step's gathers wait for the optimizer alone (set_post_optim_event)
  bool last_backward = false;        // set_is_last_backward(false) but in the last micro-batch: the others end without
                                     // waiting for their reductions
  int forwards = 1;                  // micro-batches whose forwards run before one backward of the sum of their losses
  bool loss_in_model = false;        // the model is given its targets and returns the loss, as transformers' Trainer
                                     // has it: the root ends behind the loss. Of every dialect
  int host_threads = 0;              // of each rank, for what is offloaded (OMP_NUM_THREADS); 0: as its launcher leaves
                                     // it, which torchrun sets to one where it starts several ranks. Of every dialect
  bool chunk_head = false;           // the output layer, the loss and their backward run once per part of the loss
                                     // (loss_chunks), between forward and backward of the rest
  std::vector<std::string> unshard;  // units, by their first module: unshard(async_op=True) before each forward
  std::vector<std::string> reshard;  // reshard() before each backward (of the rest, with chunk_head)
  friend bool operator==(const LoopPlan&, const LoopPlan&) = default;
};

struct ShardDim {  // of one parameter: the dimension that is split (shard_placement_fn); 0 if not listed
  std::string parameter;
  std::int64_t dim = 0;
  friend bool operator==(const ShardDim&, const ShardDim&) = default;
};

struct ShardingPlan {
  Dialect dialect = Dialect::fsdp2;
  TorchVersion torch;                    // written "fsdp2@2.11"
  std::string model_name, model_digest;  // the model it was made for; another is refused
  std::string wrap;                      // the policy it came from, as typed ("block", "block:2"); for people only
  // [{"replicate", R}, {"shard", W}, {"tensor", T}]; a dimension of size 1 may be left out
  std::vector<MeshDim> mesh;
  std::vector<Unit> units;  // inner before outer, execution order otherwise; the last one is the root {""}, or the
                            // outermost ones are roots (share_comm_context); two {""} with trained_outermost
  std::vector<std::string> checkpointed;    // modules whose forward is recomputed in backward (disjoint subtrees)
  std::vector<std::int64_t> micro_batches;  // sequences per rank of each micro-batch of one step
  std::int64_t seq_len = 0;
  GradSync grad_sync = GradSync::every;
  int forward_prefetch = 0;         // explicit: this many units ahead; 0: implicit only
  int backward_prefetch = 1;        // units ahead; 1 is FSDP2's default and FSDP1's BACKWARD_PRE, 0: none
  DType param_dtype = DType::bf16;  // compute and all-gather
  DType reduce_dtype = DType::f32;  // reduce-scatter and all-reduce
  DType master_dtype = DType::f32;  // shards, sharded gradients, optimizer states
  // Beside frozen parameters: those of the trained ones, if that is another dtype (peft's adapters in fp32 beside
  // weights in bf16). Of none that are frozen.
  std::optional<DType> trained_dtype = {};
  Optimizer optimizer;
  std::optional<double> clip_norm;  // bound on the norm over all gradients
  std::uint64_t seed = 0;           // initial weights and synthetic data

  // Less common choices. Each is written to plan.json only where it differs from the default here.
  double clip_norm_type = 2;  // p of the p-norm that clip_norm bounds, or infinity: the largest absolute value
  CheckpointPolicy checkpoint_policy = CheckpointPolicy::full;
  std::int64_t loss_chunks = 1;  // parts in which the loss is computed
  bool offload = false;          // shards, sharded gradients and optimizer states live in (pinned) host memory
  // Optimizer states alone wait in (pinned) host memory from step to step: they come to the device for the optimizer,
  // all at once, and the host waits until they are back.
  bool offload_optimizer = false;
  // Those of `checkpointed` whose inputs wait for the recomputation in (pinned) host memory (PyTorch's offload_wrapper
  // around the checkpointed module).
  std::vector<std::string> offload_activations;
  std::vector<std::string> ignored;  // modules or parameters that are neither sharded nor reduced
  std::vector<ShardDim> shard_dims;  // fsdp2
  TensorPlan tensor_plan;            // fsdp2, of a mesh with a tensor dimension
  Float8Plan float8;                 // fsdp2; delayed: fsdp1, too
  LoopPlan loop;                     // fsdp2
  int reduce_scatter_buffers =
      1;  // fsdp2: reduce-scatter inputs alive at once before compute waits (set_reduce_scatter_max_input_buffers)
  bool separate_reduce_scatter =
      false;                         // fsdp2: a second communicator, so that all-gather and reduce-scatter can overlap
  bool force_sum_reduction = false;  // fsdp2: sum and divide afterwards instead of NCCL's average
  bool share_comm_context = false;   // fsdp2: no unit is the whole model, and those that no other holds are roots,
                                     // which share streams and what waits on them (share_comm_ctx)
  bool backward_post = false;  // fsdp1: BACKWARD_POST, prefetch after the gradients are there instead of before (with
                               // backward_prefetch 1)
  bool limit_all_gathers = true;  // fsdp1: the host waits before it gathers a third unit
  bool use_orig_params = true;    // fsdp1: parameters aligned to 16 bytes inside the flat one
  // fsdp1: two units of the whole model, one inside the other. The last one, the root, holds every trained parameter,
  // wherever it is, and nothing else; the frozen ones that no other unit holds are the inner one's.
  bool trained_outermost = false;
  // fsdp1: torch.utils.checkpoint's use_reentrant=True around the units, as transformers' gradient checkpointing before
  // 5.0 has it: a unit in a module that runs again is gathered for that, freed, and gathered again for its backward.
  bool reentrant = false;

  [[nodiscard]] std::int64_t dim(std::string_view name) const;  // size of a mesh dimension; 1 if absent
  [[nodiscard]] std::int64_t shard() const { return dim("shard"); }
  [[nodiscard]] std::int64_t replicate() const { return dim("replicate"); }
  [[nodiscard]] std::int64_t tensor() const { return dim("tensor"); }
  [[nodiscard]] std::int64_t ranks() const;
  [[nodiscard]] std::int64_t data_ranks() const { return ranks() / tensor(); }  // that see sequences of their own
  [[nodiscard]] std::int64_t shard_index(std::int64_t rank) const { return rank / tensor() % shard(); }
  [[nodiscard]] std::int64_t own_shard() const;  // of the units with a mesh of their own; 0: there are none
  // Units of their own modules: those before the last one, where that takes its parameters from all modules.
  [[nodiscard]] std::size_t units_of_modules() const { return units.size() - (trained_outermost ? 1 : 0); }
  [[nodiscard]] std::int64_t sequences_per_rank() const;  // sum of micro_batches; the same ones for a tensor group
  [[nodiscard]] std::int64_t tokens_per_step() const;     // over all ranks
  // Of a unit, by its place.
  [[nodiscard]] DType param_dtype_of(std::size_t unit) const { return units[unit].param_dtype.value_or(param_dtype); }
  [[nodiscard]] DType reduce_dtype_of(std::size_t unit) const {
    return units[unit].reduce_dtype.value_or(reduce_dtype);
  }
  // What parameters are kept in from step to step, and with them, if they are trained, their gradients and states.
  [[nodiscard]] DType kept_dtype(bool trained) const {
    return trained ? trained_dtype.value_or(master_dtype) : master_dtype;
  }
  // Some unit, but for those of adapters' weights, computes in another param_dtype, or returns another dtype.
  [[nodiscard]] bool several_dtypes() const;
  [[nodiscard]] std::string digest() const;
  friend bool operator==(const ShardingPlan&, const ShardingPlan&) = default;
};

// The way out of several roots, for a remedy: remove the field, or the plan has one root by this unit.
inline constexpr const char* kOneRoot =
    "replace share_comm_context by the unit {\"modules\": [\"\"], \"reshard_after_forward\": \"auto\"} at the end of "
    "units";

// Every rule of a plan, on its own and against its model. Throws InputError(`where`: field, problem, remedy):
// unknown or duplicate module, container as unit, fsdp1's or ddp's unit without parameters (but the root), outer before
// inner, a tied parameter in two units, missing root, roots that overlap, mesh names or sizes, empty or non-positive
// micro-batches, overlapping checkpointed modules, model digest, dtypes, seq_len beyond learned positions, features a
// dialect does not have.
void check(const ShardingPlan&, const ModelGraph&, std::string_view where = "plan");
// Those of them that need no model: mesh, batches, numbers, dialect, which unit is the root, and that none comes after
// one around it.
void check(const ShardingPlan&, std::string_view where);

// parse_plan(to_json_text(p), f) == p. Unknown keys, wrong types and another schema are refused by name.
[[nodiscard]] std::string to_json_text(const ShardingPlan&);
[[nodiscard]] ShardingPlan parse_plan(std::string_view json_text, std::string_view where);

[[nodiscard]] std::string_view name(Dialect);
[[nodiscard]] std::string_view name(GradSync);
[[nodiscard]] std::string name(Reshard);               // "auto", "true", "false", "8"
[[nodiscard]] std::string loop_text(const LoopPlan&);  // "2 forwards per backward, ..."; nothing by hand: ""
[[nodiscard]] std::string_view name(CheckpointPolicy);
[[nodiscard]] std::string_view name(TensorStyle);
[[nodiscard]] std::string_view name(Float8Recipe);            // "none", "tensorwise", "rowwise", ... (models/graph.h)
[[nodiscard]] std::string kept_words(const ShardingPlan&);    // "bf16", or "bf16 (fp32 of what is trained)"
[[nodiscard]] std::string dialect_text(const ShardingPlan&);  // "fsdp1", "fsdp2@2.11"
[[nodiscard]] Dialect parse_dialect(std::string_view, const Origin& where);
[[nodiscard]] GradSync parse_grad_sync(std::string_view, const Origin& where);
[[nodiscard]] Reshard parse_reshard(std::string_view,
                                    const Origin& where);  // auto | true | false | a number of ranks
[[nodiscard]] CheckpointPolicy parse_checkpoint_policy(std::string_view,
                                                       const Origin& where);            // full | selective-op
[[nodiscard]] TensorStyle parse_tensor_style(std::string_view, const Origin& where);    // colwise | rowwise | sequence
[[nodiscard]] Float8Recipe parse_float8_recipe(std::string_view, const Origin& where);  // one of those names
[[nodiscard]] TorchVersion parse_torch_version(std::string_view, const Origin& where);  // "2.11"

}  // namespace fsdp
