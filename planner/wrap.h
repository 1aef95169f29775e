// Wrap policies: which modules become units. Each returns the plan's `units`, inner before outer, root last.
//
//   wrap(model, "block:2", "--wrap")                               two consecutive blocks per unit
//   wrap(model, "class:LlamaDecoderLayer,Embedding=false", ...)    classes; embeddings stay whole after forward
//   wrap(model, "class:LlamaDecoderLayer|params:1e8", ...)         what either of two policies wants
//
// To add one: docs/extending.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "models/units.h"
#include "planner/plan.h"

namespace fsdp {

// `policy` as typed:
//   block, block:N                     blocks, N consecutive ones per unit
//   class:Name[=RESHARD][,...]         every module of these classes, also inside one another; classes by name (the
//                                      subclasses of a class have their own). RESHARD (auto, true, false or a number)
//                                      is its units' reshard after forward, as with PyTorch's CustomPolicy
//   params:1e8[;leaf=A,B][;exclude=C]  PyTorch's size policy: nothing in or below a leaf is wrapped, and no excluded
//                                      class is; the defaults are MultiheadAttention, and ModuleList and ModuleDict
//   adapters                           peft's fsdp_auto_wrap_policy beside blocks: each trained matrix of a model whose
//                                      other parameters are frozen; fsdp1 needs such units (block|adapters)
//   trained-outermost                  beside blocks (block|trained-outermost), under fsdp1: every trained parameter in
//                                      one unit around all others (ShardingPlan::trained_outermost)
//   P|Q                                block, class, params and adapters: what any of them wants (PyTorch's or)
//   root                               one unit
//   titan                              torchtitan's: one unit per block, the embedding by itself, final norm and output
//                                      head together, tied weights in one unit
// Policies of PyTorch leave out `ignored` modules (names) and do not count their parameters.
// Throws InputError for an unknown policy, a class that matches no module (with the classes there are), a bad number, a
// container as unit.
[[nodiscard]] std::vector<Unit> wrap(const ModelGraph&, std::string_view policy, const Origin& where,
                                     const std::vector<std::string>& ignored = {});

// Units that a policy has made: with trained_outermost, if the whole model is twice among them.
void set_units(ShardingPlan&, std::vector<Unit>);

// The forms above, as a help lists them; those of them that need no argument, or come with one that is often chosen.
[[nodiscard]] std::vector<std::string> wrap_forms();
[[nodiscard]] std::vector<std::string> wrap_words();

[[nodiscard]] std::vector<Unit> wrap_blocks(const ModelGraph&, std::int64_t blocks_per_unit);
[[nodiscard]] std::vector<Unit> wrap_classes(const ModelGraph&,
                                             const std::vector<std::string>& classes);  // ModuleWrapPolicy
// size_based_auto_wrap_policy (docs/fsdp-order.md D1): greedy bottom-up; force-leaf and exclude lists as
// PyTorch's defaults.
[[nodiscard]] std::vector<Unit> wrap_by_size(const ModelGraph&, std::int64_t min_num_params);
[[nodiscard]] std::vector<Unit> wrap_root(const ModelGraph&);
[[nodiscard]] std::vector<Unit> wrap_titan(const ModelGraph&);
// `units` with those of titan beside the blocks: the embedding, and norm and head together, which stay whole after
// forward; what is a unit already stays one. As Accelerate adds them from 1.14 on.
[[nodiscard]] std::vector<Unit> with_ends(const ModelGraph&, std::vector<Unit> units);

// fsdp1 shards no frozen parameter with a trained one: of a model that has both, blocks and adapters are units, where
// nothing else is said.
[[nodiscard]] bool needs_adapter_units(const ModelGraph&, Dialect);
inline constexpr std::string_view kAdapterUnits = "block|adapters";
inline constexpr std::string_view kTrainedOutermost = "trained-outermost";
inline constexpr std::string_view kTrainedOutermostUnits = "block|trained-outermost";

// Activation checkpointing's policies (the grammar: wrap/checkpointing.cpp). The modules of plan.checkpointed for
//   none, full, first-N             no block, every one, blocks 0 .. N-1
//   every-N, last-of-N              of every N blocks the first (0, N, 2N ...) or the last (N-1, 2N-1, ...)
//   selective-op[:first-N|...]      those blocks, by torchtitan's policy per op
//   class:NAME[:first-N|...]        modules of that class, as they run: class:LlamaMLP
//   first-8|class:LlamaMLP          what either names: whole blocks, and that part of the others
// set_checkpointing also sets how they are recomputed.
[[nodiscard]] std::vector<std::string> checkpointed_modules(const ModelGraph&, std::string_view policy,
                                                            const Origin& where);
[[nodiscard]] std::vector<std::string> checkpointing_forms();
// The policy that gives a plan's checkpointed modules: "none", "every-2", "selective-op:first-7"; nullopt: none known.
[[nodiscard]] std::optional<std::string> checkpointing_policy(const ShardingPlan&, const ModelGraph&);
void set_checkpointing(ShardingPlan&, const ModelGraph&, std::string_view policy, const Origin& where);
// The inputs of the first checkpointed modules, whose backward comes last, go to host memory: of as many modules as
// these bytes per rank hold in one micro-batch.
void offload_activations(ShardingPlan&, const ModelGraph&, Bytes budget);
// The bytes of a module's inputs, which ops before it have made, in the largest micro-batch.
[[nodiscard]] std::int64_t input_bytes(const ShardingPlan&, const ModelGraph&, std::string_view module);

}  // namespace fsdp
