#include "planner/wrap/fsdp_rules.h"

#include <algorithm>

#include "planner/wrap.h"

namespace fsdp {

std::string rule_pattern(std::string_view name) {
  std::string out;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    if (begin > 0) out += '.';
    out += number ? std::string_view("*") : part;
    begin = end + 1;
  }
  return out;
}

bool rule_names(std::string_view rule, std::string_view module) {
  return !module.empty() && (rule == module || rule == rule_pattern(module));
}

namespace {

struct Tied {
  std::string embedding, head;  // empty where they share no weight
};

Tied tied_modules(const ModelGraph& model) {
  for (const Unit& u : with_ends(model, wrap_root(model)))
    for (const Parameter& p : model.parameters) {
      const auto inside = [&](std::int32_t m) {
        return std::find(u.modules.begin(), u.modules.end(), model.modules[m].name) != u.modules.end();
      };
      if (p.modules.size() > 1 && inside(p.modules.front()) && inside(p.modules.back()))
        return {model.modules[p.modules.front()].name, model.modules[p.modules.back()].name};
    }
  return {};
}

}  // namespace

bool is_norm_and_head(const Unit& unit, const ModelGraph& model) {
  const bool named = std::any_of(unit.modules.begin(), unit.modules.end(),
                                 [](const std::string& n) { return n == "norm" || n.ends_with(".norm"); });
  if (unit.modules.size() < 2 || unit.reshard_after_forward != Reshard::no || !named) return false;
  const std::vector<Unit> ends = with_ends(model, wrap_root(model));
  return std::any_of(ends.begin(), ends.end(), [&](const Unit& u) { return u.modules == unit.modules; });
}

std::vector<Unit> units_of_rules(const FsdpRules& given, const ModelGraph& model) {
  std::vector<Unit> units;
  std::vector<std::string> kept;
  FsdpRules rules = given;
  const Tied tied = tied_modules(model);
  if (!tied.embedding.empty()) {
    rules.erase(tied.embedding);
    if (const auto head = rules.find(tied.head); head != rules.end() && head->second) {
      rules.erase(head);
      units.push_back({{tied.embedding, tied.head}, Reshard::no});
      kept = {tied.embedding, tied.head};
    }
  }
  for (const Module& m : model.modules) {
    const auto rule =
        std::find_if(rules.begin(), rules.end(), [&](const auto& r) { return rule_names(r.first, m.name); });
    if (rule == rules.end()) continue;
    units.push_back({{m.name}, rule->second ? Reshard::no : Reshard::yes});
    if (rule->second) kept.push_back(m.name);
  }
  const std::vector<Unit> ends = with_ends(model, wrap_root(model));
  const auto tail = std::find_if(ends.begin(), ends.end(), [&](const Unit& u) { return is_norm_and_head(u, model); });
  if (tail != ends.end()) {
    std::vector<std::string> wanted = tail->modules;
    std::sort(wanted.begin(), wanted.end());
    std::sort(kept.begin(), kept.end());
    if (kept == wanted) {
      std::erase_if(units, [](const Unit& u) { return u.reshard_after_forward == Reshard::no; });
      units.push_back(*tail);
    }
  }
  // Inner before outer, else as their forwards end.
  const auto key = [&](const Unit& u) {
    std::int32_t last = 0;
    for (const std::string& name : u.modules) last = std::max(last, model.modules[model.find_module(name)].op_end);
    return std::pair(last, -model.find_module(u.modules.front()));
  };
  std::stable_sort(units.begin(), units.end(), [&](const Unit& a, const Unit& b) { return key(a) < key(b); });
  units.push_back({{""}, Reshard::automatic});
  return units;
}

}  // namespace fsdp
