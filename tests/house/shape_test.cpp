// The house's shape: where sources may lie, how many a folder holds, how long one is.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/house/inner_order.h"
#include "tests/house/tree.h"

using namespace fsdp;

namespace {

constexpr std::size_t kMostSources = 15;  // a header and its source count once
constexpr std::size_t kMostLines = 400;   // outside of tests, where a long list of cases is one idea

// A folder that may hold more, and why.
struct LargeFolder {
  std::size_t most;
  std::string reason;
};
using LargeFolders = std::map<std::string, LargeFolder>;

const LargeFolders& large_folders() {
  static const LargeFolders kLarge = {
      {"tests/support", {19, "small headers, one helper each; folders would hold one or two"}},
      {"tests/executor/cuda", {17, "pairs: cases in a header, run on a GPU by one test and emulated by another"}},
  };
  return kLarge;
}

Findings large(const Tree& tree, const LargeFolders& except) {
  std::map<std::string, std::set<std::string>> names;
  for (const SourceFile& file : tree)
    if (is_source(file.path)) names[folder_of(file.path)].insert(file.path.substr(0, file.path.rfind('.')));
  Findings found;
  for (const auto& [folder, sources] : names) {
    const auto exception = except.find(folder);
    const std::size_t most = exception == except.end() ? kMostSources : exception->second.most;
    if (sources.size() > most)
      found.push_back(folder + ": " + std::to_string(sources.size()) + " sources, at most " + std::to_string(most));
  }
  for (const auto& [folder, exception] : except)
    if (names[folder].size() <= kMostSources) found.push_back(folder + ": small enough; remove the exception");
  return found;
}

Findings long_files(const Tree& tree) {
  Findings found;
  for (const SourceFile& file : tree) {
    const std::size_t lines = lines_of(file.text).size();
    if (is_source(file.path) && room_of(file.path) != "tests" && lines > kMostLines)
      found.push_back(file.path + ": " + std::to_string(lines) + " lines, at most " + std::to_string(kMostLines));
  }
  return found;
}

// Folders at the root, and how many sources lie at the top of a room: none where folders hold everything.
Findings misplaced(const Tree& tree) {
  static const std::set<std::string> kOthers = {"docs", "python", ".ci"};
  // Sources; of simulator and tests those that are no headers.
  static const std::map<std::string, std::size_t> kAtTheTop = {{"executor", 6}, {"simulator", 0}, {"tests", 0}};
  Findings found;
  std::set<std::string> strange;
  std::map<std::string, std::size_t> at_the_top;
  for (const SourceFile& file : tree) {
    const std::string room = room_of(file.path);
    if (room != file.path && !rooms().contains(room) && !kOthers.contains(room)) strange.insert(room);
    const bool counts = is_source(file.path) && (room == "executor" || !is_header(file.path));
    if (counts && folder_of(file.path) == room) ++at_the_top[room];
    if (is_source(file.path) && room == file.path) found.push_back(file.path + ": a source outside of the rooms");
  }
  for (const std::string& room : strange) found.push_back(room + ": not a room of the house");
  for (const auto& [room, most] : kAtTheTop) {
    if (at_the_top[room] > most)
      found.push_back(room + ": " + std::to_string(at_the_top[room]) + " sources at its top, at most " +
                      std::to_string(most));
  }
  return found;
}

// `count` sources in a folder, each with its header.
Tree pairs(const std::string& folder, std::size_t count) {
  Tree tree;
  for (std::size_t i = 0; i < count; ++i)
    for (const char* extension : {".h", ".cpp"}) tree.push_back({folder + "/f" + std::to_string(i) + extension, ""});
  return tree;
}

}  // namespace

TEST_CASE("no folder holds more than 15 sources") {
  CHECK(listed(large(read_repository(), large_folders())) == "");
  for (const auto& [folder, exception] : large_folders()) {
    CAPTURE(folder);
    CHECK_FALSE(exception.reason.empty());
  }
}

TEST_CASE("a planted folder of 16 sources is found, and an exception that is not needed") {
  CHECK(large(pairs("planner/costs", 15), {}).empty());
  CHECK(large(pairs("planner/costs", 16), {}).size() == 1);
  CHECK(large(pairs("tests/deep/er", 16), {}).size() == 1);
  const LargeFolders except = {{"planner/costs", {16, "planted"}}};
  CHECK(large(pairs("planner/costs", 16), except).empty());
  CHECK(large(pairs("planner/costs", 17), except).size() == 1);
  CHECK(large(pairs("planner/costs", 15), except).size() == 1);
  CHECK(large({}, except).size() == 1);
}

TEST_CASE("no source outside of tests is longer than 400 lines") {
  CHECK(listed(long_files(read_repository())) == "");
  std::string text;
  for (std::size_t i = 0; i < kMostLines; ++i) text += "x\n";
  CHECK(long_files({{"models/a.cpp", text}}).empty());
  CHECK(long_files({{"models/a.cpp", text + "x\n"}}).size() == 1);
  CHECK(long_files({{"executor/cuda/a.cuh", text + "x"}}).size() == 1);
  CHECK(long_files({{"tests/a/a.cpp", text + "x\n"}}).empty());
}

TEST_CASE("sources lie in folders of the rooms") { CHECK(listed(misplaced(read_repository())) == ""); }

TEST_CASE("a planted source outside of its folder is found") {
  CHECK(misplaced({{"simulator/a.cpp", ""}}).size() == 1);
  CHECK(misplaced({{"simulator/a.h", ""}}).empty());
  CHECK(misplaced({{"tests/a_test.cpp", ""}}).size() == 1);
  CHECK(misplaced({{"util/a.h", ""}}).size() == 1);
  CHECK(misplaced({{"a.cpp", ""}}).size() == 1);
  CHECK(misplaced(pairs("executor", 3)).empty());
  CHECK(misplaced(pairs("executor", 4)).size() == 1);
  CHECK(misplaced({{"dev", ""}, {"docs/using.md", ""}, {"simulator/engine/a.cpp", ""}}).empty());
}
