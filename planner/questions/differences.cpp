#include "planner/questions/differences.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "models/input/error.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

bool same_units(const std::vector<Unit>& a, const std::vector<Unit>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Unit& x, const Unit& y) { return x.modules == y.modules; });
}

// The units of a plan's wrap policy; empty: it has none, or is of other units.
std::vector<Unit> units_of_policy(const ShardingPlan& p, const ModelGraph& model) {
  try {
    std::vector<Unit> units = wrap(model, p.wrap, setting("wrap"), p.ignored);
    return same_units(units, p.units) ? units : std::vector<Unit>();
  } catch (const InputError&) {
    return {};
  }
}

// How a plan reshards, in one word for all units: automatic, where they are as the policy says; nullopt: none does.
std::optional<Reshard> way_of_resharding(const ShardingPlan& p, const ModelGraph& model) {
  const auto equal_to = [&](auto&& wanted) {
    for (std::size_t u = 0; u < p.units.size(); ++u)
      if (p.units[u].reshard_after_forward != wanted(u)) return false;
    return true;
  };
  const std::vector<Unit> policy = units_of_policy(p, model);
  if (!policy.empty() && equal_to([&](std::size_t u) { return policy[u].reshard_after_forward; }))
    return Reshard::automatic;
  if (!p.units.empty() && equal_to([&](std::size_t) { return p.units.front().reshard_after_forward; }))
    return p.units.front().reshard_after_forward;
  return std::nullopt;
}

void reshard_all(ShardingPlan& p, Reshard way, const ModelGraph& model) {
  const std::vector<Unit> policy = way == Reshard::automatic ? units_of_policy(p, model) : std::vector<Unit>();
  for (std::size_t u = 0; u < p.units.size(); ++u)
    p.units[u].reshard_after_forward = policy.empty() ? way : policy[u].reshard_after_forward;
}

std::string units_text(const ShardingPlan& p, const ModelGraph&) {
  return fmt::format("{} ({} unit{})", p.wrap.empty() ? "as listed" : p.wrap, p.units.size(),
                     p.units.size() == 1 ? "" : "s");
}

// Resharded as before, where that can be said of other units.
void take_units(ShardingPlan& p, const ShardingPlan& from, const ModelGraph& model) {
  if (same_units(p.units, from.units)) return;  // the name of a policy decides nothing
  const std::optional<Reshard> own = way_of_resharding(p, model);
  p.units = from.units;
  p.wrap = from.wrap;
  p.share_comm_context = from.share_comm_context;  // which of them are roots
  p.trained_outermost = from.trained_outermost;    // and what they hold
  if (own && way_of_resharding(from, model)) reshard_all(p, *own, model);
}

std::string reshard_text(const ShardingPlan& p, const ModelGraph& model) {
  if (const auto all = way_of_resharding(p, model)) return std::string(name(*all));
  const auto kept = std::count_if(p.units.begin(), p.units.end(),
                                  [](const Unit& u) { return u.reshard_after_forward == Reshard::no; });
  return fmt::format("per unit ({} kept gathered)", kept);
}

// As each unit has it, or, of other units, the one way that all have.
void take_reshard(ShardingPlan& p, const ShardingPlan& from, const ModelGraph& model) {
  if (same_units(p.units, from.units)) {
    for (std::size_t u = 0; u < p.units.size(); ++u)
      p.units[u].reshard_after_forward = from.units[u].reshard_after_forward;
  } else if (const auto all = way_of_resharding(from, model)) {
    reshard_all(p, *all, model);
  }
}

// Every switch of a unit but for its modules and resharding after forward.
std::string switches_text(const ShardingPlan& p, const ModelGraph&) {
  const auto count = [&](auto&& chosen) { return std::count_if(p.units.begin(), p.units.end(), chosen); };
  const auto own =
      count([](const Unit& u) { return u.param_dtype || u.reduce_dtype || u.output_dtype || !u.cast_forward_inputs; });
  return fmt::format("{} kept between micro-batches, {} not gathered for backward",
                     count([](const Unit& u) { return !u.reshard_after_backward; }),
                     count([](const Unit& u) { return !u.unshard_in_backward; })) +
         (own > 0 ? fmt::format(", {} with dtypes of their own", own) : "");
}
void take_switches(ShardingPlan& p, const ShardingPlan& from, const ModelGraph&) {
  if (!same_units(p.units, from.units)) return;  // they come with the units
  for (std::size_t u = 0; u < p.units.size(); ++u) {
    const Reshard own = p.units[u].reshard_after_forward;
    p.units[u] = from.units[u];
    p.units[u].reshard_after_forward = own;
  }
}

std::string batch_text(const ShardingPlan& p, const ModelGraph&) {
  const auto& sizes = p.micro_batches;
  if (sizes.empty()) return "none";
  const bool equal = std::all_of(sizes.begin(), sizes.end(), [&](std::int64_t s) { return s == sizes.front(); });
  if (!equal) return fmt::format("{}", fmt::join(sizes, "+"));
  return sizes.size() == 1 ? std::to_string(sizes.front()) : fmt::format("{} x {}", sizes.front(), sizes.size());
}

std::string mesh_text(const ShardingPlan& p, const ModelGraph&) {
  return fmt::format("{} x {}{}", p.replicate(), p.shard(), p.tensor() > 1 ? fmt::format(" x {}", p.tensor()) : "");
}

// The dimension along which experts are split follows the mesh.
void take_mesh(ShardingPlan& p, const ShardingPlan& from, const ModelGraph& model) {
  const bool usual = p.shard_dims == expert_shard_dims(model, p.dialect, p.shard());
  p.mesh = from.mesh;
  p.tensor_plan = from.tensor_plan;
  if (usual) p.shard_dims = expert_shard_dims(model, p.dialect, p.shard());
}

std::string word(bool on) { return on ? "yes" : "no"; }

std::string optimizer_words(const ShardingPlan& p, const ModelGraph&) {
  return fmt::format("{}, lr {}, weight decay {}, clip {}", name(p.optimizer.kind), p.optimizer.lr,
                     p.optimizer.weight_decay, p.clip_norm ? fmt::format("{}", *p.clip_norm) : "none");
}

std::string float8_words(const Float8Plan& f) {
  return fmt::format("{}{}{}", name(f.recipe), f.all_gather ? ", gathered in 8 bits" : "",
                     f.precomputed_scales ? ", scales ahead" : "");
}

using Plan = ShardingPlan;

// One choice. `text` says what a plan has chosen; `take` gives a plan the choice of another.
struct Row {
  const char* choice;
  std::string (*text)(const Plan&, const ModelGraph&);
  void (*take)(Plan&, const Plan& from, const ModelGraph&);
  bool other_training = false;
};

// A choice that is one field.
template <auto field>
void take(Plan& p, const Plan& from, const ModelGraph&) {
  p.*field = from.*field;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {"dialect", [](const Plan& p, const ModelGraph&) { return dialect_text(p); },
       [](Plan& p, const Plan& from, const ModelGraph&) {
         p.dialect = from.dialect, p.torch = from.torch;
         p.backward_post = from.backward_post, p.limit_all_gathers = from.limit_all_gathers;
         p.use_orig_params = from.use_orig_params;
       }},
      {"wrap", units_text, take_units},
      {"reshard after forward", reshard_text, take_reshard},
      {"switches of units", switches_text, take_switches},
      {"micro-batch", batch_text, take<&Plan::micro_batches>},
      {"gradient sync", [](const Plan& p, const ModelGraph&) { return std::string(name(p.grad_sync)); },
       take<&Plan::grad_sync>},
      {"forward prefetch", [](const Plan& p, const ModelGraph&) { return std::to_string(p.forward_prefetch); },
       take<&Plan::forward_prefetch>},
      {"backward prefetch", [](const Plan& p, const ModelGraph&) { return std::to_string(p.backward_prefetch); },
       take<&Plan::backward_prefetch>},
      {"reduce-scatter buffers",
       [](const Plan& p, const ModelGraph&) { return std::to_string(p.reduce_scatter_buffers); },
       take<&Plan::reduce_scatter_buffers>},
      {"communicator for reduce-scatter",
       [](const Plan& p, const ModelGraph&) { return word(p.separate_reduce_scatter); },
       take<&Plan::separate_reduce_scatter>},
      {"streams shared by several roots", [](const Plan& p, const ModelGraph&) { return word(p.share_comm_context); },
       [](Plan& p, const Plan& from, const ModelGraph&) {
         if (p.units == from.units) p.share_comm_context = from.share_comm_context;
       }},
      {"what the loop does by hand",
       [](const Plan& p, const ModelGraph&) {
         return p.loop == LoopPlan{} ? std::string("nothing") : loop_text(p.loop);
       },
       take<&Plan::loop>},
      {"loss chunks", [](const Plan& p, const ModelGraph&) { return std::to_string(p.loss_chunks); },
       take<&Plan::loss_chunks>},
      {"activation checkpointing",
       [](const Plan& p, const ModelGraph& model) {
         return checkpointing_policy(p, model).value_or(
                    fmt::format("of {} modules{}", p.checkpointed.size(), p.reentrant ? ", reentrant" : "")) +
                (p.offload_activations.empty()
                     ? ""
                     : fmt::format(", inputs of {} in host memory", p.offload_activations.size()));
       },
       [](Plan& p, const Plan& from, const ModelGraph&) {
         p.checkpointed = from.checkpointed, p.checkpoint_policy = from.checkpoint_policy;
         p.reentrant = from.reentrant;
         p.offload_activations = from.offload_activations;
       }},
      {"mesh", mesh_text, take_mesh},
      {"offload",
       [](const Plan& p, const ModelGraph&) {
         return p.offload_optimizer ? std::string("optimizer states") : word(p.offload);
       },
       [](Plan& p, const Plan& from, const ModelGraph&) {
         p.offload = from.offload, p.offload_optimizer = from.offload_optimizer;
       }},
      {"rarer fields",
       [](const Plan& p, const ModelGraph&) {
         return fmt::format("{} ignored, {} split along another dimension, {}", p.ignored.size(), p.shard_dims.size(),
                            p.force_sum_reduction ? "sums divided afterwards" : "averages");
       },
       [](Plan& p, const Plan& from, const ModelGraph&) {
         p.ignored = from.ignored, p.force_sum_reduction = from.force_sum_reduction;
         if (p.mesh == from.mesh) p.shard_dims = from.shard_dims;
       }},
      {"dtypes",
       [](const Plan& p, const ModelGraph&) {
         return fmt::format("{}, reduced in {}, kept in {}", name(p.param_dtype), name(p.reduce_dtype), kept_words(p));
       },
       [](Plan& p, const Plan& from, const ModelGraph&) {
         p.param_dtype = from.param_dtype, p.reduce_dtype = from.reduce_dtype, p.master_dtype = from.master_dtype;
         p.trained_dtype = from.trained_dtype;
       },
       true},
      {"products in 8 bits", [](const Plan& p, const ModelGraph&) { return float8_words(p.float8); },
       take<&Plan::float8>, true},
      {"optimizer", optimizer_words,
       [](Plan& p, const Plan& from, const ModelGraph&) {
         p.optimizer = from.optimizer, p.clip_norm = from.clip_norm, p.clip_norm_type = from.clip_norm_type;
       },
       true},
  };
  return kRows;
}

}  // namespace

std::vector<Difference> differences(const ShardingPlan& chosen, const ShardingPlan& other, const ModelGraph& model) {
  std::vector<Difference> found;
  for (const Row& row : rows()) {
    ShardingPlan alone = chosen;
    row.take(alone, other, model);
    if (alone == chosen) continue;
    found.push_back(
        {row.choice, row.text(chosen, model), row.text(other, model), std::move(alone), row.other_training});
  }
  return found;
}

}  // namespace fsdp
