#include "planner/wrap.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "models/input/error.h"
#include "models/input/split.h"
#include "models/input/suggest.h"
#include "planner/wrap/policy.h"

namespace fsdp {
namespace {

Unit root_unit() { return {{""}, Reshard::automatic}; }

// Post-order in, execution order out: by where the unit's forward ends. Inner units end no later than outer ones and
// come first in post-order, so they stay first.
void sort_by_execution(std::vector<Unit>& units, const ModelGraph& model) {
  const auto end = [&](const Unit& unit) {
    std::int32_t last = 0;
    for (const std::string& name : unit.modules) {
      const Module& m = model.modules[model.find_module(name)];
      if (m.op_begin != m.op_end) last = std::max(last, m.op_end);
    }
    return last;
  };
  std::vector<std::pair<std::int32_t, Unit>> keyed;
  for (Unit& unit : units) keyed.emplace_back(end(unit), std::move(unit));
  std::stable_sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < units.size(); ++i) units[i] = std::move(keyed[i].second);
}

// One unit per chosen module plus the root. A module whose parameters inner units have claimed already, or that are all
// ignored, would be a unit without collectives, so it is left out.
std::vector<Unit> units_of(const ModelGraph& model, const std::vector<char>& chosen,
                           const std::vector<std::int32_t>& ignored = {}) {
  const std::vector<char> left_out = with_descendants(model, ignored);
  const auto none = static_cast<std::int32_t>(model.modules.size());
  std::vector<std::int32_t> claimant(model.modules.size(), none);  // innermost chosen module around each
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    claimant[m] = m != 0 && chosen[m] ? static_cast<std::int32_t>(m)
                  : m == 0            ? none
                                      : claimant[model.modules[m].parent];
  }
  std::vector<char> has_parameters(model.modules.size() + 1, 0);
  for (const Parameter& p : model.parameters) {
    const auto out = [&](std::int32_t owner) { return left_out[owner] != 0; };
    if (std::any_of(p.modules.begin(), p.modules.end(), out)) continue;
    for (const std::int32_t owner : p.modules) has_parameters[claimant[owner]] = 1;
  }
  std::vector<Unit> units;
  for (const std::int32_t m : post_order(model)) {
    if (m != 0 && chosen[m] && has_parameters[m]) units.push_back({{model.modules[m].name}, Reshard::automatic});
  }
  sort_by_execution(units, model);
  units.push_back(root_unit());
  return units;
}

// The classes that modules of the model have, for messages.
std::string class_list(const ModelGraph& model) {
  std::set<std::string> there;
  for (std::size_t m = 1; m < model.modules.size(); ++m) {
    if (!model.modules[m].container) there.insert(model.modules[m].class_name);
  }
  std::string list;
  for (const std::string& c : there) list += (list.empty() ? "" : ", ") + c;
  return list;
}

bool has_class(const ModelGraph& model, const std::string& name) {
  return std::any_of(model.modules.begin() + 1, model.modules.end(),
                     [&](const Module& m) { return m.class_name == name; });
}

void require_class(const ModelGraph& model, const std::string& name, const Origin& where) {
  if (has_class(model, name)) return;
  throw InputError(where, "no module of '" + model.name + "' has class '" + name + "'",
                   "its classes are " + class_list(model));
}

// A container runs no forward, so nothing would ever gather it.
void refuse_containers(const ModelGraph& model, const std::vector<char>& chosen, const Origin& where,
                       const std::string& remedy) {
  for (std::size_t m = 1; m < model.modules.size(); ++m) {
    if (chosen[m] && model.modules[m].container)
      throw InputError(where, "a " + model.modules[m].class_name + " has no forward of its own and cannot be a unit",
                       remedy);
  }
}

WrapPolicy class_policy(const ModelGraph& model, const std::vector<std::string>& classes, const Origin& where) {
  WrapPolicy policy;
  policy.wanted.assign(model.modules.size(), 0);
  for (const std::string& wanted : classes) {
    require_class(model, wanted, where);
    for (std::size_t m = 1; m < model.modules.size(); ++m)
      policy.wanted[m] = policy.wanted[m] || model.modules[m].class_name == wanted;
  }
  refuse_containers(model, policy.wanted, where, "name the class of the modules inside it");
  return policy;
}

WrapPolicy block_policy(const ModelGraph& model, const Origin& where) {
  WrapPolicy policy;
  policy.wanted.assign(model.modules.size(), 0);
  for (std::int32_t b : blocks_of(model, where)) policy.wanted[b] = 1;
  return policy;
}

bool is_trained(const Parameter& p) { return p.trainable; }

void require_adapters(const ModelGraph& model, const Origin& where) {
  if (std::all_of(model.parameters.begin(), model.parameters.end(), is_trained))
    throw InputError(where, "'" + model.name + "' has no adapters beside frozen weights", "add --lora, or use block");
}

// peft's fsdp_auto_wrap_policy: modules without children whose weight is trained.
WrapPolicy adapter_policy(const ModelGraph& model, const Origin& where) {
  require_adapters(model, where);
  WrapPolicy policy;
  policy.wanted.assign(model.modules.size(), 0);
  for (const Parameter& p : model.parameters)
    if (p.trainable && p.name.ends_with(".weight")) policy.wanted[p.modules.front()] = 1;
  for (const Module& m : model.modules)
    if (m.parent >= 0) policy.wanted[m.parent] = 0;
  return policy;
}

std::vector<Unit> wrap_blocks_at(const ModelGraph& model, std::int64_t blocks_per_unit, const Origin& where) {
  const std::vector<std::int32_t> blocks = blocks_of(model, where);
  const auto count = static_cast<std::int64_t>(blocks.size());
  if (blocks_per_unit < 1 || blocks_per_unit > count) {
    throw InputError(
        where,
        std::to_string(blocks_per_unit) + " blocks per unit, but '" + model.name + "' has " + std::to_string(count),
        "use 1 to " + std::to_string(count));
  }
  std::vector<Unit> units;
  for (std::int64_t b = 0; b < count; ++b) {
    if (b % blocks_per_unit == 0) units.emplace_back();
    units.back().modules.push_back(model.modules[blocks[b]].name);
  }
  units.push_back(root_unit());
  return units;
}

// "1e8", "1e8;leaf=A,B", "1e8;exclude=C", both: "leaf=" alone is an empty set.
WrapPolicy size_policy(const ModelGraph& model, std::string_view text, const Origin& where) {
  const std::vector<std::string> parts = split(text, ';');
  WrapPolicy policy;
  policy.min_params = parse_count(parts.front(), where, "params:1e8");
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t equals = parts[i].find('=');
    const std::string key = parts[i].substr(0, equals);
    if (equals == std::string::npos || (key != "leaf" && key != "exclude"))
      throw InputError(where, "'" + parts[i] + "' after params:N is neither leaf=... nor exclude=...",
                       "write it like params:1e8;leaf=LlamaMLP;exclude=ModuleList,ModuleDict");
    std::set<std::string>& names = key == "leaf" ? policy.leaf : policy.exclude;
    const std::set<std::string> defaults = names;
    names.clear();
    if (equals + 1 == parts[i].size()) continue;
    for (const std::string& c : split(std::string_view(parts[i]).substr(equals + 1), ',')) {
      if (!defaults.contains(c)) require_class(model, c, where);
      names.insert(c);
    }
  }
  return policy;
}

std::vector<std::int32_t> module_ids(const ModelGraph& model, const std::vector<std::string>& names,
                                     const Origin& where) {
  std::vector<std::int32_t> ids;
  for (const std::string& name : names) {
    const std::int32_t id = model.find_module(name);
    if (id < 0)
      throw InputError(where, "no module is named '" + name + "'", "run `fsdp-plan show model NAME` for the names");
    ids.push_back(id);
  }
  return ids;
}

// Policies joined by '|': what any of them wants.
std::vector<Unit> wrap_any(const ModelGraph& model, std::string_view text, const Origin& where,
                           const std::vector<std::string>& ignored) {
  std::vector<WrapPolicy> policies;
  bool around = false;  // one more unit, of what is trained
  for (const std::string& part : split(text, '|')) {
    const std::string_view policy(part);
    if (policy == "block") {
      policies.push_back(block_policy(model, where));
    } else if (policy == "adapters") {
      policies.push_back(adapter_policy(model, where));
    } else if (policy == kTrainedOutermost) {
      require_adapters(model, where);
      around = true;
    } else if (policy.starts_with("class:") && policy.find('=') == std::string_view::npos) {
      policies.push_back(class_policy(model, split(policy.substr(6), ','), where));
    } else if (policy.starts_with("params:")) {
      policies.push_back(size_policy(model, policy.substr(7), where));
    } else {
      throw InputError(where, "'" + part + "' cannot be joined with other policies",
                       "join block, class:Name[,Name], params:N, adapters and trained-outermost by |");
    }
  }
  const std::vector<std::int32_t> left_out = module_ids(model, ignored, where);
  const std::vector<char> chosen = choose(model, policies, left_out);
  refuse_containers(model, chosen, where, "add its class to exclude=");
  std::vector<Unit> units = units_of(model, chosen, left_out);
  if (around) units.push_back(root_unit());
  return units;
}

// "A,B=false,C=8": each class with the setting of its units, automatic where none is given.
std::vector<Unit> wrap_custom(const ModelGraph& model, std::string_view text, const Origin& where,
                              const std::vector<std::string>& ignored) {
  std::map<std::string, Reshard> setting;
  std::vector<std::string> classes;
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    classes.push_back(part.substr(0, equals));
    const Reshard reshard =
        equals == std::string::npos ? Reshard::automatic : parse_reshard(part.substr(equals + 1), where);
    if (!setting.emplace(classes.back(), reshard).second)
      throw InputError(where, "class '" + classes.back() + "' is named twice", "name it once");
  }
  const std::vector<std::int32_t> left_out = module_ids(model, ignored, where);
  std::vector<Unit> units = units_of(model, choose(model, {class_policy(model, classes, where)}, left_out), left_out);
  for (std::size_t u = 0; u + 1 < units.size(); ++u)
    units[u].reshard_after_forward = setting.at(model.modules[model.find_module(units[u].modules.front())].class_name);
  return units;
}

struct HeadModules {
  std::int32_t embedding = -1, norm = -1, head = -1;
};

// Modules found by their ops, not by name: the one that looks up the ids, the one that makes the logits, and the one
// that normalises the head's input.
HeadModules find_head(const ModelGraph& model) {
  HeadModules found;
  std::vector<std::int32_t> producer(model.tensors.size(), -1);
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    for (const std::int32_t t : model.ops[i].outputs) producer[t] = static_cast<std::int32_t>(i);
    if (model.ops[i].kind == OpKind::embedding && found.embedding < 0) found.embedding = model.ops[i].module;
  }
  if (model.ops.empty() || model.ops.back().kind != OpKind::cross_entropy) return found;
  const std::int32_t logits = producer[model.ops.back().inputs.front()];
  if (logits < 0 || model.ops[logits].kind != OpKind::linear) return found;
  found.head = model.ops[logits].module;
  const std::int32_t before = producer[model.ops[logits].inputs.front()];
  if (before >= 0 && (model.ops[before].kind == OpKind::rms_norm || model.ops[before].kind == OpKind::layer_norm))
    found.norm = model.ops[before].module;
  return found;
}

enum class Argument : std::uint8_t { none, optional };
struct Policy {
  std::string_view name;  // before the colon
  Argument argument;
  std::vector<Unit> (*make)(const ModelGraph&, std::string_view argument, const Origin& where);
};

// An empty argument stands for none given.
constexpr Policy kPolicies[] = {
    {"block", Argument::optional,
     [](const ModelGraph& m, std::string_view a, const Origin& w) {
       return wrap_blocks_at(m, a.empty() ? 1 : parse_count(a, w, "block:2"), w);
     }},
    {"root", Argument::none, [](const ModelGraph& m, std::string_view, const Origin&) { return wrap_root(m); }},
    {"titan", Argument::none, [](const ModelGraph& m, std::string_view, const Origin&) { return wrap_titan(m); }},
};

}  // namespace

std::vector<std::string> wrap_forms() {
  return {"block", "block:N",  "class:NAME[=RESHARD][,NAME]", "params:1e8[;leaf=NAME][;exclude=NAME]", "root",
          "titan", "adapters", std::string(kTrainedOutermost)};
}

std::vector<std::string> wrap_words() {
  return {"block", "block:2", "titan", "root", "class:", "params:1e8", "block|adapters", "block|trained-outermost"};
}

std::vector<Unit> wrap(const ModelGraph& model, std::string_view policy, const Origin& where,
                       const std::vector<std::string>& ignored) {
  const std::size_t colon = policy.find(':');
  const std::string_view head = policy.substr(0, colon);
  const std::string_view argument = colon == std::string_view::npos ? std::string_view{} : policy.substr(colon + 1);
  if (policy.find('|') != std::string_view::npos || policy == "adapters" || policy == kTrainedOutermost)
    return wrap_any(model, policy, where, ignored);
  if (head == "params" && !argument.empty()) return wrap_any(model, policy, where, ignored);
  if (head == "class" && !argument.empty()) return wrap_custom(model, argument, where, ignored);
  for (const Policy& p : kPolicies) {
    if (p.name != head) continue;
    const bool given = colon != std::string_view::npos;
    if (given && (argument.empty() || p.argument == Argument::none)) break;
    return p.make(model, argument, where);
  }
  throw InputError(where, "unknown wrap policy '" + std::string(policy) + "'",
                   "use one of: " + join(wrap_forms()) + "; several joined by |");
}

void set_units(ShardingPlan& plan, std::vector<Unit> units) {
  const std::size_t n = units.size();
  plan.trained_outermost = n > 1 && units[n - 1].modules == units[n - 2].modules;
  plan.units = std::move(units);
}

std::vector<Unit> wrap_blocks(const ModelGraph& model, std::int64_t blocks_per_unit) {
  return wrap_blocks_at(model, blocks_per_unit, "wrap");
}

std::vector<Unit> wrap_classes(const ModelGraph& model, const std::vector<std::string>& classes) {
  return units_of(model, choose(model, {class_policy(model, classes, "wrap")}, {}));
}

std::vector<Unit> wrap_root(const ModelGraph&) { return {root_unit()}; }

std::vector<Unit> wrap_by_size(const ModelGraph& model, std::int64_t min_num_params) {
  WrapPolicy policy;
  policy.min_params = min_num_params;
  return units_of(model, choose(model, {policy}, {}));
}

// As torchtitan's apply_fsdp: the last group is not resharded after forward (backward needs it at once).
std::vector<Unit> with_ends(const ModelGraph& model, std::vector<Unit> units) {
  const HeadModules found = find_head(model);
  if (!units.empty() && units.back().modules == root_unit().modules) units.pop_back();
  const auto name_of = [&](std::int32_t id) { return model.modules[id].name; };
  const auto is_free = [&](std::int32_t id) {
    return std::none_of(units.begin(), units.end(), [&](const Unit& u) {
      return std::find(u.modules.begin(), u.modules.end(), name_of(id)) != u.modules.end();
    });
  };
  const bool usable = found.embedding > 0 && found.head > 0;  // modules of their own
  bool tied = false;
  for (const Parameter& p : model.parameters) {
    const auto owned_by = [&](std::int32_t id) {
      return std::find(p.modules.begin(), p.modules.end(), id) != p.modules.end();
    };
    tied = tied || (owned_by(found.embedding) && owned_by(found.head));
  }
  if (usable) {
    Unit last{{}, Reshard::no};
    const bool own_embedding = is_free(found.embedding);
    if (tied && own_embedding) last.modules.push_back(name_of(found.embedding));
    if (found.norm > 0 && is_free(found.norm)) last.modules.push_back(name_of(found.norm));
    if (found.head != found.embedding && is_free(found.head)) last.modules.push_back(name_of(found.head));
    if (!tied && own_embedding) units.push_back({{name_of(found.embedding)}, Reshard::automatic});
    if (!last.modules.empty()) units.push_back(std::move(last));
  }
  sort_by_execution(units, model);
  units.push_back(root_unit());
  return units;
}

std::vector<Unit> wrap_titan(const ModelGraph& model) { return with_ends(model, wrap_blocks_at(model, 1, "wrap")); }

bool needs_adapter_units(const ModelGraph& model, Dialect dialect) {
  const std::vector<Parameter>& all = model.parameters;
  return dialect == Dialect::fsdp1 && std::any_of(all.begin(), all.end(), is_trained) &&
         !std::all_of(all.begin(), all.end(), is_trained);
}

}  // namespace fsdp
