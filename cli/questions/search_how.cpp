#include "cli/questions/search_how.h"

#include <map>
#include <string>
#include <tuple>

#include "cli/predict.h"
#include "planner/bound/tensor_sizes.h"
#include "planner/tensor/local_model.h"

namespace fsdp::cli {
namespace {

// The setup with the model that a rank computes, made once for each way to split it or to
// multiply in 8 bits.
class Splits {
 public:
  explicit Splits(const Setup& setup) : setup_(setup) {}

  [[nodiscard]] const Setup& over(const ShardingPlan& plan) {
    if (!differs_from_local(setup_.model, plan)) return setup_;
    const std::tuple key(plan.tensor(), plan.float8.recipe, plan.float8.all_gather);
    const auto [it, fresh] = split_.try_emplace(key, setup_);
    if (fresh) it->second.model = local_model(setup_.model, plan);
    return it->second;
  }

 private:
  const Setup& setup_;
  std::map<std::tuple<std::int64_t, Float8Recipe, bool>, Setup> split_;
};

}  // namespace

std::vector<std::int64_t> tensor_tried(const Flags& flags, const Setup& setup, const SearchHow& how) {
  if (flags.tensor) return {search_from_flags(flags, setup).base.tensor()};
  if (!how.splits || setup.cluster.host) return {1};
  return tensor_sizes(setup.cluster);
}

SearchOptions options_of(const Flags& flags, const Setup& setup, const SearchHow& how, std::int64_t tensor) {
  Flags with = flags;
  if (tensor > 1) with.tensor = std::to_string(tensor);
  SearchOptions options = search_from_flags(with, setup);
  options.effort = how.effort;
  options.timed = [split = Splits(setup)](const ShardingPlan& p) mutable { return time_plan(p, split.over(p)); };
  return options;
}

ScoreFunction scored_by(const Setup& setup) {
  return [split = Splits(setup)](const ShardingPlan& plan) mutable { return score_plan(plan, split.over(plan)); };
}

}  // namespace fsdp::cli
