// Activation checkpointing's policies, by name.
//
//   policy = "none" | ( "selective-op" | "reentrant" ) [":" which] | part { "|" part }
//   part   = "full" | which | "class:" NAME [":" which]
//   which  = "every-N" | "last-of-N" | "first-N"
//
// "which" is of the blocks, or of the modules of that class, as they run: the first of every N of them, the last of
// every N (as torchtitan has it), or the first N.
//
// "reentrant" is full with use_reentrant=True, around fsdp1's units (ShardingPlan::reentrant).
//
// Joined parts recompute what any of them names; a module inside another one that is named goes with it.
#include <algorithm>
#include <set>

#include "models/graph/byte_total.h"
#include "models/graph/op_ranges.h"
#include "models/index.h"
#include "models/input/error.h"
#include "models/input/split.h"
#include "models/input/suggest.h"
#include "planner/plan_ids.h"
#include "planner/wrap.h"
#include "planner/wrap/policy.h"

namespace fsdp {
namespace {

constexpr std::string_view kSelective = "selective-op", kReentrant = "reentrant", kClass = "class:";

constexpr std::string_view kFirst = "first-", kEvery = "every-", kLastOf = "last-of-";

bool selects(std::string_view text) {
  return text.starts_with(kFirst) || text.starts_with(kEvery) || text.starts_with(kLastOf);
}

// Of `modules`, those that "every-N", "last-of-N" or "first-N" names.
std::vector<std::int32_t> selected(const std::vector<std::int32_t>& modules, std::string_view which,
                                   const std::string& of, const Origin& where) {
  const bool first = which.starts_with(kFirst), last = which.starts_with(kLastOf);
  const std::int64_t n =
      parse_count(which.substr((last ? kLastOf : kFirst).size()), where, "every-2, last-of-2 or first-8");
  const auto count = static_cast<std::int64_t>(modules.size());
  if (n > count)
    throw InputError(where, "'" + std::string(which) + "', but there are " + std::to_string(count) + " " + of,
                     "use a number up to " + std::to_string(count));
  std::vector<std::int32_t> found;
  for (std::int64_t i = 0; i < count; ++i)
    if (first ? i < n : i % n == (last ? n - 1 : 0)) found.push_back(modules[static_cast<std::size_t>(i)]);
  return found;
}

std::vector<std::int32_t> of_class(const ModelGraph& model, const std::string& name, const Origin& where) {
  std::vector<std::int32_t> found;
  for (std::size_t m = 1; m < model.modules.size(); ++m)
    if (model.modules[m].class_name == name && !model.modules[m].container &&
        model.modules[m].op_begin != model.modules[m].op_end)
      found.push_back(static_cast<std::int32_t>(m));
  if (found.empty())
    throw InputError(where, "no module of '" + model.name + "' with a forward of its own has class '" + name + "'",
                     "run `fsdp-plan show model` for the classes");
  std::stable_sort(found.begin(), found.end(),
                   [&](auto a, auto b) { return model.modules[a].op_begin < model.modules[b].op_begin; });
  return found;
}

[[noreturn]] void refuse_policy(std::string_view policy, const Origin& where) {
  throw InputError(where, "unknown activation checkpointing '" + std::string(policy) + "'",
                   "use one of: " + join(checkpointing_forms()) + "; several joined by |");
}

std::vector<std::int32_t> part_of(const ModelGraph& model, std::string_view part, const Origin& where) {
  if (part == "full") return blocks_of(model, where);
  if (selects(part)) return selected(blocks_of(model, where), part, "blocks", where);
  if (!part.starts_with(kClass)) refuse_policy(part, where);
  part.remove_prefix(kClass.size());
  const std::size_t colon = part.find(':');
  const std::string name(part.substr(0, colon));
  const std::vector<std::int32_t> all = of_class(model, name, where);
  if (colon == std::string_view::npos) return all;
  if (!selects(part.substr(colon + 1))) refuse_policy(part, where);
  return selected(all, part.substr(colon + 1), "modules of class " + name, where);
}

// In the order of the parts' modules as they run; what lies inside another goes with it.
std::vector<std::int32_t> outermost(const ModelGraph& model, std::vector<std::int32_t> modules) {
  const std::set<std::int32_t> named(modules.begin(), modules.end());
  std::erase_if(modules, [&](std::int32_t m) {
    for (std::int32_t up = model.modules[m].parent; up >= 0; up = model.modules[up].parent)
      if (named.contains(up)) return true;
    return false;
  });
  std::stable_sort(modules.begin(), modules.end(), [&](auto a, auto b) {
    return std::pair(model.modules[a].op_begin, a) < std::pair(model.modules[b].op_begin, b);
  });
  modules.erase(std::unique(modules.begin(), modules.end()), modules.end());
  return modules;
}

std::vector<std::int32_t> module_ids_of(const ModelGraph& model, std::string_view policy, const Origin& where) {
  for (const std::string_view kind : {kSelective, kReentrant}) {  // of blocks alone
    if (policy == kind) return blocks_of(model, where);
    if (!policy.starts_with(kind)) continue;
    const std::string_view which = policy.substr(std::min(policy.size(), kind.size() + 1));
    if (policy[kind.size()] != ':' || !selects(which)) refuse_policy(policy, where);
    return selected(blocks_of(model, where), which, "blocks", where);
  }
  std::vector<std::int32_t> modules;
  for (const std::string& part : split(policy, '|')) {
    const std::vector<std::int32_t> more = part_of(model, part, where);
    modules.insert(modules.end(), more.begin(), more.end());
  }
  return outermost(model, std::move(modules));
}

// Blocks that are recomputed whole, and how many modules of which class are besides.
struct Recomputed {
  std::size_t blocks = 0, parts = 0;
  std::string part_class;
  bool one_class = true;
};

Recomputed recomputed(const ShardingPlan& plan, const ModelGraph& model) {
  Recomputed r;
  for (const std::string& name : plan.checkpointed) {
    const std::int32_t m = model.find_module(name);
    if (m < 0) return {0, 0, "", false};
    if (model.modules[m].block) {
      ++r.blocks;
    } else {
      r.one_class = r.one_class && (r.parts == 0 || r.part_class == model.modules[m].class_name);
      r.part_class = model.modules[m].class_name;
      ++r.parts;
    }
  }
  return r;
}

std::vector<std::string> likely_policies(const ShardingPlan& plan, const ModelGraph& model) {
  const auto count = static_cast<std::int64_t>(plan.checkpointed.size());
  const Recomputed r = recomputed(plan, model);
  if (!r.one_class) return {};
  std::vector<std::string> found;
  if (r.parts > 0) {
    if (plan.reentrant) return {};
    const std::string parts = std::string(kClass) + r.part_class, before = "first-" + std::to_string(r.blocks) + "|";
    for (const std::string& which : {std::string(), ":first-" + std::to_string(r.blocks + r.parts)})
      found.push_back((r.blocks > 0 ? before : "") + parts + which);
    return found;
  }
  const bool selective = plan.checkpoint_policy == CheckpointPolicy::selective_op;
  const std::string kind(selective        ? kSelective
                         : plan.reentrant ? kReentrant
                                          : ""),
      prefix = kind.empty() ? "" : kind + ":";
  found = {kind.empty() ? "full" : kind, prefix + "first-" + std::to_string(count)};
  for (std::int64_t n = 2; n <= static_cast<std::int64_t>(model.modules.size()) / count; ++n)
    for (const std::string_view which : {kEvery, kLastOf})
      found.push_back(prefix + std::string(which) + std::to_string(n));
  return found;
}

}  // namespace

std::vector<std::string> checkpointing_forms() {
  return {"none",
          "full",
          "selective-op",
          "every-N",
          "last-of-N",
          "first-N",
          "selective-op:first-N",
          "class:NAME[:first-N]",
          "reentrant",
          "reentrant:first-N"};
}

std::vector<std::string> checkpointed_modules(const ModelGraph& model, std::string_view policy, const Origin& where) {
  if (policy == "none") return {};
  std::vector<std::string> names;
  for (const std::int32_t m : module_ids_of(model, policy, where)) names.push_back(model.modules[m].name);
  return names;
}

void set_checkpointing(ShardingPlan& plan, const ModelGraph& model, std::string_view policy, const Origin& where) {
  plan.checkpointed = checkpointed_modules(model, policy, where);
  plan.checkpoint_policy = policy.starts_with(kSelective) ? CheckpointPolicy::selective_op : CheckpointPolicy::full;
  plan.reentrant = policy.starts_with(kReentrant);
}

std::optional<std::string> checkpointing_policy(const ShardingPlan& plan, const ModelGraph& model) {
  if (plan.checkpointed.empty()) return "none";
  for (const std::string& policy : likely_policies(plan, model)) {
    try {
      if (checkpointed_modules(model, policy, "plan") == plan.checkpointed) return policy;
    } catch (const InputError&) {  // no repeated blocks, or fewer than n
      continue;
    }
  }
  return std::nullopt;
}

std::int64_t input_bytes(const ShardingPlan& plan, const ModelGraph& model, std::string_view module) {
  const Module& m = model.modules[at(ModuleIndex(model).find(module))];
  const Workload work{*std::max_element(plan.micro_batches.begin(), plan.micro_batches.end()), plan.seq_len,
                      size_of(plan.param_dtype)};
  ByteTotal bytes(work);
  for (const std::int32_t i : inputs_from_before(model, m.op_begin, m.op_end)) {
    const Tensor& t = model.tensors[at(i)];
    bytes.add(elements(t, work) * size_of(t.dtype.value_or(plan.param_dtype)));
  }
  return bytes.bytes();
}

void offload_activations(ShardingPlan& plan, const ModelGraph& model, Bytes budget) {
  std::int64_t left = budget.count();
  for (const std::string& module : plan.checkpointed) {
    left -= input_bytes(plan, model, module);
    if (left < 0) break;
    plan.offload_activations.push_back(module);
  }
}

}  // namespace fsdp
