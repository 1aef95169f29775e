// From what a user chooses of a plan to the plan itself, or to a search over what is left open. A choice that is left
// out gets its default here and nowhere else.
//
//   PlanChoices choices;
//   choices.wrap = "block:2";
//   choices.global_batch = 256;
//   const PlanTarget target{.ranks = 64, .seq_len = 8192};
//   const ShardingPlan plan = plan_of(choices, model, target);
//   const SearchOptions options = search_of(choices, model, target);   // then: what is searched, the memory limit
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/dtype.h"
#include "models/graph.h"
#include "planner/plan.h"
#include "planner/search.h"

namespace fsdp {

struct PlanChoices {
  // Sequences per rank and micro-batch, micro-batches per step, sequences per step: any two decide the third.
  std::optional<std::int64_t> micro_batch, grad_accum, global_batch;
  Dialect dialect = Dialect::fsdp2;
  TorchVersion torch;
  std::optional<std::string> wrap, checkpointing;  // policies as typed (planner/wrap.h)
  std::optional<Reshard> reshard;
  std::optional<std::int64_t> replicate, tensor, expert_shard;
  std::optional<GradSync> grad_sync;
  std::optional<int> forward_prefetch, backward_prefetch;
  bool backward_post = false;
  std::optional<bool> offload, offload_optimizer, limit_all_gathers, use_orig_params, separate_reduce_scatter,
      chunk_head, loss_in_model;
  std::optional<Bytes> offload_activations;  // host memory of a rank for them
  std::optional<std::int64_t> loss_chunks, reduce_scatter_buffers, host_threads;
  std::optional<DType> param_dtype, reduce_dtype, master_dtype, trained_dtype;
  std::optional<Float8Recipe> float8;
  std::optional<bool> float8_all_gather, float8_precomputed_scales;
  std::optional<OptimizerKind> optimizer;
  std::optional<double> lr, weight_decay, momentum, clip_norm;
  std::optional<std::uint64_t> seed;
};

// What the plan is for.
struct PlanTarget {
  std::int64_t ranks = 1;
  std::int64_t seq_len = 0;
  bool host = false;  // CPU ranks, which compute in fp32 unless another type is chosen
};

// The naive plan with the choices applied, checked against the model. Default batch: one micro-batch of one sequence.
// Throws InputError about the setting or, where a rule of plans is broken, about the plan's field.
[[nodiscard]] ShardingPlan plan_of(const PlanChoices&, const ModelGraph&, const PlanTarget&);

// What the choices fix for a search; what they leave out is searched, if the search knows it, or gets its default.
[[nodiscard]] SearchOptions search_of(const PlanChoices&, const ModelGraph&, const PlanTarget&);

}  // namespace fsdp
