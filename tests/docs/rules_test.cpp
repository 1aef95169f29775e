// Comments cite the rules of docs/fsdp-order.md by label (`// B6c`). Every cited label is a heading there, and the
// project cites no document that a reader does not have.
#include <doctest/doctest.h>

#include <array>
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/house/cpp_text.h"
#include "tests/house/inner_order.h"
#include "tests/house/tree.h"

using namespace fsdp;

namespace {

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

// Label -> where it is cited.
using Citations = std::map<std::string, std::vector<std::string>>;

void add_citations(const SourceFile& file, Citations& citations) {
  const std::string comments = split(file.text).comments;
  const auto lines = lines_of(comments);
  for (std::size_t i = 0; i < lines.size(); ++i)
    for (const std::string& label : labels_in(lines[i])) citations[label].push_back(place(file, i));
}

Citations citations_of_code(const Tree& tree) {
  Citations citations;
  for (const SourceFile& file : tree) {
    const bool this_file = file.path == "tests/docs/rules_test.cpp";  // its examples are no citations
    if (!this_file && is_source(file.path) && rooms().contains(room_of(file.path))) add_citations(file, citations);
  }
  return citations;
}

// Label -> how many headings begin with it: "### B6c: bound on reduce-scatter inputs".
std::map<std::string, int> headings_of(const std::string& document) {
  std::map<std::string, int> headings;
  for (const std::string_view line : lines_of(document)) {
    const std::size_t begin = line.find_first_not_of('#');
    if (begin == 0 || begin == std::string::npos || line[begin] != ' ') continue;
    const std::size_t colon = line.find(':', begin);
    if (colon != std::string::npos) ++headings[std::string(line.substr(begin + 1, colon - begin - 1))];
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

Findings outside_citations(const Tree& tree) {
  Findings found;
  for (const SourceFile& file : tree)
    for (const std::string& name : outside_names())
      if (file.text.find(name) != std::string::npos) found.push_back(file.path + " cites '" + name + "'");
  return found;
}

}  // namespace

TEST_CASE("every rule that a comment names is a heading of docs/fsdp-order.md") {
  const Citations citations = citations_of_code(read_repository());
  const std::map<std::string, int> headings = headings_of(text_of(repository() / "docs" / "fsdp-order.md"));
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

  Citations planted;
  add_citations({"planted.cpp", "int a;  // B6c\nint b = f(\"// F8\");\n  // after B9x, as A1.99 says\n"}, planted);
  const std::map<std::string, int> headings = headings_of("# Title\n\n### B6c: a bound\n## B6c: again\ntext B9x: no\n");
  CHECK(headings.at("B6c") == 2);
  CHECK(unknown(planted, headings) == "A1.99 at planted.cpp:3\nB9x at planted.cpp:3\n");
}

TEST_CASE("the project cites no document that its readers do not have") {
  const Tree tree = read_repository();
  CHECK(tree.size() > 300);
  CHECK(listed(outside_citations(tree)) == "");

  CHECK(outside_citations({{"a.h", "as fsdp-order.md and costs.md say"}}).empty());
  const std::string name = outside_names().at(1);
  CHECK(outside_citations({{"a.h", "see " + name + " 3"}}) == Findings{"a.h cites '" + name + "'"});
}
