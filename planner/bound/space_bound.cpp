#include "planner/bound/space_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "planner/bound/fold.h"
#include "planner/bound/folded_space.h"
#include "planner/bound/mixture.h"
#include "planner/bound/reference.h"
#include "planner/tensor/adapter_casts.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The moments at which memory is held against the limit: the loss's backward, and that of the last block.
enum class Moment : std::uint8_t { loss, last_block };

class Bound {
 public:
  // `few`: the same with a model of few blocks, if it has one, from which blocks are measured.
  Bound(const PricedSpace& priced, const PricedSpace* few, std::vector<std::size_t> stands_for, Bytes limit)
      : priced_(priced), few_(few), stands_for_(std::move(stands_for)), space_(priced.space), limit_(limit) {
    std::vector<std::string> policies;
    for (const auto& ladder : space_.ladders)
      for (const std::string& policy : ladder)
        if (uniform(policy, ladder) && std::find(policies.begin(), policies.end(), policy) == policies.end())
          policies.push_back(policy);
    keeps_ = space_.kept_free || space_.reshards.front() != Reshard::yes;
    // One plan recomputes per op or by modules, never both.
    const auto per_op = [](const std::string& policy) { return policy.starts_with("selective-op"); };
    for (const bool selective : {false, true}) {
      std::vector<std::string> family;
      for (const std::string& policy : policies)
        if (policy == "none" || per_op(policy) == selective) family.push_back(policy);
      if (std::any_of(family.begin(), family.end(), [&](const auto& p) { return per_op(p) == selective; }))
        families_.push_back(std::move(family));
    }
  }

  // Policies of which one plan may use several, block by block.
  [[nodiscard]] const std::vector<std::vector<std::string>>& families() const { return families_; }

  // Of all plans over this mesh in these units with these batches and loss chunks, seconds per sequence; only as far
  // as it is known that they are not below `enough`.
  double least(std::int64_t replicate, std::size_t grouping, Batch batch, std::int64_t chunks, double enough) {
    const ShardingParts& sharding = over(replicate, grouping);
    if (!sharding.possible) return kNever;
    const double room = static_cast<double>(limit_.count() - priced_.cluster.fixed_memory.count() - sharding.states);
    if (room < static_cast<double>(sharding.gradients)) return kNever;
    const double sequences = static_cast<double>(batch.micro_batch * batch.grad_accum);
    double least = kNever;
    for (std::size_t family = 0; family < families_.size(); ++family) {
      const Computed computed = with(batch.micro_batch, chunks, family);
      if (computed.blocks.empty() || computed.rest->kernels.seconds() == 0) continue;
      const std::vector<Run> runs = runs_of(sharding, computed.blocks);
      for (const bool shared : {true, false}) {
        if (!shared && !space_.base.separate_reduce_scatter && !space_.second_communicator_free) continue;
        double most = 0;
        for (const Weights& w : weights(shared, replicate > 1)) {
          for (const Moment moment : {Moment::loss, Moment::last_block})
            most = std::max(most, least_weighted(sharding, computed, runs, batch, w, room, moment) / sequences);
          if (most >= std::min(enough, least)) break;
        }
        least = std::min(least, most);
      }
    }
    return least;
  }

 private:
  // Does the policy treat all blocks alike, or is it the only one?
  [[nodiscard]] static bool uniform(const std::string& policy, const std::vector<std::string>& ladder) {
    return ladder.size() == 1 || policy.find("first-") == std::string::npos;
  }

  // Does it recompute every block, or none, in the same way?
  [[nodiscard]] static bool all_blocks_alike(const std::string& policy) {
    const auto names = [&](const char* some) { return policy.find(some) != std::string::npos; };
    return !names("first-") && !names("every-") && !names("last-of-");
  }

  [[nodiscard]] bool allows(GradSync sync) const {
    return std::find(space_.syncs.begin(), space_.syncs.end(), sync) != space_.syncs.end();
  }

  const ShardingParts& over(std::int64_t replicate, std::size_t grouping) {
    const auto key = std::pair(replicate, grouping);
    if (const auto known = sharding_.find(key); known != sharding_.end()) return known->second;
    const std::optional<FoldedUnits>& folded = with_few_units(grouping);
    if (!folded) return sharding_[key] = sharding_parts(replicate, grouping, limit_, priced_);
    const LocalSpace& few = folded->space;
    const FewUnits units{{few.space, few.graph(), priced_.implementation, priced_.cluster, priced_.costs},
                         folded->folded->stands_for};
    return sharding_[key] = sharding_parts(replicate, grouping, limit_, priced_, &units);
  }

  // The space with one grouping, of a model with few of its units.
  struct FoldedUnits {
    const Folded* folded;
    LocalSpace space;
  };
  const std::optional<FoldedUnits>& with_few_units(std::size_t grouping) {
    const auto [it, fresh] = few_units_.try_emplace(grouping);
    const Grouping& whole = space_.groupings[grouping];
    const auto together = fresh ? blocks_together(whole) : std::nullopt;
    if (!together || !all_blocks_alike(space_.ladders.front().front())) return it->second;
    const auto [model, first] = folded_.try_emplace(*together);
    if (first) model->second = fold_units(*space_.model, *together);
    if (!model->second) return it->second;
    const Folded& folded = *model->second;
    it->second = FoldedUnits{
        &folded, folded_space(space_, folded.model, {whole.wrap, wrap(folded.model, whole.wrap, setting("wrap"))},
                              priced_.implementation)};
    return it->second;
  }

  // The blocks of each policy of a family, measured with the loss in the most parts, which leaves them the least to
  // hold beside it; and the rest with the loss in so many.
  struct Computed {
    std::vector<const ComputeParts*> blocks;
    const ComputeParts::Part* rest = nullptr;
  };
  Computed with(std::int64_t micro_batch, std::int64_t chunks, std::size_t family) {
    Computed found;
    for (const std::string& policy : families_[family])
      if (const ComputeParts* parts = in_most_chunks(micro_batch, policy)) found.blocks.push_back(parts);
    if (!found.blocks.empty()) found.rest = &parts_of(micro_batch, chunks, families_[family].back()).rest;
    return found;
  }

  // Null: the policy goes with no number of chunks.
  const ComputeParts* in_most_chunks(std::int64_t micro_batch, const std::string& policy) {
    for (auto chunks = space_.chunks.rbegin(); chunks != space_.chunks.rend(); ++chunks)
      if (const ComputeParts& parts = parts_of(micro_batch, *chunks, policy); parts.rest.kernels.seconds() > 0)
        return &parts;
    return nullptr;
  }

  const ComputeParts& parts_of(std::int64_t micro_batch, std::int64_t chunks, const std::string& policy) {
    const auto key = std::tuple(micro_batch, chunks, policy);
    if (const auto known = computed_.find(key); known != computed_.end()) return known->second;
    Design d = first_design(space_);
    d.batch = {micro_batch, 1};
    d.loss_chunks = chunks;
    return computed_
        .emplace(key, few_ && all_blocks_alike(policy) ? unfolded(compute_parts(d, policy, *few_))
                                                       : compute_parts(d, policy, priced_))
        .first->second;
  }

  [[nodiscard]] ComputeParts unfolded(const ComputeParts& few) const {
    ComputeParts all;
    all.rest = few.rest;
    for (const std::size_t b : stands_for_)
      if (!few.blocks.empty()) all.blocks.push_back(few.blocks[b]);
    return all;
  }

  // What of a part is counted at a moment: a block when forward has ended, the last block in its backward (with its
  // unit gathered and all that the rest holds), the rest at the loss, or nothing of the rest besides.
  enum class HeldAt : std::uint8_t { forward_end, backward, loss, nothing };

  // What treating a part in each of the possible ways costs, and holds when forward ends.
  [[nodiscard]] std::vector<Way> ways_of(const ShardingParts& all, const ShardingParts::Part& s,
                                         const std::vector<const ComputeParts::Part*>& computed, Batch batch,
                                         const Weights& w, HeldAt at) const {
    const auto weighted = [&](const KernelLoad& load) { return weighted_seconds(load, all.held, w); };
    const auto accum = static_cast<double>(batch.grad_accum), whole = static_cast<double>(s.whole);
    const bool later = batch.grad_accum > 1, of_block = at == HeldAt::forward_end || at == HeldAt::backward;
    const double gather = w.gather * s.all_gather, copies = weighted(s.after_gather),
                 reduce = w.reduce * s.reduce_scatter + weighted(s.before_reduce), step = weighted(s.each_step),
                 all_reduce = w.all_reduce * s.all_reduce;
    // How often parameters are gathered over the shards, and what of them is there when forward ends.
    std::vector<Way> gathers = {{2 * accum * (gather + copies), 0}};
    if (keeps_ || !of_block)
      gathers.push_back({accum * (gather + copies), of_block && at != HeldAt::backward ? whole : 0});
    if (later && space_.kept_free) gathers.push_back({gather + copies, at == HeldAt::backward ? 0 : whole});
    for (const Reshard r : space_.reshards)
      if (r.ranks > 1)
        gathers.push_back(
            {accum * (gather + 2 * copies), at == HeldAt::backward ? 0 : whole / static_cast<double>(r.ranks)});
    // How often gradients are reduced over shards and over replicas, and what of them waits.
    const double waits = later ? static_cast<double>(s.sharded_gradient) : 0;
    std::vector<Way> reductions = {{accum * (reduce + all_reduce), waits}};
    if (later && allows(GradSync::reduce_scatter_only)) reductions.push_back({accum * reduce + all_reduce, waits});
    // (Only once: what waits may be narrower than a gradient, so its copy counts as nothing.)
    if (later && allows(GradSync::last))
      reductions.push_back({w.reduce * s.reduce_scatter + all_reduce, static_cast<double>(s.gradient)});
    std::vector<Way> ways;
    for (const ComputeParts::Part* p : computed) {
      const double kernels = accum * weighted(p->kernels),
                   bytes = static_cast<double>(at == HeldAt::backward  ? p->backward
                                               : at == HeldAt::nothing ? 0
                                                                       : p->saved);
      for (const Way& g : gathers)
        for (const Way& r : reductions)
          ways.push_back({kernels + g.seconds + r.seconds + step, bytes + g.bytes + r.bytes});
    }
    return ways;
  }

  // Neighbouring blocks that cost and hold the same: the first one, and how many they are.
  struct Run {
    std::size_t first = 0, count = 1;
  };
  [[nodiscard]] static std::vector<Run> runs_of(const ShardingParts& sharding,
                                                const std::vector<const ComputeParts*>& computed) {
    std::vector<Run> runs;
    for (std::size_t b = 0; b < sharding.blocks.size(); ++b) {
      if (b > 0 && alike(sharding, computed, b, b - 1)) runs.back().count += 1;
      else runs.push_back({b, 1});
    }
    return runs;
  }

  double least_weighted(const ShardingParts& sharding, const Computed& computed, const std::vector<Run>& runs,
                        Batch batch, const Weights& w, double room, Moment moment) const {
    std::vector<Alike> parts;
    const auto add = [&](std::size_t b, std::size_t count, HeldAt held) {
      std::vector<const ComputeParts::Part*> of;
      for (const ComputeParts* c : computed.blocks) of.push_back(&c->blocks[b]);
      parts.push_back({ways_of(sharding, sharding.blocks[b], of, batch, w, held), static_cast<double>(count)});
    };
    for (const Run& run : runs) {
      const bool last = run.first + run.count == sharding.blocks.size() && moment == Moment::last_block;
      const std::size_t before = run.count - (last ? 1 : 0);
      if (before > 0) add(run.first, before, HeldAt::forward_end);
      if (last) add(run.first + before, 1, HeldAt::backward);
    }
    const bool at_loss = moment == Moment::loss;
    parts.push_back(
        {ways_of(sharding, sharding.rest, {computed.rest}, batch, w, at_loss ? HeldAt::loss : HeldAt::nothing), 1});
    // (All-reduces of other units may run beside the last reduction.)
    const double exposed = (1 - w.gather) * sharding.first_gather +
                           (1 - w.reduce - w.all_reduce) * sharding.last_reduction +
                           (1 - w.all_reduce) * sharding.last_all_reduce;
    return exposed + least_within(parts, at_loss ? room : room - static_cast<double>(sharding.last_unit));
  }

  [[nodiscard]] static bool alike(const ShardingParts& sharding, const std::vector<const ComputeParts*>& computed,
                                  std::size_t a, std::size_t b) {
    const ShardingParts::Part &one = sharding.blocks[a], &other = sharding.blocks[b];
    if (one.whole != other.whole || one.all_gather != other.all_gather || one.reduce_scatter != other.reduce_scatter ||
        one.all_reduce != other.all_reduce || one.gradient != other.gradient ||
        one.each_step.seconds() != other.each_step.seconds())
      return false;
    return std::all_of(computed.begin(), computed.end(), [&](const ComputeParts* c) {
      return c->blocks[a].saved == c->blocks[b].saved &&
             c->blocks[a].kernels.seconds() == c->blocks[b].kernels.seconds();
    });
  }

  const PricedSpace priced_;
  const PricedSpace* const few_;
  const std::vector<std::size_t> stands_for_;
  const Space& space_;
  const Bytes limit_;
  bool keeps_ = true;  // some plan keeps blocks gathered from forward to backward
  std::vector<std::vector<std::string>> families_;
  std::map<std::pair<std::int64_t, std::size_t>, ShardingParts> sharding_;
  std::map<std::size_t, std::optional<Folded>> folded_;                                   // by the blocks of a unit
  std::map<std::size_t, std::optional<FoldedUnits>> few_units_;                           // by grouping
  std::map<std::tuple<std::int64_t, std::int64_t, std::string>, ComputeParts> computed_;  // micro-batch, chunks, policy
};

// Plans of the space: how each block is recomputed, by one of its family's policies, and whether it is kept gathered
// are choices of their own.
double plans_in(const Space& s, const std::vector<std::vector<std::string>>& families) {
  const auto size = [](const auto& values) { return static_cast<double>(values.size()); };
  double blocks = 0, recomputed = 0;
  for (const Module& m : s.model->modules) blocks += m.block ? 1 : 0;
  for (const std::vector<std::string>& family : families) recomputed += std::pow(size(family), blocks);
  const double kept = s.kept_free ? std::pow(2.0, blocks) : 1;
  return recomputed * kept * size(s.groupings) * size(s.reshards) * size(s.batches) * size(s.replicas) *
         size(s.chunks) * size(s.syncs) * size(s.forward_prefetches) * size(s.buffers) *
         (s.second_communicator_free ? 2 : 1) * (s.embedding_free ? 2 : 1);
}

}  // namespace

Certificate certify(const Space& space, Bytes limit, const Implementation& implementation, const ClusterSpec& cluster,
                    const Costs& costs, double enough) {
  Certificate c;
  const Implementation impl = without_unit_casts(implementation, *space.model, space.base);
  const LocalSpace whole = local_space(space, impl);
  const auto folded = fold(*space.model);
  // Kernels and activations do not depend on units.
  const LocalSpace few =
      folded ? folded_space(space, folded->model, {"block", wrap_blocks(folded->model, 1)}, impl) : LocalSpace{};
  const PricedSpace priced{whole.space, whole.graph(), impl, cluster, costs};
  const PricedSpace priced_few{few.space, folded ? few.graph() : whole.graph(), impl, cluster, costs};
  Bound bound(priced, folded ? &priced_few : nullptr, folded ? folded->stands_for : std::vector<std::size_t>{}, limit);
  c.plans = plans_in(space, bound.families());
  double least = enough;
  for (const std::int64_t replicate : space.replicas)
    for (std::size_t g = 0; g < space.groupings.size(); ++g)
      for (const Batch& batch : space.batches)
        for (const std::int64_t chunks : space.chunks) {
          const double seconds = bound.least(replicate, g, batch, chunks, least);
          if (seconds >= least) continue;
          least = seconds;
          c.kind = fmt::format("{}, micro-batch {} x {}, {} loss chunk{}, replicate {}", space.groupings[g].wrap,
                               batch.micro_batch, batch.grad_accum, chunks, chunks == 1 ? "" : "s", replicate);
        }
  c.any_fits = least < kNever;
  c.seconds_per_sequence = c.any_fits ? least : 0;
  return c;
}

}  // namespace fsdp
