// `./dev test --changed` runs the tests that a changed file can break: tests_of of ./dev names their groups.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/house/cpp_text.h"
#include "tests/house/tree.h"

using namespace fsdp;

namespace {

using Groups = std::map<std::string, std::set<std::string>>;  // by file

std::set<std::string> words_of(std::string_view text) {
  std::set<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) words.emplace(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// What the shell function answers for every file of the repository: "FILE: GROUP ...", line by line.
Groups groups_by_dev() {
  const std::string command = "cd '" + repository().string() +
                              "' && eval \"$(sed -n '/^tests_of()/,/^}/p' dev)\" && "
                              "find models planner simulator executor viz cli tests docs -type f | "
                              "while read -r file; do printf '\\n%s: ' \"$file\"; tests_of \"$file\"; done";
  std::string answer;
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> part{};
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe)) answer.append(part.data(), n);
  REQUIRE(pclose(pipe) == 0);
  Groups groups;
  for (const std::string_view line : lines_of(answer))
    if (const std::size_t colon = line.find(": "); colon != std::string_view::npos)
      groups[std::string(line.substr(0, colon))] = words_of(line.substr(colon + 2));
  return groups;
}

// "planner" of "tests/planner/torch/order_test.cpp"; those of the house and of documents run always.
std::string group_of(const std::string& test) {
  const std::string rest = test.substr(test.find('/') + 1);
  const std::string group = rest.substr(0, rest.find('/'));
  return group == "house" || group == "docs" ? "" : group;
}

// A test's sources as far as includes tell, and the files below tests/ that string literals in these sources name.
class Reached {
 public:
  Reached(const Tree& tree, const std::string& test) : tree_(tree) { add(test); }
  [[nodiscard]] const std::set<std::string>& files() const { return files_; }

 private:
  [[nodiscard]] const SourceFile* file_of(const std::string& path) const {
    const auto found = std::lower_bound(tree_.begin(), tree_.end(), path,
                                        [](const SourceFile& f, const std::string& p) { return f.path < p; });
    return found != tree_.end() && found->path == path ? &*found : nullptr;
  }

  void add(const std::string& path) {
    const SourceFile* file = file_of(path);
    if (file == nullptr || !files_.insert(path).second || !is_source(path)) return;
    for (const std::string_view line : lines_of(file->text))
      if (line.starts_with("#include \"")) add(std::string(line.substr(10, line.rfind('"') - 10)));
    if (room_of(path) != "tests") return;
    for (const Literal& literal : split(file->text).literals) {
      if (literal.text.size() < 4) continue;
      const std::string named = (literal.text.front() == '/' ? "tests" : "tests/") + literal.text;
      for (const SourceFile& data : tree_)
        if (data.path == named || (named.ends_with('/') && data.path.starts_with(named))) files_.insert(data.path);
    }
  }

  const Tree& tree_;
  std::set<std::string> files_;
};

Findings left_out(const Tree& tree, const Groups& groups) {
  Findings found;
  std::set<std::string> said;
  for (const SourceFile& file : tree) {
    if (!file.path.starts_with("tests/") || !file.path.ends_with("_test.cpp")) continue;
    const std::string group = group_of(file.path);
    if (group.empty()) continue;
    const Reached all(tree, file.path);
    for (const std::string& reached : all.files()) {
      const auto of_file = groups.find(reached);
      if (of_file != groups.end() && of_file->second.contains(group)) continue;
      if (said.insert(group + folder_of(reached)).second)
        found.push_back(reached + ": a change can break " + file.path + ", but tests_of leaves out " + group);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("dev test --changed leaves out no test that reads or compiles a changed file") {
  const Tree tree = read_repository();
  const Groups groups = groups_by_dev();
  CHECK(groups.size() > 800);
  CHECK(listed(left_out(tree, groups)) == "");
}

TEST_CASE("a planted test of a file whose groups leave it out is found") {
  const Tree tree = {{"models/a.h", "#include \"models/b.h\"\n"},
                     {"models/b.h", ""},
                     {"tests/golden/a.json", "{}"},
                     {"tests/viz/a_test.cpp", "#include \"models/a.h\"\nf(DIR \"/golden/a.json\");\n"}};
  const Groups right = {{"models/a.h", {"models", "viz"}},
                        {"models/b.h", {"viz"}},
                        {"tests/golden/a.json", {"viz"}},
                        {"tests/viz/a_test.cpp", {"viz"}}};
  CHECK(left_out(tree, right).empty());
  for (const char* file : {"models/b.h", "tests/golden/a.json"}) {
    Groups wrong = right;
    wrong[file] = {"models"};
    CHECK(left_out(tree, wrong).size() == 1);
  }
}
