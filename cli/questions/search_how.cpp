#include "cli/questions/search_how.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "cli/files.h"
#include "cli/named.h"
#include "cli/predict.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "planner/bound/tensor_sizes.h"
#include "planner/emit.h"
#include "planner/tensor/adapter_casts.h"
#include "planner/tensor/local_model.h"

namespace fsdp::cli {
namespace {

// The setup with the model that a rank computes, made once for each way to split it, to multiply in 8 bits, or to cast
// for adapters.
class Splits {
 public:
  explicit Splits(const Setup& setup) : setup_(setup) {}

  [[nodiscard]] const Setup& over(const ShardingPlan& plan) {
    if (!differs_from_local(setup_.model, plan, *setup_.implementation)) return setup_;
    const std::tuple key(plan.tensor(), plan.float8.recipe, plan.float8.all_gather, plan.reentrant,
                         adapter_types(setup_.model, plan));
    const auto [it, fresh] = split_.try_emplace(key, setup_);
    if (fresh) it->second.model = local_model(setup_.model, plan, *setup_.implementation);
    return it->second;
  }

 private:
  const Setup& setup_;
  std::map<std::tuple<std::int64_t, Float8Recipe, bool, bool, std::vector<AdapterTypes>>, Setup> split_;
};

// What flags decide of the choices that a target may not be able to say.
std::vector<std::string> decided(const Flags& f) {
  const std::pair<const Text&, std::vector<std::string>> kDecides[] = {
      {f.wrap, {"units", "reshard_after_forward"}},
      {f.reshard, {"reshard_after_forward"}},
      {f.checkpointing, {"checkpointed", "checkpoint_policy", "reentrant"}},
      {f.micro_batch, {"micro_batches"}},
      {f.grad_accum, {"micro_batches"}},
      {f.replicate, {"mesh"}},
      {f.tensor, {"tensor_plan"}},
      {f.grad_sync, {"grad_sync"}},
      {f.offload_activations, {"offload_activations"}},
      {f.offload_optimizer, {"offload_optimizer"}},
      {f.loss_chunks, {"loss_chunks"}},
      {f.loss_in_model, {"loop"}},
      {f.forward_prefetch, {"forward_prefetch"}},
      {f.reduce_scatter_buffers, {"reduce_scatter_buffers"}},
      {f.separate_reduce_scatter, {"separate_reduce_scatter"}}};
  std::vector<std::string> fields;
  for (const auto& [given, names] : kDecides)
    if (given) fields.insert(fields.end(), names.begin(), names.end());
  return fields;
}

// Throws where no plan of this dialect and these ranks can be written, whatever its choices.
void check_target(const SearchHow& how, const ShardingPlan& base, const ModelGraph& model) {
  if (how.target.empty()) return;
  try {
    (void)unsayable(how.target, base, model);
  } catch (const InputError& e) {  // others are of choices that are still open
    if (e.field() == "emit") throw how.strict ? e.at(setting("target")) : e;
  }
}

}  // namespace

std::function<void(const ShardingPlan&)> rule_of(const SearchHow& how, const Flags& flags, const ModelGraph& model) {
  if (how.target.empty()) return nullptr;
  return [target = how.target, but = how.strict ? std::vector<std::string>{} : decided(flags),
          &model](const ShardingPlan& plan) {
    const std::vector<Inexact> lost = unsayable(target, plan, model, but);
    if (lost.empty()) return;
    std::vector<std::string> each;
    for (const Inexact& i : lost) each.push_back(i.text());
    throw InputError(setting("target"), target + " cannot say " + join(each, "; "),
                     "fix other choices, or give another target");
  };
}

Flags for_target(Flags flags, const std::string& target) {
  const std::string_view runs = implementation_of(target);
  if (runs.empty() || flags.implementation || !flags.model || flags.cluster == "host") return flags;
  if (!model_from_flags(flags, 0, Notes::silent).trace.empty()) return flags;  // exported: of what its file says
  flags.implementation = std::string(runs);
  print(stderr,
        fmt::format("note: {} runs models of transformers, which are predicted: --implementation {}\n", target, runs));
  return flags;
}

std::vector<std::int64_t> tensor_tried(const Flags& flags, const Setup& setup, const SearchHow& how) {
  if (flags.tensor) return {search_from_flags(flags, setup).base.tensor()};
  const bool in_parts = flags.chunk_head == "true";  // which is not known over tensor ranks
  if (!how.splits || setup.cluster.host || in_parts) return {1};
  return tensor_sizes(setup.cluster);
}

SearchOptions options_of(const Flags& flags, const Setup& setup, const SearchHow& how, std::int64_t tensor) {
  Flags with = flags;
  if (tensor > 1) with.tensor = std::to_string(tensor);
  SearchOptions options = search_from_flags(with, setup);
  options.effort = how.effort;
  check_target(how, options.base, setup.model);
  options.rule = rule_of(how, flags, setup.model);
  options.timed = [split = Splits(setup)](const ShardingPlan& p) mutable { return time_plan(p, split.over(p)); };
  return options;
}

ScoreFunction scored_by(const Setup& setup) {
  const auto split = std::make_shared<Splits>(setup);
  return {[split](const ShardingPlan& plan) { return score_plan(plan, split->over(plan)); },
          [split](const ShardingPlan& plan) { return score_plan(plan, split->over(plan), /*tight=*/false); }};
}

}  // namespace fsdp::cli
