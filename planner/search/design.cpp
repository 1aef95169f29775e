#include "planner/search/design.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "models/input/error.h"
#include "models/input/suggest.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

// Does backward read no weight of the unit? Only embeddings have parameters in its modules.
bool embeds(const Unit& unit, const ModelGraph& model) {
  bool any = false;
  for (const std::string& name : unit.modules) {
    const std::int32_t m = model.find_module(name);
    if (m <= 0) return false;  // the root
    const Module& module = model.modules[static_cast<std::size_t>(m)];
    for (std::int32_t i = module.op_begin; i < module.op_end; ++i) {
      const Op& op = model.ops[static_cast<std::size_t>(i)];
      if (op.params.empty()) continue;
      if (op.kind != OpKind::embedding && op.kind != OpKind::position_embedding) return false;
      any = true;
    }
  }
  return any;
}

bool is_of_blocks(const Unit& unit, const ModelGraph& model) {
  const std::int32_t m = model.find_module(unit.modules.front());
  return m > 0 && model.modules[static_cast<std::size_t>(m)].block;
}

// Classes of a block's direct children that are made of several modules themselves: attention, feed-forward.
std::vector<std::string> part_classes(const ModelGraph& model) {
  std::vector<char> has_child(model.modules.size(), 0);
  for (std::size_t m = 1; m < model.modules.size(); ++m)
    has_child[static_cast<std::size_t>(model.modules[m].parent)] = 1;
  std::vector<std::string> found;
  for (std::size_t m = 1; m < model.modules.size(); ++m) {
    const Module& module = model.modules[m];
    if (!has_child[m] || module.container || !model.modules[static_cast<std::size_t>(module.parent)].block) continue;
    if (std::find(found.begin(), found.end(), module.class_name) == found.end()) found.push_back(module.class_name);
  }
  return found;
}

std::string block_class(const ModelGraph& model) {
  for (const Module& m : model.modules)
    if (m.block) return m.class_name;
  return {};
}

Grouping grouping_of(const ModelGraph& model, const std::string& policy) {
  Grouping g{policy, wrap(model, policy, setting("wrap")), false};
  g.embedding_apart = std::any_of(g.units.begin(), g.units.end(), [&](const Unit& u) { return embeds(u, model); });
  return g;
}

std::vector<Grouping> groupings_of(const ModelGraph& model, const SearchOptions& o) {
  if (o.wrap) return {grouping_of(model, *o.wrap)};
  if (needs_adapter_units(model, o.base.dialect)) return {grouping_of(model, std::string(kAdapterUnits))};
  std::vector<std::string> policies = {"block", "titan", "block:2", "block:3", "block:4", "block:8", "root"};
  const std::vector<std::string> parts = part_classes(model);
  if (!parts.empty()) policies.push_back("class:" + join(parts, ",") + "," + block_class(model));
  std::vector<Grouping> found;
  for (const std::string& policy : policies) {
    try {
      Grouping g = grouping_of(model, policy);
      if (o.chunk_head && !can_run_head_in_chunks(g.units, model)) continue;
      if (std::none_of(found.begin(), found.end(), [&](const Grouping& f) { return f.units == g.units; }))
        found.push_back(std::move(g));
    } catch (const InputError&) {  // a policy that this model has no modules for
    }
  }
  return found;
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::set<std::int64_t> found;
  for (std::int64_t d = 1; d <= n / d; ++d)
    if (n % d == 0) found.insert({d, n / d});
  return {found.begin(), found.end()};
}

// Shards stay on whole nodes, or on equal parts of one: other groups would share a node's links unequally.
std::vector<std::int64_t> replicas_of(const ClusterSpec& cluster, const SearchOptions& o) {
  if (o.replicate) return {*o.replicate};
  const std::int64_t ranks = o.data_ranks(), tensor = o.base.tensor();
  if (o.base.dialect == Dialect::ddp) return {ranks};
  std::vector<std::int64_t> found = divisors(ranks);
  const std::int64_t node = cluster.gpus_per_node % tensor == 0 ? cluster.gpus_per_node / tensor : 1;
  std::erase_if(found, [&](std::int64_t r) {
    const std::int64_t shard = ranks / r, together = o.reshard ? o.reshard->ranks : 0;
    return (shard % node != 0 && node % shard != 0) || (together > 1 && shard % together != 0);
  });
  return found;
}

std::vector<Reshard> reshards_of(const ClusterSpec& cluster, const SearchOptions& o) {
  if (o.reshard) return {*o.reshard};
  if (o.base.dialect == Dialect::ddp) return {Reshard::automatic};
  std::vector<Reshard> found = {Reshard::automatic, Reshard::yes, Reshard::no};
  if (o.base.dialect == Dialect::fsdp2 && cluster.gpus_per_node > 1 && o.ranks > cluster.gpus_per_node &&
      o.base.tensor() == 1)
    found.push_back(Reshard{cluster.gpus_per_node});
  return found;
}

// Blocks recomputed by op, whole, or by one of their parts first and then whole.
std::vector<std::vector<std::string>> ladders_of(const ModelGraph& model, const SearchOptions& o) {
  if (o.checkpointing) return {{*o.checkpointing}};
  const auto blocks =
      std::count_if(model.modules.begin(), model.modules.end(), [](const Module& m) { return m.block; });
  std::vector<std::string> whole = {"none"}, selective = {"none"};
  for (std::int64_t n = 1; n <= blocks; ++n) {
    const std::string first = n == blocks ? "full" : fmt::format("first-{}", n);
    whole.push_back(first);
    selective.push_back("selective-op" + (n == blocks ? "" : ":" + first));
  }
  std::vector<std::vector<std::string>> ladders = {whole};
  if (blocks == 0) return ladders;
  if (o.selective_op) ladders.push_back(selective);
  if (o.base.tensor() > 1) return ladders;  // which recomputes blocks, not their parts
  for (const std::string& part : part_classes(model)) {
    std::vector<std::string> ladder = {"none"};
    const std::string all = "class:" + part;
    const std::size_t parts =
        checkpointed_modules(model, all, setting("checkpointed")).size();  // not every block has one
    for (std::size_t n = 1; n < parts; ++n) ladder.push_back(fmt::format("{}:first-{}", all, n));
    ladder.push_back(all);
    for (std::int64_t n = 1; n < blocks; ++n) ladder.push_back(fmt::format("first-{}|{}", n, all));
    ladder.emplace_back("full");
    ladders.push_back(std::move(ladder));
  }
  return ladders;
}

}  // namespace

Space space_of(const ModelGraph& model, const ClusterSpec& cluster, const SearchOptions& o) {
  Space s;
  s.model = &model;
  s.base = o.base;
  s.base.model_name = model.name;
  s.base.model_digest = s.digest = model.digest();
  s.ranks = o.data_ranks();
  s.groupings = groupings_of(model, o);
  s.reshards = reshards_of(cluster, o);
  s.batches = batches({o.micro_batch, o.grad_accum, o.global_batch}, s.ranks, o.base.seq_len, Fineness::every_divisor);
  s.replicas = replicas_of(cluster, o);
  s.ladders = ladders_of(model, o);
  const bool fsdp2 = o.base.dialect == Dialect::fsdp2;
  s.chunks = {o.base.loss_chunks};
  s.chunk_head = o.chunk_head;
  const bool own_loss = !model.trace.empty();  // an exported model has the loss that it was exported with
  if (fsdp2 && o.open.loss_chunks && o.base.tensor() == 1 && !own_loss) s.chunks = {1, 2, 4, 8, 16, 32};
  s.syncs = {o.base.grad_sync};
  if (fsdp2 && o.open.grad_sync) s.syncs = {GradSync::every, GradSync::last, GradSync::reduce_scatter_only};
  s.forward_prefetches = {o.base.forward_prefetch};
  if (fsdp2 && o.open.forward_prefetch) s.forward_prefetches = {0, 1, 2};
  s.buffers = {o.base.reduce_scatter_buffers};
  const bool switches = fsdp2 && !o.base.torch.before(2, 13);  // what came with 2.13
  if (switches && o.open.reduce_scatter_buffers) s.buffers = {1, 2};
  s.second_communicator_free = switches && o.open.separate_reduce_scatter;
  s.kept_free = fsdp2 && !o.reshard;
  s.embedding_free = fsdp2 && o.open.embedding_once;
  return s;
}

Design first_design(const Space& s) {
  Design d;
  d.reshard = s.reshards.front();
  d.grad_sync = s.base.grad_sync;
  d.batch = s.batches.front();
  d.replicate = s.replicas.front();
  d.loss_chunks = s.chunks.front();
  d.forward_prefetch = s.base.forward_prefetch;
  d.backward_prefetch = s.base.backward_prefetch;
  d.reduce_scatter_buffers = s.base.reduce_scatter_buffers;
  d.separate_reduce_scatter = s.base.separate_reduce_scatter;
  return d;
}

ShardingPlan plan_of(const Design& d, const Space& s, const std::string& checkpointing) {
  ShardingPlan p = s.base;
  const Grouping& grouping = s.groupings[d.grouping];
  p.wrap = grouping.wrap;
  set_units(p, grouping.units);
  set_reshard(p, d.reshard);
  std::int64_t kept = d.kept;
  for (std::size_t u = p.units.size(); u-- > 0;) {
    Unit& unit = p.units[u];
    if (kept > 0 && is_of_blocks(unit, *s.model)) unit.reshard_after_forward = Reshard::no, --kept;
    if (d.kept_between) unit.reshard_after_backward = false;
    if (d.embedding_once && embeds(unit, *s.model)) unit.unshard_in_backward = false;
  }
  set_checkpointing(p, *s.model, checkpointing, setting("activation_checkpointing"));
  p.micro_batches.assign(static_cast<std::size_t>(d.batch.grad_accum), d.batch.micro_batch);
  p.mesh = {{"replicate", d.replicate}, {"shard", s.ranks / d.replicate}};
  if (s.base.tensor() > 1) p.mesh.push_back({"tensor", s.base.tensor()});
  p.shard_dims = expert_shard_dims(*s.model, p.dialect, p.shard());
  p.grad_sync = d.grad_sync;
  p.loss_chunks = d.loss_chunks;
  if (s.chunk_head) (void)run_head_in_chunks(p, *s.model);
  p.forward_prefetch = d.forward_prefetch;
  p.backward_prefetch = d.backward_prefetch;
  p.reduce_scatter_buffers = d.reduce_scatter_buffers;
  p.separate_reduce_scatter = d.separate_reduce_scatter;
  return p;
}

std::string label_of(const Design& d, const Space& s, const std::string& checkpointing) {
  std::string text = s.groupings[d.grouping].wrap + ", ";
  text += d.reshard == Reshard::automatic ? "reshard"
          : d.reshard.ranks > 1           ? fmt::format("reshard to {}", d.reshard.ranks)
          : d.reshard == Reshard::yes     ? "reshard all"
                                          : "keep gathered";
  if (d.kept > 0) text += fmt::format(" but the last {}", d.kept);
  if (d.kept_between) text += ", kept between micro-batches";
  if (d.embedding_once) text += ", embedding not gathered for backward";
  text += fmt::format(", checkpoint {}, micro-batch {}", checkpointing, d.batch.micro_batch);
  if (d.batch.grad_accum > 1) text += fmt::format(" x {}", d.batch.grad_accum);
  if (d.grad_sync != s.base.grad_sync) text += fmt::format(", gradient sync {}", name(d.grad_sync));
  if (d.loss_chunks > 1) text += fmt::format(", {} loss chunks", d.loss_chunks);
  text += fmt::format(", replicate {}", d.replicate);
  if (s.base.tensor() > 1) text += fmt::format(", tensor {}", s.base.tensor());
  if (d.forward_prefetch != s.base.forward_prefetch) text += fmt::format(", forward prefetch {}", d.forward_prefetch);
  if (d.reduce_scatter_buffers > 1) text += fmt::format(", {} reduce-scatter buffers", d.reduce_scatter_buffers);
  if (d.separate_reduce_scatter) text += ", own communicator for reduce-scatter";
  return text;
}

}  // namespace fsdp
