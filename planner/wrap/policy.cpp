#include "planner/wrap/policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/input/error.h"

namespace fsdp {
namespace {

std::vector<std::vector<std::int32_t>> children_of(const ModelGraph& model) {
  std::vector<std::vector<std::int32_t>> children(model.modules.size());
  for (std::size_t m = 1; m < model.modules.size(); ++m)
    children[model.modules[m].parent].push_back(static_cast<std::int32_t>(m));
  return children;
}

// Parameters of each module's subtree, each storage once: what `sum(p.numel() for p in module.parameters())` gives.
std::vector<std::int64_t> subtree_numel(const ModelGraph& model, const std::vector<char>& ignored) {
  std::vector<std::int64_t> numel(model.modules.size(), 0);
  std::vector<std::int32_t> counted(model.modules.size(), -1);
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const auto id = static_cast<std::int32_t>(p);
    const auto& owners = model.parameters[p].modules;
    if (std::any_of(owners.begin(), owners.end(), [&](std::int32_t m) { return ignored[m] != 0; })) continue;
    for (std::int32_t m : owners) {
      for (; m >= 0 && counted[m] != id; m = model.modules[m].parent) {
        counted[m] = id;
        numel[m] += model.parameters[p].numel();
      }
    }
  }
  return numel;
}

bool goes_below(const WrapPolicy& p, const Module& m, std::int64_t numel) {
  return !p.min_params || (numel >= *p.min_params && !p.leaf.contains(m.class_name));
}

bool wraps(const WrapPolicy& p, const ModelGraph& model, std::int32_t m, std::int64_t left) {
  if (!p.min_params) return p.wanted[m] != 0;
  return left >= *p.min_params && !p.exclude.contains(model.modules[m].class_name);
}

}  // namespace

std::vector<char> with_descendants(const ModelGraph& model, const std::vector<std::int32_t>& modules) {
  std::vector<char> in(model.modules.size(), 0);
  for (std::int32_t m : modules) in[m] = 1;
  for (std::size_t m = 1; m < model.modules.size(); ++m)
    in[m] = in[m] || in[model.modules[m].parent];  // a module comes after its parent
  return in;
}

std::vector<std::int32_t> post_order(const ModelGraph& model) {
  const auto children = children_of(model);
  std::vector<std::int32_t> order, open{0};  // explicit stack: the tree may be deep
  std::vector<std::size_t> next(model.modules.size(), 0);
  while (!open.empty()) {
    const std::int32_t m = open.back();
    if (next[m] < children[m].size()) {
      open.push_back(children[m][next[m]++]);
    } else {
      order.push_back(m);
      open.pop_back();
    }
  }
  return order;
}

std::vector<char> choose(const ModelGraph& model, const std::vector<WrapPolicy>& policies,
                         const std::vector<std::int32_t>& ignored) {
  const auto any = [&](auto&& wants) { return std::any_of(policies.begin(), policies.end(), wants); };
  const std::vector<char> left_out = with_descendants(model, ignored);
  const std::vector<std::int64_t> numel = subtree_numel(model, left_out);
  std::vector<char> entered(model.modules.size(), 0), chosen(model.modules.size(), 0);
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    const bool reached = !left_out[m] && (m == 0 || entered[model.modules[m].parent]);
    entered[m] = reached && any([&](const WrapPolicy& p) { return goes_below(p, model.modules[m], numel[m]); });
  }
  std::vector<std::int64_t> wrapped(model.modules.size(), 0);  // what the recursion returns
  for (const std::int32_t m : post_order(model)) {
    if (m == 0 || !entered[m]) continue;
    if (any([&](const WrapPolicy& p) { return wraps(p, model, m, numel[m] - wrapped[m]); })) {
      chosen[m] = 1;
      wrapped[m] = numel[m];
    }
    wrapped[model.modules[m].parent] += wrapped[m];
  }
  return chosen;
}

std::vector<std::int32_t> blocks_of(const ModelGraph& model, const Origin& where) {
  std::vector<std::int32_t> blocks;
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (model.modules[m].block) blocks.push_back(static_cast<std::int32_t>(m));
  }
  if (blocks.empty()) throw InputError(where, "'" + model.name + "' has no repeated blocks", "use params:N or root");
  std::stable_sort(blocks.begin(), blocks.end(),
                   [&](auto a, auto b) { return model.modules[a].op_begin < model.modules[b].op_begin; });
  return blocks;
}

std::int64_t parse_count(std::string_view text, const Origin& where, const std::string& example) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || !(value >= 1) || value > 9e15 ||
      value != std::floor(value)) {
    throw InputError(where, "'" + std::string(text) + "' is not a whole number of at least 1",
                     "write it like " + example);
  }
  return static_cast<std::int64_t>(value);  // exact: below 2^53
}

}  // namespace fsdp
