#include "planner/plan/check_optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "models/input/limits.h"
#include "models/units.h"
#include "planner/layout/optimizer_state.h"
#include "planner/plan/refusal.h"

namespace fsdp {
namespace {

// ShardingPlan::offload_optimizer.
void check_offload(const ShardingPlan& plan, const OptimizerFacts& facts, std::string_view where) {
  if (plan.offload)
    refuse(where, "offload_optimizer", "offload keeps the optimizer's states in host memory already",
           "set one of both to false");
  if (state_count(plan.optimizer) == 0)
    refuse(where, "offload_optimizer", fmt::format("{} keeps no states", facts.name), "set it to false");
  if (facts.eight_bit_block > 0)
    refuse(where, "offload_optimizer",
           fmt::format("how the states of {} ({}) move to host memory is not known", facts.name, facts.python),
           "set it to false, or use adamw");
}

}  // namespace

void check_optimizer(const ShardingPlan& plan, std::string_view where) {
  const Optimizer& o = plan.optimizer;
  const OptimizerFacts& facts = facts_of(o.kind);
  const auto require = [&](bool ok, const char* key, double value, const char* remedy) {
    if (!ok || !std::isfinite(value)) refuse(where, key, std::to_string(value) + " is out of range", remedy);
  };
  require(o.lr > 0 && o.lr <= kMostOfOptimizer, "optimizer.lr", o.lr, "use a number above 0, of at most 1e6");
  require(o.beta1 >= 0 && o.beta1 < 1, "optimizer.beta1", o.beta1, "use a number in [0, 1)");
  require(o.beta2 >= 0 && o.beta2 < 1, "optimizer.beta2", o.beta2, "use a number in [0, 1)");
  require(o.eps > 0, "optimizer.eps", o.eps, "use a finite number above 0");
  require(o.weight_decay >= 0 && o.weight_decay <= kMostOfOptimizer, "optimizer.weight_decay", o.weight_decay,
          "use a number from 0 to 1e6");
  require(o.momentum >= 0 && o.momentum < 1, "optimizer.momentum", o.momentum, "use a number in [0, 1); 0 is none");
  if (o.momentum != 0 && !facts.takes_momentum)
    refuse(where, "optimizer.momentum", fmt::format("{} is given, which {} does not take", o.momentum, facts.name),
           "leave it out (AdamW has beta1), or use sgd");
  if (plan.offload_optimizer) check_offload(plan, facts, where);
  if (facts.eight_bit_block == 0) return;
  if (plan.dialect != Dialect::fsdp2)
    refuse(where, "optimizer.kind",
           fmt::format("what {} ({}) keeps is known for fsdp2's shards, not under {}", facts.name, facts.python,
                       name(plan.dialect)),
           "use fsdp2, or adamw");
  if (plan.offload)
    refuse(where, "offload",
           fmt::format("where {} ({}) works on offloaded shards is not known", facts.name, facts.python),
           "set offload to false, or use adamw");
}

void check_optimizer(const ShardingPlan& plan, const ModelGraph& model, const std::vector<UnitLayout>& layouts,
                     std::string_view where) {
  const OptimizerFacts& facts = facts_of(plan.optimizer.kind);
  if (facts.eight_bit_block == 0) return;
  for (const UnitLayout& layout : layouts)
    for (const ShardedParam& p : layout.params) {
      if (!p.trainable || p.rows % p.chunk_rows == 0) continue;
      const std::int64_t rank = p.rows / p.chunk_rows, elements = p.local_elements(rank);  // the short one
      const std::int64_t first =
                             state_bytes(plan.optimizer.kind, p.local_elements(0), plan.kept_dtype(/*trained=*/true)),
                         here = state_bytes(plan.optimizer.kind, elements, plan.kept_dtype(/*trained=*/true));
      if (here > first)
        refuse(where, "optimizer.kind",
               fmt::format("rank {} of a shard group holds {} elements of '{}', no multiple of {}: {} keeps their "
                           "state unquantized, and more than rank 0, whose memory is predicted",
                           rank, with_commas(elements), model.parameters[static_cast<std::size_t>(p.param)].name,
                           facts.eight_bit_block, facts.python),
               "use a number of shards that divides the parameter, or adamw");
    }
}

}  // namespace fsdp
