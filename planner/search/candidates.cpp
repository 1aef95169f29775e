#include "planner/search/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "models/input/error.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"

namespace fsdp {

namespace {

struct Named {
  std::string label;
  std::vector<Unit> units;
};

std::vector<Batch> batches_of(const SearchOptions& o) {
  return batches({o.micro_batch, o.grad_accum, o.global_batch}, o.data_ranks(), o.base.seq_len);
}

std::vector<Named> wraps(const ModelGraph& model, const SearchOptions& o) {
  if (o.wrap) return {{*o.wrap, wrap(model, *o.wrap, setting("wrap"))}};
  if (needs_adapter_units(model, o.base.dialect))
    return {{std::string(kAdapterUnits), wrap(model, kAdapterUnits, setting("wrap"))}};
  std::vector<Named> found;
  for (const char* policy : {"block", "block:2", "block:4", "titan", "root"}) {
    try {
      Named n{policy, wrap(model, policy, setting("wrap"))};
      if (o.chunk_head && !can_run_head_in_chunks(n.units, model)) continue;
      if (std::none_of(found.begin(), found.end(), [&](const Named& f) { return f.units == n.units; }))
        found.push_back(std::move(n));
    } catch (const InputError&) {  // a policy that this model has no modules for
    }
  }
  return found;
}

std::vector<Reshard> reshards(const SearchOptions& o) {
  if (o.reshard) return {*o.reshard};
  if (o.base.dialect == Dialect::ddp) return {Reshard::automatic};
  return {Reshard::automatic, Reshard::no, Reshard::yes};
}

struct CheckpointingChoice {
  std::string label;
  std::vector<std::string> modules;
  CheckpointPolicy policy = CheckpointPolicy::full;
  bool reentrant = false;
};

CheckpointingChoice checkpointing(const ModelGraph& model, const std::string& policy) {
  ShardingPlan plan;
  set_checkpointing(plan, model, policy, setting("activation_checkpointing"));
  return {policy, plan.checkpointed, plan.checkpoint_policy, plan.reentrant};
}

std::vector<CheckpointingChoice> checkpointings(const ModelGraph& model, const SearchOptions& o) {
  if (o.checkpointing) return {checkpointing(model, *o.checkpointing)};
  std::vector<CheckpointingChoice> found;
  for (const char* policy : {"none", "selective-op", "every-2", "full"}) {
    if (policy == std::string_view("selective-op") && !o.selective_op) continue;
    try {
      CheckpointingChoice c = checkpointing(model, policy);
      if (std::none_of(found.begin(), found.end(),
                       [&](const CheckpointingChoice& f) { return f.modules == c.modules && f.policy == c.policy; }))
        found.push_back(std::move(c));
    } catch (const InputError&) {  // a model without blocks
    }
  }
  return found;
}

// Full sharding, and sharding within a node with replicas across nodes.
std::vector<std::int64_t> replicas(const ClusterSpec& cluster, const SearchOptions& o) {
  const std::int64_t ranks = o.data_ranks(), tensor = o.base.tensor();
  if (o.replicate) {
    if (*o.replicate < 1 || ranks % *o.replicate != 0)
      throw InputError(setting("replicate"), fmt::format("{} does not divide {} GPUs", *o.replicate, ranks),
                       "use a divisor");
    return {*o.replicate};
  }
  if (o.base.dialect == Dialect::ddp) return {ranks};
  std::vector<std::int64_t> found = {1};
  const std::int64_t node = cluster.gpus_per_node % tensor == 0 ? cluster.gpus_per_node / tensor : 1;
  if (node > 1 && ranks > node && ranks % node == 0) found.push_back(ranks / node);
  const std::int64_t together = o.reshard ? o.reshard->ranks : 0;  // meshes whose shard groups these ranks divide
  std::erase_if(found, [&](std::int64_t r) { return together > 1 && ranks / r % together != 0; });
  if (found.empty())
    throw InputError(setting("reshard_after_forward"),
                     fmt::format("{} ranks do not divide the {} of a shard group", together, ranks),
                     "use a divisor of it, true or false");
  return found;
}

std::string reshard_label(Reshard r) {
  if (r == Reshard::automatic) return "reshard";
  if (r.ranks > 1) return fmt::format("reshard to {}", r.ranks);
  return r == Reshard::yes ? "reshard all" : "keep gathered";
}

Option make_option(const ModelGraph& model, const SearchOptions& o, const Named& w, Reshard reshard,
                   const CheckpointingChoice& c, Batch batch, std::int64_t replicate) {
  Option option;
  ShardingPlan& p = option.plan = o.base;
  p.model_name = model.name;
  p.wrap = w.label;
  set_units(p, w.units);
  set_reshard(p, reshard);
  p.checkpointed = c.modules;
  p.checkpoint_policy = c.policy;
  p.reentrant = c.reentrant;
  p.micro_batches.assign(static_cast<std::size_t>(batch.grad_accum), batch.micro_batch);
  p.mesh = {{"replicate", replicate}, {"shard", o.data_ranks() / replicate}};
  if (o.base.tensor() > 1) p.mesh.push_back({"tensor", o.base.tensor()});
  p.shard_dims = expert_shard_dims(model, p.dialect, p.shard());
  if (o.chunk_head) (void)run_head_in_chunks(p, model);  // the naive plan's units may have whole logits
  option.batch = batch;
  option.reshard = reshard;
  option.checkpointing = c.label;
  option.label =
      fmt::format("{}, {}, checkpoint {}, micro-batch {}{}, replicate {}", w.label, reshard_label(reshard), c.label,
                  batch.micro_batch, batch.grad_accum > 1 ? fmt::format(" x {}", batch.grad_accum) : "", replicate);
  if (o.base.tensor() > 1) option.label += fmt::format(", tensor {}", o.base.tensor());
  return option;
}

}  // namespace

Option naive_option(const ModelGraph& model, const ClusterSpec& cluster, const SearchOptions& o) {
  Named block{"block", {}};
  try {
    block.units = wrap_blocks(model, 1);
  } catch (const InputError&) {  // no blocks: everything is the root's
    block = {"root", wrap_root(model)};
  }
  Option naive = make_option(model, o, block, Reshard::automatic, {"none", {}}, batches_of(o).front(),
                             replicas(cluster, o).front());
  naive.plan.model_digest = model.digest();
  naive.naive = true;
  return naive;
}

std::vector<Option> options(const ModelGraph& model, const ClusterSpec& cluster, const SearchOptions& o) {
  const auto all_batches = batches_of(o);
  const auto all_wraps = wraps(model, o);
  const auto all_reshards = reshards(o);
  const auto all_checkpointings = checkpointings(model, o);
  const auto all_replicas = replicas(cluster, o);
  const std::string digest = model.digest();
  const ShardingPlan naive = naive_option(model, cluster, o).plan;
  std::vector<Option> found;
  const auto add = [&](Choice at) {
    const auto pick = [&](const auto& values, Axis axis) -> const auto& {
      return values[static_cast<std::size_t>(at[static_cast<std::size_t>(axis)])];
    };
    const Named& w = pick(all_wraps, Axis::wrap);
    const Reshard reshard = pick(all_reshards, Axis::reshard);
    if (w.units.size() == 1 && reshard == Reshard::no && all_reshards.size() > 1)
      return;  // a lone root stays gathered anyway
    Option option = make_option(model, o, w, reshard, pick(all_checkpointings, Axis::checkpointing),
                                pick(all_batches, Axis::batch), pick(all_replicas, Axis::mesh));
    option.choice = at;
    option.plan.model_digest = digest;
    option.naive = option.plan == naive;
    found.push_back(std::move(option));
  };
  const auto count = [](const auto& values) { return static_cast<int>(values.size()); };
  for (int w = 0; w < count(all_wraps); ++w)
    for (int r = 0; r < count(all_reshards); ++r)
      for (int c = 0; c < count(all_checkpointings); ++c)
        for (int m = 0; m < count(all_replicas); ++m)
          for (int b = 0; b < count(all_batches); ++b) add({w, r, c, b, m});
  return found;
}

std::string describe_search(const SearchOptions& o) {
  std::vector<std::string> open;
  if (!o.wrap) open.push_back("wrap");
  if (!o.reshard && o.base.dialect != Dialect::ddp) open.push_back("reshard");
  if (!o.checkpointing) open.push_back("checkpointing");
  const bool batch_open = !o.micro_batch && !(o.global_batch && o.grad_accum);
  if (batch_open) open.push_back("micro-batch");
  if (!o.replicate && o.base.dialect != Dialect::ddp) open.push_back("mesh");
  std::string text;
  for (std::size_t i = 0; i < open.size(); ++i) text += (i == 0 ? "" : i + 1 == open.size() ? " and " : ", ") + open[i];
  if (text.empty()) text = "nothing";
  if (o.global_batch) return text + fmt::format(" for the shortest step of {} sequences", *o.global_batch);
  if (batch_open) return text + " for the most tokens per second (the global batch was left free)";
  return text + " for the shortest step";
}

}  // namespace fsdp
