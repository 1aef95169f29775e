#include "planner/search/remedies.h"

#include <algorithm>
#include <utility>

#include "models/input/error.h"
#include "planner/plan/naive_plan.h"
#include "planner/search/scorer.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMostTimesGpus = 16;
constexpr std::int64_t kLossChunks = 8;
constexpr double kLessMemory = 0.99;
constexpr double kNearly = 1.25;  // of the limit: another plan may save as much

ShardingPlan with(const Change& change, ShardingPlan plan, const ModelGraph& model) {
  if (change.offload_optimizer) plan.offload_optimizer = true, plan.offload = false;
  if (change.offload) plan.offload = true, plan.offload_optimizer = false;
  if (change.loss_chunks) plan.loss_chunks = *change.loss_chunks;
  if (change.optimizer) plan.optimizer.kind = *change.optimizer;
  if (change.master_dtype) plan.master_dtype = *change.master_dtype, plan.trained_dtype = change.trained_dtype;
  if (change.seq_len) plan.seq_len = *change.seq_len;
  plan.model_digest = model.digest();
  if (change.gpus) {
    const std::int64_t tensor = plan.tensor(), groups = plan.replicate() * tensor;
    if (*change.gpus % groups != 0)
      throw InputError(setting("gpus"), "the replicas do not divide them", "give a multiple");
    const std::int64_t own = plan.own_shard();
    if (own > 0 && *change.gpus / tensor % own != 0)
      throw InputError(setting("gpus"), "the shards of units with a mesh of their own do not divide them",
                       "give a multiple");
    plan.mesh = {{"replicate", plan.replicate()}, {"shard", *change.gpus / groups}};
    if (tensor > 1) plan.mesh.push_back({"tensor", tensor});
    if (own == 0) plan.shard_dims = expert_shard_dims(model, plan.dialect, plan.shard());
  }
  return plan;
}

// As a search does: many equal micro-batches are simulated as a few.
Score score_shortened(const ShardingPlan& plan, const ScoreFunction& score) {
  const SearchOptions options;
  Judged judged{{}, Bytes(0), std::nullopt};
  judged.option.plan = plan;
  judged.option.batch = {plan.micro_batches.front(), static_cast<std::int64_t>(plan.micro_batches.size())};
  Scorer(options, score, 0).score(judged);
  return *judged.score;
}

bool fits(const std::optional<Score>& score) { return score && score->verdict == Verdict::fits; }

// Steps in which a sequence is made shorter.
std::int64_t step_of(std::int64_t seq_len) { return seq_len > 8192 ? 1024 : seq_len > 1024 ? 256 : 64; }

class Search {
 public:
  Search(const Candidate& plan, const RemedyOptions& options, const ChangeFunction& changed)
      : plan_(plan), options_(options), changed_(changed) {}

  // Each alone; and, as long as none of those that train the same fits, together.
  void try_other_settings() {
    const Change compile{.compiled = true}, offload{.offload = true}, chunks{.loss_chunks = kLossChunks};
    Change narrow{.master_dtype = DType::bf16, .trained_dtype = options_.trained_dtype}, narrow_in_chunks = narrow;
    narrow_in_chunks.loss_chunks = kLossChunks;
    if (options_.master_dtype && !add(narrow) && options_.chunks) add(narrow_in_chunks);
    bool any = options_.compile && add(compile);
    const bool states = options_.offload_optimizer && add({.offload_optimizer = true});  // the cheaper one
    any |= states || (options_.offload && add(offload));
    any |= options_.chunks && add(chunks);
    if (options_.optimizer) add({.optimizer = OptimizerKind::adamw_8bit});
    if (options_.compile && options_.offload_optimizer)
      any = any || add({.compiled = true, .offload_optimizer = true});
    any = any || (options_.compile && options_.offload && add({.compiled = true, .offload = true}));
    if (!any && options_.compile && options_.offload && options_.chunks)
      add({.compiled = true, .offload = true, .loss_chunks = kLossChunks});
  }

  // The fewest GPUs. Below one node they are doubled; nodes come whole.
  void try_more_gpus() {
    if (!options_.more_gpus) return;
    const std::int64_t now = plan_.plan.ranks();
    const std::int64_t node = std::max<std::int64_t>(1, options_.gpus_per_node);
    std::int64_t too_few = now, enough = now;
    std::optional<Remedy> best, last;
    do {
      too_few = enough;
      enough = enough < node ? std::min(2 * enough, node) : enough * 2 / node * node;
      last = best_with({.gpus = enough});
      if (!last) break;
      best = last;
    } while (best->score.verdict != Verdict::fits && 2 * enough <= kMostTimesGpus * now);
    if (!best) return;
    while (best->score.verdict == Verdict::fits && too_few >= node && enough - too_few > node) {
      const std::int64_t between = (too_few + enough) / 2 / node * node;
      if (between <= too_few) break;
      if (const auto half = best_with({.gpus = between}); half && half->score.verdict == Verdict::fits)
        best = half, enough = between;
      else too_few = between;
    }
    if (helps(best->score, plan_.score)) found_.push_back(std::move(*best));
  }

  // The longest sequence, as it is and compiled.
  void try_shorter() {
    const std::int64_t plain = longest({});
    if (options_.compile && !fits(tried({.compiled = true}))) (void)longest({.compiled = true}, plain);
  }

  [[nodiscard]] std::vector<Remedy> found() && { return std::move(found_); }

 private:
  std::optional<Score> tried(const Change& change) {
    const auto known = std::find_if(trials_.begin(), trials_.end(), [&](const auto& t) { return t.first == change; });
    if (known != trials_.end()) return known->second;
    if (options_.told) options_.told(change);
    trials_.emplace_back(change, score_changed(plan_.plan, change, changed_));
    return trials_.back().second;
  }
  // Does it make the plan, or another one, fit?
  bool add(const Change& change) {
    const std::optional<Remedy> remedy = best_with(change);
    if (remedy && helps(remedy->score, plan_.score)) found_.push_back(*remedy);
    return remedy && remedy->score.verdict == Verdict::fits;
  }

  // The plan itself, or the best that a search finds where that fits and the plan does not.
  std::optional<Remedy> best_with(const Change& change) {
    const std::optional<Score> score = tried(change);
    const bool nearly = score && score->peak_total / options_.memory_limit < kNearly;
    if (nearly && !fits(score) && options_.searched) {
      const std::optional<Candidate> other = options_.searched(change);
      if (other && other->score.verdict == Verdict::fits) return Remedy{change, other->score, other->label};
    }
    if (!score) return std::nullopt;
    return Remedy{change, *score, ""};
  }

  // The longest sequence that fits with `change`, added if it is longer than `known`; 0: none does.
  std::int64_t longest(Change change, std::int64_t known = 0) {
    const std::int64_t step = step_of(plan_.plan.seq_len);
    const auto at = [&](std::int64_t steps) {
      change.seq_len = steps * step;
      return tried(change);
    };
    std::int64_t most = (plan_.plan.seq_len - 1) / step, fitting = known / step;
    if (most <= fitting) return known;
    const std::optional<Score> shortest = at(fitting + 1);
    if (!fits(shortest)) return known;
    ++fitting;
    std::int64_t too_many = most + 1;
    while (too_many - fitting > 1) {
      const std::int64_t between = fitting + (too_many - fitting) / 2;
      (fits(at(between)) ? fitting : too_many) = between;
    }
    const std::optional<Score> score = at(fitting);  // sets `change`
    found_.push_back({change, *score, ""});
    return fitting * step;
  }

  const Candidate& plan_;
  const RemedyOptions& options_;
  const ChangeFunction& changed_;
  std::vector<std::pair<Change, std::optional<Score>>> trials_;
  std::vector<Remedy> found_;
};

}  // namespace

bool helps(const Score& score, const Score& before) {
  return score.verdict == Verdict::fits || score.peak_total / before.peak_total < kLessMemory;
}

std::optional<Score> score_changed(const ShardingPlan& plan, const Change& change, const ChangeFunction& changed) {
  try {
    const ChangedSetup setup = changed(change);
    const ShardingPlan now = with(change, plan, setup.model);
    check(now, setup.model);
    if (setup.rule) setup.rule(now);
    return score_shortened(now, setup.score);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

std::vector<Remedy> find_remedies(const Candidate& plan, const RemedyOptions& options, const ChangeFunction& changed) {
  Search search(plan, options, changed);
  search.try_other_settings();
  search.try_more_gpus();
  if (options.shorter) search.try_shorter();
  return std::move(search).found();
}

}  // namespace fsdp
