#include "planner/tensor/styles.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "models/input/error.h"

namespace fsdp {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

std::string pattern_of(std::string_view name) {
  std::string pattern;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    pattern += (begin > 0 ? "." : "") + (is_number(part) ? std::string("*") : std::string(part));
    begin = end + 1;
  }
  return pattern;
}

bool matches(std::string_view pattern, std::string_view name) {
  while (true) {
    const std::size_t p = std::min(pattern.find('.'), pattern.size()), n = std::min(name.find('.'), name.size());
    if (pattern.substr(0, p) != "*" && pattern.substr(0, p) != name.substr(0, n)) return false;
    if (p == pattern.size() || n == name.size()) return p == pattern.size() && n == name.size();
    pattern.remove_prefix(p + 1);
    name.remove_prefix(n + 1);
  }
}

std::vector<std::optional<TensorStyle>> styles_of_modules(const TensorPlan& plan, const ModelGraph& model,
                                                          std::string_view where) {
  std::vector<std::optional<TensorStyle>> styles(model.modules.size());
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const ModuleStyle& wanted = plan.modules[i];
    const Origin at{std::string(where), "tensor_plan.modules[" + std::to_string(i) + "]"};
    bool found = false;
    for (std::size_t m = 0; m < model.modules.size(); ++m) {
      const std::string& name = model.modules[m].name;
      if (!matches(wanted.module, name)) continue;
      found = true;
      if (styles[m] && *styles[m] != wanted.style)
        throw InputError(at,
                         "splits '" + name + "' " + std::string(fsdp::name(wanted.style)) +
                             ", which an entry before it splits " + std::string(fsdp::name(*styles[m])),
                         "remove one of the two");
      styles[m] = wanted.style;
    }
    if (!found)
      throw InputError(at, "no module is named '" + wanted.module + "'",
                       "run `fsdp-plan show model NAME` for the names; * stands for one part of a name");
  }
  return styles;
}

}  // namespace fsdp
