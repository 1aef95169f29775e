// The house: a room includes only rooms to its left, and inside a room a folder only those that stand below it.
//
//     models  <--  planner  <--  simulator  <--  executor
//                     ^------------^---- viz            viz sees records, never the executor; only cli and tests
//                                                       see viz
//
// Each rule is a function of a list of files, so that its test can plant a violation and see it found.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/house/inner_order.h"
#include "tests/house/tree.h"

using namespace fsdp;

namespace {

struct Include {
  std::string from, target, where;  // "models/input/json.cpp", "models/input/json.h", "models/input/json.cpp:3"
};

// The header of `  #  include "models/units.h"  // why`, or nothing.
std::string included_by(std::string_view line) {
  const auto skip = [&](std::string_view what) {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (!line.starts_with(what)) return false;
    line.remove_prefix(what.size());
    return true;
  };
  if (!skip("#") || !skip("include") || !(skip("\"") || skip("<"))) return {};
  return std::string(line.substr(0, line.find_first_of("\">")));
}

std::vector<Include> includes_of(const Tree& tree) {
  std::vector<Include> includes;
  for (const SourceFile& file : tree) {
    if (!is_source(file.path) || !rooms().contains(room_of(file.path))) continue;
    const auto lines = lines_of(file.text);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      std::string target = included_by(lines[i]);
      if (!target.empty()) includes.push_back({file.path, std::move(target), place(file, i)});
    }
  }
  return includes;
}

bool may_include(const Order& order, const std::string& from, const std::string& to) {
  return from == to || order.at(from).contains(to);
}

Findings wrong_rooms(const Tree& tree) {
  Findings wrong;
  for (const Include& i : includes_of(tree)) {
    if (i.target.find("..") != std::string::npos)
      wrong.push_back(i.where + ": relative include " + i.target + "; name it from the root");
    if (rooms().contains(room_of(i.target)) && !may_include(rooms(), room_of(i.from), room_of(i.target)))
      wrong.push_back(i.where + ": " + room_of(i.from) + " may not include " + i.target);
  }
  return wrong;
}

// The folder that a file belongs to: its own, or the one whose interface it is.
std::string home_of(const std::string& path) {
  const auto interface = interfaces().find(path);
  return interface != interfaces().end() ? interface->second : folder_of(path);
}

Findings wrong_folders(const Tree& tree, const std::vector<Exception>& except) {
  Findings wrong;
  std::set<std::string> unknown;
  std::vector<bool> used(except.size(), false);
  const auto excepted = [&](const Include& i) {
    for (std::size_t e = 0; e < except.size(); ++e)
      if (except[e].file == i.from && except[e].included == i.target) return used[e] = true, true;
    return false;
  };
  for (const Include& i : includes_of(tree)) {
    if (room_of(i.from) != room_of(i.target)) continue;
    const std::string from = home_of(i.from), to = home_of(i.target);
    for (const std::string& folder : {from, to})
      if (!inner_order().contains(folder)) unknown.insert(folder);
    if (!inner_order().contains(from) || may_include(inner_order(), from, to) || excepted(i)) continue;
    wrong.push_back(i.where + ": " + from + " may not include " + i.target + " (of " + to + ")");
  }
  for (const std::string& folder : unknown) wrong.push_back(folder + ": not in the table of tests/house/inner_order.h");
  for (std::size_t e = 0; e < except.size(); ++e) {
    if (!used[e])
      wrong.push_back(except[e].file + " no longer includes " + except[e].included + ": remove the exception");
  }
  return wrong;
}

// What the table allows and no file does.
Findings unused_permissions(const Tree& tree, const Order& order) {
  std::set<std::pair<std::string, std::string>> used;
  for (const Include& i : includes_of(tree)) used.emplace(home_of(i.from), home_of(i.target));
  Findings unused;
  for (const auto& [folder, allowed] : order)
    for (const std::string& other : allowed)
      if (!used.contains({folder, other})) unused.push_back(folder + " includes nothing of " + other);
  return unused;
}

// Folders that come back to themselves.
Findings circles(const Order& order) {
  Findings found;
  for (const auto& [start, unused] : order) {
    std::set<std::string> seen;
    std::vector<std::string> open = {start};
    while (!open.empty()) {
      const std::string folder = open.back();
      open.pop_back();
      if (!order.contains(folder)) continue;
      for (const std::string& next : order.at(folder)) {
        if (!seen.insert(next).second) continue;
        if (next == start) found.push_back(start + " includes itself by way of " + folder);
        open.push_back(next);
      }
    }
  }
  return found;
}

// Headers whose weight every includer would pay for. They belong in .cpp files, or in headers that only .cpp files of
// the same room include.
bool is_heavy(const std::string& included) {
  if (included == "nlohmann/json_fwd.hpp") return false;
  return included.starts_with("nlohmann/") || included.starts_with("boost/") || included.starts_with("Eigen/");
}

Findings leaks(const Tree& tree) {
  const std::vector<Include> includes = includes_of(tree);
  std::map<std::string, std::string> heavy;  // header of ours -> the heavy one that it includes
  for (const Include& i : includes)
    if (is_header(i.from) && room_of(i.from) != "tests" && is_heavy(i.target)) heavy[i.from] = i.target;
  Findings wrong;
  for (const Include& i : includes) {
    const auto weight = heavy.find(i.target);
    if (weight != heavy.end() && (is_header(i.from) || room_of(i.target) != room_of(i.from)))
      wrong.push_back(i.where + ": " + i.target + " brings in " + weight->second);
  }
  return wrong;
}

// A header is guarded; the source of its name includes it first, which proves that it compiles alone (headers.cmake).
Findings wrong_headers(const Tree& tree) {
  Findings wrong;
  std::set<std::string> paths;
  std::map<std::string, std::string> first;  // of a source: what it includes first
  for (const SourceFile& file : tree) {
    paths.insert(file.path);
    if (is_header(file.path) && file.text.find("#pragma once\n") == std::string::npos)
      wrong.push_back(file.path + ": no #pragma once");
  }
  for (const Include& i : includes_of(tree)) first.emplace(i.from, i.target);
  for (const auto& [source, included] : first) {
    const std::string own = source.substr(0, source.rfind('.')) + ".h";
    if (source.ends_with(".cpp") && room_of(source) != "tests" && paths.contains(own) && included != own)
      wrong.push_back(source + ": includes " + included + " before its own header");
  }
  return wrong;
}

// A type of a header has its name alone in its namespace: of two in one program the linker keeps the functions of one.
Findings types_of_one_name(const Tree& tree) {
  Findings wrong;
  std::map<std::string, std::string> known;  // "fsdp::StepRecord" -> its header
  for (const SourceFile& file : tree) {
    if (!is_header(file.path) || room_of(file.path) == "tests") continue;
    std::string space;
    for (const std::string_view line : lines_of(file.text)) {
      if (line.starts_with("namespace ")) space = line.substr(10, line.find_first_of(" {", 10) - 10);
      for (const std::string_view keyword : {"struct ", "class ", "enum class "}) {
        if (!line.starts_with(keyword) || line.find('{') == std::string_view::npos) continue;
        const std::string_view name =
            line.substr(keyword.size(), line.find_first_of(" :{<", keyword.size()) - keyword.size());
        const auto [it, fresh] = known.emplace(space + "::" + std::string(name), file.path);
        if (!fresh && it->second != file.path) wrong.push_back(file.path + ": " + it->first + " is in " + it->second);
      }
    }
  }
  return wrong;
}

std::size_t count(const Tree& tree, bool (*is_one)(const std::string& path)) {
  std::size_t n = 0;
  for (const SourceFile& file : tree) n += is_one(file.path) ? 1 : 0;
  return n;
}

Tree planted(const std::string& path, const std::string& line) {
  return {{path, "// a comment\n" + line + "\nint x;\n"}};
}

}  // namespace

TEST_CASE("no two headers have types of one name") {
  CHECK(listed(types_of_one_name(read_repository())) == "");
  const std::string a = "namespace fsdp {\nstruct Step {\n};\n}\n",
                    other = "namespace fsdp::cuda {\nstruct Step {\n};\n}\n";
  CHECK(types_of_one_name({{"planner/a.h", a}, {"viz/b.h", a}}).size() == 1);
  CHECK(types_of_one_name({{"planner/a.h", a}, {"viz/b.h", other}, {"viz/c.cpp", a}}).empty());
}

TEST_CASE("no room includes one to its right") { CHECK(listed(wrong_rooms(read_repository())) == ""); }

TEST_CASE("a planted include of a room to the right is found") {
  const auto found = [](const std::string& path, const std::string& line) {
    return wrong_rooms(planted(path, line)).size();
  };
  CHECK(found("models/a.cpp", "#include \"planner/plan.h\"") == 1);
  CHECK(found("models/deep/a.h", "#include \"simulator/engine/engine.h\"") == 1);
  CHECK(found("planner/a.cpp", "  #  include <simulator/engine/engine.h>") == 1);
  CHECK(found("simulator/a.h", "#include \"executor/run.h\"") == 1);
  CHECK(found("simulator/a.h", "#include \"viz/viz.h\"") == 1);
  CHECK(found("executor/a.cuh", "#include \"viz/viz.h\"") == 1);
  CHECK(found("executor/a.cpp", "#include \"tests/support/refusal.h\"") == 1);
  CHECK(found("viz/a.h", "#include \"executor/run.h\"") == 1);
  CHECK(found("viz/a.h", "#include \"cli/report/report.h\"") == 1);
  CHECK(found("planner/costs/a.cpp", "#include \"../../executor/run.h\"") == 1);
  // And what is right is not.
  CHECK(found("executor/a.cpp", "#include \"simulator/records/prediction.h\"") == 0);
  CHECK(found("cli/a.cpp", "#include \"executor/run.h\"") == 0);
  CHECK(found("models/a.cpp", "#include <nlohmann/json.hpp>") == 0);
  CHECK(found("viz/a.cpp", "#include \"planner/program.h\"") == 0);
  CHECK(found("tests/a.cpp", "#include \"cli/files.h\"") == 0);
}

TEST_CASE("inside a room, folders include only those below them") {
  CHECK(listed(wrong_folders(read_repository(), exceptions())) == "");
  for (const Exception& e : exceptions()) {
    CAPTURE(e.file);
    CHECK_FALSE(e.reason.empty());
  }
}

TEST_CASE("a planted include against the inner order is found") {
  const auto found = [](const std::string& path, const std::string& line) {
    return wrong_folders(planted(path, line), {}).size();
  };
  CHECK(found("planner/lowering/a.cpp", "#include \"planner/search/scorer.h\"") == 1);
  CHECK(found("planner/lowering/a.cpp", "#include \"planner/search.h\"") == 1);  // its interface, at the room's top
  CHECK(found("planner/plan.cpp", "#include \"planner/plan/check_fsdp1.h\"") == 1);
  CHECK(found("executor/kernels/ops/a.h", "#include \"executor/training/interpreter.h\"") == 1);
  CHECK(found("models/new/a.h", "#include \"models/units.h\"") == 1);  // a folder that the table does not know
  CHECK(found("tests/support/a.h", "#include \"tests/executor/cuda/faults.h\"") == 1);
  CHECK(found("planner/lowering/a.cpp", "#include \"planner/plan.h\"") == 0);
  CHECK(found("planner/costs/a.cpp", "#include \"planner/costs.h\"") == 0);
  const Tree wrong = planted("planner/plan.cpp", "#include \"planner/plan/check_fsdp1.h\"");
  const std::vector<Exception> except = {{"planner/plan.cpp", "planner/plan/check_fsdp1.h", "planted"}};
  CHECK(wrong_folders(wrong, except).empty());
  CHECK(wrong_folders({}, except).size() == 1);  // an exception that nothing needs
}

TEST_CASE("the table of folders allows only what some file includes") {
  CHECK(listed(unused_permissions(read_repository(), inner_order())) == "");
  const Tree uses = planted("planner/lowering/a.cpp", "#include \"planner/program.h\"");
  CHECK(unused_permissions(uses, {{"planner/lowering", {"planner/program"}}, {"planner/program", {}}}).empty());
  CHECK(unused_permissions(uses, {{"planner/lowering", {"planner/program", "planner/layout"}}}) ==
        Findings{"planner/lowering includes nothing of planner/layout"});
}

TEST_CASE("neither the rooms nor the folders form a circle") {
  CHECK(listed(circles(rooms())) == "");
  CHECK(listed(circles(inner_order())) == "");
  CHECK(circles({{"a", {"b"}}, {"b", {"c"}}, {"c", {"a"}}, {"d", {"a"}}}).size() == 3);
  CHECK(circles({{"a", {"a"}}}).size() == 1);
}

TEST_CASE("every interface of a folder is a header that exists") {
  const Tree tree = read_repository();
  for (const auto& [header, folder] : interfaces()) {
    CAPTURE(header);
    CHECK(std::any_of(tree.begin(), tree.end(), [&](const SourceFile& file) { return file.path == header; }));
    CHECK(inner_order().contains(folder));
  }
}

TEST_CASE("no heavy header leaks out of its room") { CHECK(listed(leaks(read_repository())) == ""); }

TEST_CASE("a planted heavy header that leaks is found") {
  const auto found = [](const std::string& includer) {
    return leaks({{"models/a.h", "#include <nlohmann/json.hpp>\n"}, {includer, "#include \"models/a.h\"\n"}}).size();
  };
  CHECK(found("models/b.cpp") == 0);
  CHECK(found("models/b.h") == 1);
  CHECK(found("planner/b.cpp") == 1);
}

TEST_CASE("headers are guarded, and a source includes its own first") {
  CHECK(listed(wrong_headers(read_repository())) == "");
  const SourceFile header = {"models/a.h", "// a\n#pragma once\n"};
  CHECK(wrong_headers({header, {"models/a.cpp", "#include \"models/a.h\"\n#include <map>\n"}}).empty());
  CHECK(wrong_headers({header, {"models/a.cpp", "#include <map>\n#include \"models/a.h\"\n"}}).size() == 1);
  CHECK(wrong_headers({header, {"models/b.cpp", "#include <map>\n"}}).empty());
  CHECK(wrong_headers({{"executor/a.cuh", "int x;\n"}}).size() == 1);
}

// At least as many as there were when this was last looked at: a search that breaks finds fewer.
TEST_CASE("the rules see every source, header and test") {
  const Tree tree = read_repository();
  CHECK(count(tree, is_source) >= 660);
  CHECK(count(tree, is_header) >= 265);
  CHECK(count(tree, [](const std::string& path) { return path.ends_with("_test.cpp"); }) >= 103);
  CHECK(includes_of(tree).size() >= 3950);
}
