#include "planner/bound/tensor_sizes.h"

#include <limits>

#include "models/input/error.h"
#include "planner/search/scorer.h"
#include "planner/tensor/local_model.h"

namespace fsdp {
namespace {

constexpr double kNothingFits = std::numeric_limits<double>::infinity();

double taken(const SizeSearched& s) {
  return s.fits() ? gpu_seconds_per_sequence(s.result->best->plan, s.result->best->score.step) : kNothingFits;
}

Verdict verdict_of(const SizeSearched& s) {
  return s.result->best ? s.result->best->score.verdict : Verdict::does_not_fit;
}

// Where none of both fits: is it nearer to that? Tight comes before what needs more than there is.
bool nearer(const SizeSearched& s, const SizeSearched& than) {
  const Verdict now = verdict_of(s), before = verdict_of(than);
  if (now != Verdict::does_not_fit || before != now || !s.result->least || !than.result->least) return now < before;
  return s.result->least->score.peak_total < than.result->least->score.peak_total;
}

// Nothing where no bound is derived.
bool ruled_out(const SearchOptions& options, double below, const ModelGraph& model, const ClusterSpec& cluster,
               const Implementation& impl, const Costs& costs) {
  if (options.base.dialect != Dialect::fsdp2 || below == kNothingFits) return false;
  const double enough = below / static_cast<double>(options.base.tensor());
  const Space space = space_of(model, cluster, options);
  return certify(space, options.memory_limit, impl, cluster, costs, enough).seconds_per_sequence >= enough;
}

// `known`: what the best plan so far takes.
void search_size(SizeSearched& s, SearchOptions options, double known, const ModelGraph& model,
                 const ClusterSpec& cluster, const Implementation& impl, const ScoreFunction& score) {
  if (known < kNothingFits && options.effort == Effort::joint) {
    SearchOptions first = options;
    first.effort = Effort::uniform;
    s.result = search(model, cluster, impl, first, score);
    s.uniform = s.fits() && taken(s) * kWorthSplitting > known * kMostGained;
    if (s.uniform) return;
  }
  s.result = search(model, cluster, impl, options, score);
}

}  // namespace

double gpu_seconds_per_sequence(const ShardingPlan& plan, Seconds step) {
  return step.count() * static_cast<double>(plan.tensor()) / static_cast<double>(plan.sequences_per_rank());
}

std::vector<std::int64_t> tensor_sizes(const ClusterSpec& cluster) {
  std::vector<std::int64_t> sizes = {1};
  while (cluster.gpus_per_node % (2 * sizes.back()) == 0 && cluster.gpus % (2 * sizes.back()) == 0)
    sizes.push_back(2 * sizes.back());
  return sizes;
}

SizesResult search_sizes(const std::vector<std::int64_t>& sizes,
                         const std::function<SearchOptions(std::int64_t tensor)>& options_of, const ModelGraph& model,
                         const ClusterSpec& cluster, const Implementation& impl, const Costs& costs,
                         const ScoreFunction& asked) {
  const ScoreFunction score = remembering(asked);  // a joint search begins with the uniform one
  SizesResult r;
  std::optional<InputError> first_refusal;
  std::optional<std::size_t> best, searched;
  bool stopped = false;
  for (const std::int64_t tensor : sizes) {
    if (stopped && searched) break;
    SizeSearched s;
    s.tensor = tensor;
    try {
      const SearchOptions options = options_of(tensor);
      s.tensor = options.base.tensor();
      if (s.tensor > 1) (void)local_model(model, options.base);  // throws where that is not possible
      s.ruled_out = best && ruled_out(options, taken(r.sizes[*best]) / kWorthSplitting, model, cluster, impl, costs);
      if (!s.ruled_out)
        search_size(s, options, best ? taken(r.sizes[*best]) : kNothingFits, model, cluster, impl, score);
    } catch (const InputError& e) {
      s.refusal = e.what();
      if (!first_refusal) first_refusal = e;
    }
    r.sizes.push_back(std::move(s));
    const std::size_t now = r.sizes.size() - 1;
    if (!r.sizes[now].result) continue;
    stopped = r.sizes[now].result->stopped;
    if (!searched || nearer(r.sizes[now], r.sizes[*searched])) searched = now;
    if (r.sizes[now].fits() && (!best || taken(r.sizes[now]) * kWorthSplitting < taken(r.sizes[*best]))) best = now;
  }
  if (!searched) throw *first_refusal;
  r.best = best.value_or(*searched);
  r.sizes[r.best].result->stopped = stopped;
  return r;
}

}  // namespace fsdp
