#include "planner/search/plan_choices.h"

#include <fmt/format.h>

#include "models/graph/four_bits.h"
#include "models/input/error.h"
#include "planner/plan/check_tensor.h"
#include "planner/plan/naive_plan.h"
#include "planner/search/batches.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

// Ranks that see sequences of their own.
std::int64_t data_ranks(const PlanChoices& c, const PlanTarget& target) {
  const std::int64_t tensor = c.tensor.value_or(1);
  check_tensor_ranks(tensor, target.ranks, c.dialect);
  return target.ranks / tensor;
}

std::vector<Batch> batches_of(const PlanChoices& c, const PlanTarget& target) {
  return batches({c.micro_batch, c.grad_accum, c.global_batch}, data_ranks(c, target), target.seq_len);
}

std::optional<std::int64_t> replicas(const PlanChoices& c, std::int64_t ranks) {
  if (c.dialect == Dialect::ddp) {
    if (c.replicate && *c.replicate != ranks)
      throw InputError(setting("replicate"), "the ddp dialect replicates on every GPU", "leave it out");
    return ranks;
  }
  if (c.replicate && ranks % *c.replicate != 0)
    throw InputError(setting("replicate"),
                     fmt::format("{} does not divide {} {}", *c.replicate, ranks,
                                 c.tensor.value_or(1) > 1 ? "groups of tensor ranks" : "GPUs"),
                     "give a divisor");
  return c.replicate;
}

// What neither a search nor a wrap policy decides.
void apply_details(const PlanChoices& c, const PlanTarget& target, const ModelGraph& model, ShardingPlan& plan) {
  if (target.host) plan.param_dtype = DType::f32;
  plan.grad_sync = c.grad_sync.value_or(plan.grad_sync);
  plan.forward_prefetch = c.forward_prefetch.value_or(plan.forward_prefetch);
  plan.backward_prefetch = c.backward_prefetch.value_or(plan.backward_prefetch);
  plan.backward_post = c.backward_post;
  plan.offload = c.offload.value_or(plan.offload);
  plan.offload_optimizer = c.offload_optimizer.value_or(plan.offload_optimizer);
  plan.torch = c.torch;
  plan.limit_all_gathers = c.limit_all_gathers.value_or(plan.limit_all_gathers);
  const bool no_orig_params = c.dialect == Dialect::fsdp1 && c.torch.before(2, 0);  // they came with 2.0
  plan.use_orig_params = c.use_orig_params.value_or(plan.use_orig_params && !no_orig_params);
  plan.loss_chunks = c.loss_chunks.value_or(plan.loss_chunks);
  plan.reduce_scatter_buffers = static_cast<int>(c.reduce_scatter_buffers.value_or(plan.reduce_scatter_buffers));
  plan.separate_reduce_scatter = c.separate_reduce_scatter.value_or(plan.separate_reduce_scatter);
  const bool packed = four_bits_of(model) != FourBits::none;  // in elements of 16 bits, which nothing casts
  if (packed && c.dialect == Dialect::ddp) plan.param_dtype = plan.reduce_dtype = DType::bf16;
  plan.param_dtype = c.param_dtype.value_or(plan.param_dtype);
  if (plan.param_dtype == DType::f64) plan.reduce_dtype = plan.master_dtype = DType::f64;
  plan.reduce_dtype = c.reduce_dtype.value_or(plan.reduce_dtype);
  if (packed) plan.master_dtype = plan.param_dtype;
  plan.master_dtype = c.master_dtype.value_or(plan.master_dtype);
  plan.trained_dtype = c.trained_dtype;
  if (model.prepared && !c.trained_dtype) plan.trained_dtype = DType::f32;  // peft's adapters
  if (c.dialect == Dialect::ddp && plan.trained_dtype && !c.reduce_dtype) plan.reduce_dtype = *plan.trained_dtype;
  plan.float8 = {c.float8.value_or(Float8Recipe::none), c.float8_all_gather.value_or(false),
                 c.float8_precomputed_scales.value_or(false)};
  plan.loop.loss_in_model = c.loss_in_model.value_or(false);
  plan.loop.host_threads = static_cast<int>(c.host_threads.value_or(0));
  plan.optimizer.kind = c.optimizer.value_or(plan.optimizer.kind);
  plan.optimizer.lr = c.lr.value_or(plan.optimizer.lr);
  plan.optimizer.weight_decay = c.weight_decay.value_or(plan.optimizer.weight_decay);
  plan.optimizer.momentum = c.momentum.value_or(plan.optimizer.momentum);
  if (c.clip_norm) plan.clip_norm = c.clip_norm;
  plan.seed = c.seed.value_or(plan.seed);
}

// Without a number of chunks there are as many as in torchtitan.
void set_head_chunks(const PlanChoices& c, ShardingPlan& plan) {
  constexpr std::int64_t kChunks = 8;
  if (c.dialect != Dialect::fsdp2)
    throw InputError(setting("chunk_head"), "is of the dialect fsdp2", "use it, or leave it out");
  if (!c.loss_chunks) plan.loss_chunks = kChunks;
}
void require_head_in_chunks(bool runs) {
  if (!runs)
    throw InputError(setting("chunk_head"),
                     "the output layer is tied to the embedding, or is no unit of its own, nor the last of one",
                     "with tied weights leave it out, else use --wrap titan");
}
void set_chunk_head(const PlanChoices& c, ShardingPlan& plan, const ModelGraph& model) {
  set_head_chunks(c, plan);
  require_head_in_chunks(run_head_in_chunks(plan, model));
}

// The naive plan of the target's mesh, before wrap and batch are chosen.
PlanOptions naive_options(const PlanChoices& c, const PlanTarget& target) {
  PlanOptions options;
  options.ranks = target.ranks;
  options.tensor = c.tensor.value_or(1);
  options.replicate = replicas(c, data_ranks(c, target)).value_or(1);
  options.seq_len = target.seq_len;
  options.dialect = c.dialect;
  return options;
}

}  // namespace

ShardingPlan plan_of(const PlanChoices& choices, const ModelGraph& model, const PlanTarget& target) {
  PlanChoices c = choices;
  if (!c.micro_batch && !(c.grad_accum && c.global_batch)) c.micro_batch = 1;
  const Batch batch = batches_of(c, target).front();
  PlanOptions options = naive_options(c, target);
  options.micro_batches.assign(static_cast<std::size_t>(batch.grad_accum), batch.micro_batch);
  options.reshard = c.reshard.value_or(options.reshard);
  ShardingPlan plan = naive_plan(model, options);
  if (c.wrap) {
    set_units(plan, wrap(model, *c.wrap, setting("wrap")));
    set_reshard(plan, options.reshard);
    plan.wrap = *c.wrap;
  }
  if (c.checkpointing) set_checkpointing(plan, model, *c.checkpointing, setting("activation_checkpointing"));
  if (c.expert_shard) set_expert_shard(plan, model, *c.expert_shard, setting("expert_shard"));
  apply_details(c, target, model, plan);
  if (c.chunk_head.value_or(false)) set_chunk_head(c, plan, model);
  if (c.offload_activations) {
    if (plan.checkpointed.empty())
      throw InputError(setting("offload_activations"), "the plan recomputes nothing, and so keeps no inputs for that",
                       "use --activation-checkpointing full, or leave it out");
    offload_activations(plan, model, *c.offload_activations);
    const Bytes least(input_bytes(plan, model, plan.checkpointed.front()));
    if (plan.offload_activations.empty())
      throw InputError(setting("offload_activations"),
                       fmt::format("{} hold no module's input: the first one's takes {}", human(*c.offload_activations),
                                   human(least)),
                       fmt::format("give at least {}, or all", human(least)));
  }
  check(plan, model);
  return plan;
}

SearchOptions search_of(const PlanChoices& choices, const ModelGraph& model, const PlanTarget& target) {
  PlanChoices c = choices;
  if (c.expert_shard)
    throw InputError(setting("expert_shard"), "the search shards all parameters over one mesh",
                     "leave it out, or predict one such plan with `fsdp-plan simulate`");
  if (c.offload_activations)
    throw InputError(setting("offload_activations"), "the search keeps activations on the device",
                     "leave it out, or predict one such plan with `fsdp-plan simulate`");
  const std::vector<Batch> allowed = batches_of(c, target);
  if (c.global_batch && (c.micro_batch || c.grad_accum))  // they decide
    c.micro_batch = allowed.front().micro_batch, c.grad_accum = allowed.front().grad_accum;
  SearchOptions options;
  options.base = naive_plan(model, naive_options(c, target));
  apply_details(c, target, model, options.base);
  options.chunk_head = c.chunk_head.value_or(false);
  if (options.chunk_head) {
    set_head_chunks(c, options.base);
    require_head_in_chunks(can_run_head_in_chunks(wrap(model, c.wrap.value_or("titan"), setting("wrap")), model));
  }
  options.ranks = target.ranks;
  options.micro_batch = c.micro_batch;
  options.grad_accum = c.grad_accum;
  options.global_batch = c.global_batch;
  options.wrap = c.wrap;
  options.checkpointing = c.checkpointing;
  if (c.float8 == Float8Recipe::delayed && !c.checkpointing) options.checkpointing = "none";  // check_dtypes.cpp
  options.reshard = c.reshard;
  options.replicate = replicas(c, data_ranks(c, target));
  options.open = {.loss_chunks = !c.loss_chunks && !options.chunk_head && !options.base.loop.loss_in_model,
                  .grad_sync = !c.grad_sync,
                  .forward_prefetch = !c.forward_prefetch,
                  .reduce_scatter_buffers = !c.reduce_scatter_buffers,
                  .separate_reduce_scatter = !c.separate_reduce_scatter,
                  .embedding_once = true};
  return options;
}

}  // namespace fsdp
