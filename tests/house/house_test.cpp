// The house: a folder includes only folders to its left.
//
//     models  <--  planner  <--  simulator  <--  executor
//                     ^------------^---- viz            viz sees records, never the executor; nobody but cli and tests
//                                                       sees viz
//
// The rule is written here once; the last test plants wrong includes in a copy and sees them found.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::set<std::string>>& allowed() {
  static const std::map<std::string, std::set<std::string>> kAllowed = {
      {"models", {"models"}},
      {"planner", {"models", "planner"}},
      {"simulator", {"models", "planner", "simulator"}},
      {"executor", {"models", "planner", "simulator", "executor"}},
      {"viz", {"models", "planner", "simulator", "viz"}},
      {"cli", {"models", "planner", "simulator", "executor", "viz", "cli"}},
  };
  return kAllowed;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> kExtensions = {".h", ".hpp", ".cpp", ".cu", ".cuh", ".inl"};
  return kExtensions.count(path.extension().string()) > 0;
}

// Headers whose weight every includer would pay for. They belong in .cpp files, or in headers that only .cpp files of
// the same room include.
bool is_heavy(const std::string& included) {
  if (included == "nlohmann/json_fwd.hpp") return false;
  return included.rfind("nlohmann/", 0) == 0 || included.rfind("boost/", 0) == 0 || included.rfind("Eigen/", 0) == 0;
}

struct Include {
  std::string from, room, target,
      where;  // "models/input/json.cpp", "models", "models/input/json.h", "models/input/json.cpp:3"
  [[nodiscard]] bool from_header() const { return fs::path(from).extension() == ".h"; }
};

std::string included_by(const std::string& line) {
  static const std::regex kInclude(R"(^\s*#\s*include\s*["<]([^">]+)[">])");
  std::smatch match;
  return std::regex_search(line, match, kInclude) ? match[1].str() : std::string();
}

void read_includes(const fs::path& file, const std::string& room, const fs::path& root,
                   std::vector<Include>& includes) {
  std::ifstream in(file);
  std::string line;
  const std::string from = fs::relative(file, root).string();
  for (int number = 1; std::getline(in, line); ++number) {
    const std::string target = included_by(line);
    if (!target.empty()) includes.push_back({from, room, target, from + ":" + std::to_string(number)});
  }
}

std::vector<Include> all_includes(const fs::path& root, int& files) {
  std::vector<Include> includes;
  for (const auto& [room, unused] : allowed()) {
    if (!fs::exists(root / room)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      ++files;
      read_includes(entry.path(), room, root, includes);
    }
  }
  return includes;
}

std::vector<std::string> wrong_includes(const fs::path& root, int& files) {
  const std::vector<Include> includes = all_includes(root, files);
  std::map<std::string, std::string> heavy;  // header of ours -> the heavy one it includes
  for (const Include& i : includes) {
    if (i.from_header() && is_heavy(i.target)) heavy[i.from] = i.target;
  }
  std::vector<std::string> wrong;
  for (const Include& i : includes) {
    const std::string folder = i.target.substr(0, i.target.find('/'));
    if (allowed().count(folder) > 0 && allowed().at(i.room).count(folder) == 0)
      wrong.push_back(i.where + ": " + i.room + " may not include " + i.target);
    if (i.target.find("..") != std::string::npos)
      wrong.push_back(i.where + ": relative include " + i.target + "; name it from the root");
    const auto weight = heavy.find(i.target);
    if (weight != heavy.end() && (i.from_header() || folder != i.room))
      wrong.push_back(i.where + ": " + i.target + " brings in " + weight->second);
  }
  return wrong;
}

fs::path repository() { return fs::path(FSDP_TESTS_DIR).parent_path(); }

struct Planted {  // a folder with one wrong file, gone at the end of the test
  fs::path root = fs::temp_directory_path() / ("fsdp-plan-house-" + std::to_string(::getpid()));
  Planted(const std::string& file, const std::string& text) { add(file, text); }
  void add(const std::string& file, const std::string& text) const {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  }
  ~Planted() { fs::remove_all(root); }
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;
};

}  // namespace

TEST_CASE("no folder includes one to its right") {
  int files = 0;
  const auto wrong = wrong_includes(repository(), files);
  for (const std::string& sentence : wrong) MESSAGE(sentence);
  CHECK(wrong.empty());
  CHECK(files > 40);  // the test looked at something
}

TEST_CASE("a planted wrong include is found") {
  const auto found = [](const std::string& file, const std::string& line) {
    const Planted planted(file, "// a comment\n" + line + "\nint x;\n");
    int files = 0;
    return wrong_includes(planted.root, files).size();
  };
  CHECK(found("models/a.cpp", "#include \"planner/plan.h\"") == 1);
  CHECK(found("models/deep/a.h", "#include \"simulator/engine/engine.h\"") == 1);
  CHECK(found("planner/a.cpp", "  #  include <simulator/engine/engine.h>") == 1);
  CHECK(found("simulator/a.h", "#include \"executor/run.h\"") == 1);
  CHECK(found("simulator/a.h", "#include \"viz/viz.h\"") == 1);
  CHECK(found("executor/a.h", "#include \"viz/viz.h\"") == 1);
  CHECK(found("viz/a.h", "#include \"executor/run.h\"") == 1);
  CHECK(found("viz/a.h", "#include \"cli/report/report.h\"") == 1);
  CHECK(found("planner/costs/a.cpp", "#include \"../../executor/run.h\"") == 1);
  // And what is right is not.
  CHECK(found("executor/a.cpp", "#include \"simulator/records/prediction.h\"") == 0);
  CHECK(found("cli/a.cpp", "#include \"executor/run.h\"") == 0);
  CHECK(found("models/a.cpp", "#include <nlohmann/json.hpp>") == 0);
  CHECK(found("viz/a.cpp", "#include \"planner/program.h\"") == 0);
}

TEST_CASE("a heavy header that leaks is found") {
  const auto found = [](const std::string& includer) {
    const Planted planted("models/a.h", "#include <nlohmann/json.hpp>\n");
    planted.add(includer, "#include \"models/a.h\"\n");
    int files = 0;
    return wrong_includes(planted.root, files).size();
  };
  CHECK(found("models/b.cpp") == 0);
  CHECK(found("models/b.h") == 1);
  CHECK(found("planner/b.cpp") == 1);
}

TEST_CASE("no source file is longer than 400 lines") {
  for (const auto& [room, unused] : allowed()) {
    for (const auto& entry : fs::recursive_directory_iterator(repository() / room)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      std::ifstream in(entry.path());
      int lines = 0;
      for (std::string line; std::getline(in, line);) ++lines;
      CHECK_MESSAGE(lines <= 400, entry.path().string());
    }
  }
}
