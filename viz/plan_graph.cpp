#include "viz/plan_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "models/index.h"
#include "models/units.h"
#include "planner/layout/unit_order.h"
#include "simulator/analysis/times.h"
#include "viz/text.h"
#include "viz/unit_facts.h"

namespace fsdp {
namespace {

constexpr const char* kPlainFill = "#e8f0fb";
constexpr const char* kKeptFill = "#fdebd3";        // parameters stay gathered
constexpr const char* kRecomputedFill = "#dcf2ef";  // forward runs again in backward

// Units [first, last] of the order are alike.
struct UnitRun {
  std::size_t first = 0, last = 0;
};

class PlanGraph {
 public:
  PlanGraph(const ShardingPlan& plan, const ModelGraph& model, std::span<const UnitLayout> layouts)
      : plan_(plan),
        model_(model),
        layouts_(layouts),
        around_(units_around(plan)),
        order_(execution_order({layouts.begin(), layouts.end()})) {
    for (std::size_t u = 0; u < plan.units.size(); ++u) inside_[around_[u]].push_back(static_cast<std::int32_t>(u));
    for (auto& [outer, units] : inside_)
      std::sort(units.begin(), units.end(), [this](auto a, auto b) { return place(a) < place(b); });
  }

  std::string text() {
    std::string mesh;
    for (const MeshDim& d : plan_.mesh) mesh += fmt::format("{}{} {}", mesh.empty() ? "" : " x ", d.size, d.name);
    out_ = fmt::format(
        "digraph plan {{\n  graph [rankdir=TB, fontname=\"Helvetica\", labelloc=t, nodesep=0.3, ranksep=0.28,\n"
        "    label=<{} on {} ranks: {}, mesh {}<br/>{} parameters in {} unit{}; arrows: the order of forward>];\n"
        "  node [shape=plain, fontname=\"Helvetica\", fontsize=11];\n  edge [color=\"#5d6878\", arrowsize=0.7];\n",
        markup_text(model_.name), with_commas(plan_.ranks()), markup_text(dialect_text(plan_)), markup_text(mesh),
        human_count(static_cast<double>(parameters())), plan_.units.size(), plan_.units.size() == 1 ? "" : "s");
    for (const std::int32_t u : inside_[-1]) box(u, 1);
    for (std::size_t k = 0; k + 1 < chain_.size(); ++k) out_ += fmt::format("  {} -> {};\n", chain_[k], chain_[k + 1]);
    prefetches();
    if (!plan_.ignored.empty()) {
      std::string names;
      for (const std::string& name : plan_.ignored) names += "<br/>" + markup_text(name);
      out_ += fmt::format("  ignored [shape=box, style=dashed, label=<neither sharded nor reduced:{}>];\n", names);
    }
    return out_ + "}\n";
  }

 private:
  [[nodiscard]] std::size_t place(std::int32_t unit) const {
    return static_cast<std::size_t>(std::find(order_.begin(), order_.end(), unit) - order_.begin());
  }
  [[nodiscard]] std::int64_t parameters() const {
    std::int64_t sum = 0;
    for (const UnitLayout& unit : layouts_) sum += unit.numel;
    return sum;
  }
  [[nodiscard]] const Unit& unit(std::int32_t u) const { return plan_.units[at(u)]; }

  // A unit with others inside is a box around them, with a node of its own for what it holds itself.
  void box(std::int32_t u, int depth) {
    const std::string indent(static_cast<std::size_t>(2 * depth), ' ');
    const auto found = inside_.find(u);
    if (found == inside_.end()) {
      node(u, indent);
      return;
    }
    out_ += fmt::format("{0}subgraph cluster_{1} {{\n{0}  graph [style=rounded, color=\"#98a3b3\", label=<{2}>];\n",
                        indent, u, markup_text(modules_text(plan_, u)));
    node(u, indent + "  ");
    for (const UnitRun& run : runs(found->second)) {
      if (run.last - run.first < 3) {
        for (std::size_t k = run.first; k <= run.last; ++k) box(found->second[k], depth + 1);
        continue;
      }
      box(found->second[run.first], depth + 1);
      const std::string name = fmt::format("alike_{}", found->second[run.first + 1]);
      out_ += fmt::format("{}  {} [shape=plaintext, fontcolor=\"#5d6878\", label=\"{} units like these\"];\n", indent,
                          name, run.last - run.first - 1);
      chain_.push_back(name);
      box(found->second[run.last], depth + 1);
    }
    out_ += indent + "}\n";
  }

  // Neighbours without inner units that differ in nothing but their names.
  [[nodiscard]] std::vector<UnitRun> runs(const std::vector<std::int32_t>& units) const {
    std::vector<UnitRun> out;
    for (std::size_t k = 0; k < units.size(); ++k) {
      const bool joins = !out.empty() && alike(units[out.back().last], units[k]);
      if (joins) out.back().last = k;
      else out.push_back({k, k});
    }
    return out;
  }
  [[nodiscard]] bool alike(std::int32_t a, std::int32_t b) const {
    const auto facts = [this](std::int32_t u) {
      return std::tuple(inside_.contains(u), layouts_[at(u)].numel, layouts_[at(u)].shard_elements,
                        unit(u).modules.size(), unit(u).reshard_after_forward, recomputes(unit(u), plan_),
                        unit(u).forward_prefetch.size() + unit(u).backward_prefetch.size());
    };
    return !inside_.contains(a) && facts(a) == facts(b);
  }

  void node(std::int32_t u, const std::string& indent) {
    const UnitLayout& layout = layouts_[at(u)];
    const bool recomputed = recomputes(unit(u), plan_);
    const std::string reshard = reshard_words(plan_, static_cast<std::size_t>(u));
    const char* colour = reshard.starts_with("kept") && layout.numel > 0 ? kKeptFill
                         : recomputed                                    ? kRecomputedFill
                                                                         : kPlainFill;
    std::string lines = fmt::format("<tr><td bgcolor=\"{}\"><b>unit {}</b> {}</td></tr>", colour, u,
                                    markup_text(modules_text(plan_, u)));
    lines += layout.numel == 0 ? std::string("<tr><td>no parameters of its own</td></tr>")
                               : fmt::format("<tr><td>{} parameters, {} on a rank</td></tr><tr><td>{}</td></tr>",
                                             human_count(static_cast<double>(layout.numel)),
                                             human_count(static_cast<double>(layout.shard_elements)), reshard);
    if (recomputed) lines += fmt::format("<tr><td>recomputed ({})</td></tr>", name(plan_.checkpoint_policy));
    out_ += fmt::format(
        "{}unit_{} [label=<<table border=\"0\" cellborder=\"1\" cellspacing=\"0\" cellpadding=\"4\" "
        "color=\"#98a3b3\">{}</table>>];\n",
        indent, u, lines);
    chain_.push_back(fmt::format("unit_{}", u));
  }

  void prefetches() {
    std::map<std::string, std::size_t> by_module;
    for (std::size_t u = 0; u < plan_.units.size(); ++u) by_module[plan_.units[u].modules.front()] = u;
    for (std::size_t u = 0; u < plan_.units.size(); ++u)
      for (const auto& [list, words] : {std::pair{&plan_.units[u].forward_prefetch, "prefetches in forward"},
                                        std::pair{&plan_.units[u].backward_prefetch, "in backward"}})
        for (const std::string& module : *list)
          if (const auto other = by_module.find(module); other != by_module.end())
            out_ += fmt::format("  unit_{} -> unit_{} [style=dashed, constraint=false, fontsize=9, label=\"{}\"];\n", u,
                                other->second, words);
  }

  const ShardingPlan& plan_;
  const ModelGraph& model_;
  std::span<const UnitLayout> layouts_;
  std::vector<std::int32_t> around_, order_;
  std::map<std::int32_t, std::vector<std::int32_t>> inside_;  // by outer unit, in the order of forward; -1: outermost
  std::vector<std::string> chain_;                            // nodes in the order of forward
  std::string out_;
};

}  // namespace

std::string plan_graph(const ShardingPlan& plan, const ModelGraph& model, std::span<const UnitLayout> layouts) {
  return PlanGraph(plan, model, layouts).text();
}

}  // namespace fsdp
