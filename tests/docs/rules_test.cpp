// Comments cite the rules of docs/fsdp-order.md by label (`// B6c`). Every cited label is a heading there, and the
// project cites no document that a reader does not have.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = fs::path(FSDP_TESTS_DIR) / "..";

// At least as many different labels as were cited when this test was written.
constexpr std::size_t kRulesCited = 34;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "F2", "F3a", "B6c", "D1", "M2"; "A1" and "A2", which a number may follow.
bool is_label(std::string_view word) {
  if (word.size() < 2 || word.size() > 3 || word[1] < '1' || word[1] > '9') return false;
  const bool lettered = word.size() == 3 && word[2] >= 'a' && word[2] <= 'z';
  switch (word[0]) {
    case 'F':
    case 'B': return word.size() == 2 || lettered;
    case 'D':
    case 'M': return word.size() == 2;
    case 'A': return word.size() == 2 && word[1] <= '2';
    default: return false;
  }
}

// Labels in a comment, in order. Names that look alike are no labels: "B200", "A100", "BM.GPU.B4.8", "F8_E4M3".
std::vector<std::string> labels_in(std::string_view text) {
  std::vector<std::string> labels;
  for (std::size_t begin = 0; begin < text.size();) {
    if (!is_word(text[begin])) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < text.size() && is_word(text[end])) ++end;
    const bool inside_a_name = begin >= 2 && text[begin - 1] == '.' && is_word(text[begin - 2]);
    if (is_label(text.substr(begin, end - begin)) && !inside_a_name) {
      std::size_t number = end + 1;
      while (end < text.size() && text[end] == '.' && number < text.size() && is_digit(text[number])) ++number;
      const bool numbered = number > end + 1;
      if (numbered && text[begin] == 'A') end = number;
      if (!numbered || text[begin] == 'A') labels.emplace_back(text.substr(begin, end - begin));
    }
    begin = end;
  }
  return labels;
}

// What follows `//` in a line of C++, outside of strings and characters.
std::string_view comment_in(std::string_view line) {
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == '\\') ++i;
      else if (c == quote) quote = 0;
    } else if (c == '"' || (c == '\'' && (i == 0 || !is_word(line[i - 1])))) {
      quote = c;
    } else if (c == '/' && i + 1 < line.size() && line[i + 1] == '/') {
      return line.substr(i + 2);
    }
  }
  return {};
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// Label -> where it is cited.
using Citations = std::map<std::string, std::vector<std::string>>;

void add_citations(const std::string& source, const std::string& where, Citations& citations) {
  std::istringstream lines(source);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    for (const std::string& label : labels_in(comment_in(line)))
      citations[label].push_back(where + ":" + std::to_string(number));
  }
}

Citations citations_of_code() {
  static const std::set<std::string> kExtensions = {".h", ".cpp", ".cu", ".cuh"};
  Citations citations;
  for (const char* folder : {"models", "planner", "simulator", "executor", "viz", "cli", "tests"}) {
    REQUIRE_MESSAGE(fs::is_directory(kRoot / folder), folder);
    for (const fs::path& path : files_below(kRoot / folder)) {
      const bool this_file = path.filename() == fs::path(__FILE__).filename();  // its examples are no citations
      if (!this_file && kExtensions.contains(path.extension().string()))
        add_citations(text_of(path), fs::relative(path, kRoot).string(), citations);
    }
  }
  return citations;
}

// Label -> how many headings begin with it: "### B6c: bound on reduce-scatter inputs".
std::map<std::string, int> headings_of(const std::string& document) {
  std::map<std::string, int> headings;
  std::istringstream lines(document);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find_first_not_of('#');
    if (begin == 0 || begin == std::string::npos || line[begin] != ' ') continue;
    const std::size_t colon = line.find(':', begin);
    if (colon != std::string::npos) ++headings[line.substr(begin + 1, colon - begin - 1)];
  }
  return headings;
}

std::string unknown(const Citations& citations, const std::map<std::string, int>& headings) {
  std::string text;
  for (const auto& [label, places] : citations) {
    if (!headings.contains(label)) text += label + " at " + places.front() + "\n";
  }
  return text;
}

// Documents that are not part of the project. Each name is in two pieces, so that this file does not contain it either.
std::vector<std::string> outside_names() {
  constexpr std::array<std::array<const char*, 2>, 4> kPieces = {
      {{"fsdp-", "semantics"}, {"cost-", "facts"}, {"of the ", "semantics"}, {"shared/", "reference"}}};
  std::vector<std::string> names;
  for (const auto& [first, second] : kPieces) names.push_back(std::string(first) + second);
  return names;
}

std::string outside_citations(const std::string& text, const std::string& where) {
  std::string found;
  for (const std::string& name : outside_names()) {
    if (text.find(name) != std::string::npos) found += where + " cites '" + name + "'\n";
  }
  return found;
}

}  // namespace

TEST_CASE("every rule that a comment names is a heading of docs/fsdp-order.md") {
  const Citations citations = citations_of_code();
  const std::map<std::string, int> headings = headings_of(text_of(kRoot / "docs" / "fsdp-order.md"));
  CHECK(unknown(citations, headings) == "");
  CHECK(citations.size() >= kRulesCited);
  for (const auto& [label, count] : headings) {
    CAPTURE(label);
    CHECK(count == 1);
  }
}

TEST_CASE("labels are found in comments alone, and an unknown one is reported with its place") {
  using Labels = std::vector<std::string>;
  CHECK(labels_in(" forward F1..F7, backward B1..B6i (A2.4, A2.8).") ==
        Labels{"F1", "F7", "B1", "B6i", "A2.4", "A2.8"});
  CHECK(labels_in(" A1, D1: M2; F3a-F3e") == Labels{"A1", "D1", "M2", "F3a", "F3e"});
  CHECK(labels_in(" B200 A100 A10 BM.GPU.B4.8 F8_E4M3 F32 fp8 H2D D2H B6C F0 B6ab x_F1 2.F A3").empty());
  CHECK(comment_in("  f(\"// F1 \\\" // F2\", '\"', 1'000'000);  // F3") == " F3");
  CHECK(comment_in("  f(a / b);").empty());

  Citations planted;
  add_citations("int a;  // B6c\nint b = f(\"// F8\");\n  // after B9x, as A1.99 says\n", "planted.cpp", planted);
  const std::map<std::string, int> headings = headings_of("# Title\n\n### B6c: a bound\n## B6c: again\ntext B9x: no\n");
  CHECK(headings.at("B6c") == 2);
  CHECK(unknown(planted, headings) == "A1.99 at planted.cpp:3\nB9x at planted.cpp:3\n");
}

TEST_CASE("the project cites no document that its readers do not have") {
  std::string found;
  std::size_t files = 0;
  const auto look = [&](const fs::path& path) {
    ++files;
    found += outside_citations(text_of(path), fs::relative(path, kRoot).string());
  };
  for (const char* folder : {"models", "planner", "simulator", "executor", "viz", "cli", "tests", "docs", "python"}) {
    for (const fs::path& path : files_below(kRoot / folder)) look(path);
  }
  for (const auto& entry : fs::directory_iterator(kRoot)) {
    if (entry.is_regular_file()) look(entry.path());
  }
  CHECK(files > 300);
  CHECK(found == "");

  CHECK(outside_citations("as fsdp-order.md and costs.md say", "a.h") == "");
  const std::string name = outside_names().at(1);
  CHECK(outside_citations("see " + name + " 3", "a.h") == "a.h cites '" + name + "'\n");
}
