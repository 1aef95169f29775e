// show plan --graph: what it says, and that Graphviz, where it is installed, draws it without a complaint.
#include "viz/plan_graph.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <random>
#include <string>

#include "models/catalog.h"
#include "planner/plan/naive_plan.h"
#include "tests/support/any_plan.h"
#include "tests/support/temporary_folder.h"
#include "viz/unit_facts.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Ran {
  int code = 0;
  std::string out;
};

Ran ran(const std::string& command) {
  Ran r;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> part{};
  for (std::size_t n = 0; (n = std::fread(part.data(), 1, part.size(), pipe)) > 0;) r.out.append(part.data(), n);
  const int status = ::pclose(pipe);
  r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return r;
}

bool graphviz() { return ran("command -v dot").code == 0; }

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t i = text.find(part); i != std::string::npos; i = text.find(part, i + 1)) ++n;
  return n;
}

// Units that the graph shows, those that a node stands for included.
std::size_t units_shown(const std::string& dot) {
  std::size_t shown = count(dot, "<b>unit ");
  const std::string words = " units like these";
  for (std::size_t i = dot.find(words); i != std::string::npos; i = dot.find(words, i + 1))
    shown += std::stoul(dot.substr(dot.rfind('"', i) + 1));
  return shown;
}

// As SVG; "": no Graphviz here.
std::string drawn(const std::string& dot) {
  if (!graphviz()) return "";
  const TemporaryFolder folder;
  const std::string file = folder.at("plan.dot");
  (void)folder.write("plan.dot", dot);
  const Ran said = ran("dot -Tsvg -o " + file + ".svg " + file);
  CHECK_MESSAGE(said.out == "", said.out);
  CHECK(said.code == 0);
  return ran("cat " + file + ".svg").out;
}

std::string graph_of(const ShardingPlan& plan, const ModelGraph& model) {
  return plan_graph(plan, model, unit_layouts(plan, model));
}

}  // namespace

TEST_CASE("alike units are one node between the first and the last") {
  const ModelGraph model = load_model("llama3-8b", 8192);
  ShardingPlan plan = naive_plan(model, PlanOptions{.ranks = 8, .seq_len = 8192});
  const std::string dot = graph_of(plan, model);
  CHECK(dot.find("30 units like these") != std::string::npos);
  CHECK(count(dot, "<b>unit ") == 3);  // two blocks and the root
  CHECK(units_shown(dot) == plan.units.size());
  CHECK(dot.find("218 M parameters, 27.3 M on a rank") != std::string::npos);
  plan.units[7].reshard_after_forward = Reshard::no;  // now block 7 stands for itself
  const std::string other = graph_of(plan, model);
  CHECK(count(other, "<b>unit ") == 6);
  CHECK(units_shown(other) == plan.units.size());
  const std::string svg = drawn(dot);
  if (svg.empty()) MESSAGE("skipped: no Graphviz here (dot)");
  else CHECK(count(svg, "class=\"node\"") == 4);
}

TEST_CASE("Graphviz draws any plan, and every unit is in it") {
  if (!graphviz()) MESSAGE("skipped: no Graphviz here (dot)");
  std::mt19937 random(19);
  for (int k = 0; k < 12; ++k) {
    CAPTURE(k);
    ModelGraph model = toy::model({});
    const ShardingPlan plan = any_plan(model, false, random);
    const std::string dot = graph_of(plan, model);
    CHECK(units_shown(dot) == plan.units.size());
    const std::string svg = drawn(dot);
    if (!svg.empty()) CHECK(svg.find("</svg>") != std::string::npos);
  }
}

TEST_CASE("names with markup and quotes are drawn as they are") {
  ModelGraph model = load_model("tiny-llama", 64);
  ShardingPlan plan = naive_plan(model, PlanOptions{.ranks = 2, .seq_len = 64});
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  model.name = "<b>& \"quoted\" \\N ]>";
  plan.ignored = {"a<b>\"c"};
  const std::string dot = plan_graph(plan, model, layouts);
  CHECK(dot.find("&lt;b&gt;&amp; &quot;quoted&quot; \\N ]&gt;") != std::string::npos);
  const std::string svg = drawn(dot);
  if (!svg.empty()) CHECK(svg.find("&lt;b&gt;&amp;") != std::string::npos);
}

TEST_CASE("a unit lies in the innermost unit around it") {
  ShardingPlan plan;
  plan.units = {{{"a.b.c"}}, {{"a.b"}}, {{"a.bc"}}, {{"a"}}, {{""}}};
  CHECK(units_around(plan) == std::vector<std::int32_t>{1, 3, 3, 4, -1});
}
