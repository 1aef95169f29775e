// PARITY.md is complete: every PyTorch test that we know of has one row, and every test that a row names exists.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

const std::filesystem::path kTests = FSDP_TESTS_DIR;

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

struct Row {
  std::string name, here, shows;
};

// "## section" headings, then rows "| name | here | what it shows |".
std::vector<Row> rows_of(const std::vector<std::string>& lines) {
  std::vector<Row> rows;
  std::string section;
  for (const std::string& line : lines) {
    if (line.starts_with("## ")) section = line.substr(3);
    if (!line.starts_with("| ") || line.starts_with("| PyTorch |")) continue;
    std::vector<std::string> cells;
    std::size_t begin = 2;
    for (std::size_t bar = line.find(" |", begin); bar != std::string::npos; bar = line.find(" |", begin)) {
      cells.push_back(line.substr(begin, bar - begin));
      begin = std::min(bar + 3, line.size());
    }
    REQUIRE_MESSAGE(cells.size() == 3, line);
    rows.push_back({section + ": " + cells[0], cells[1], cells[2]});
  }
  return rows;
}

// What stands between backticks.
std::vector<std::string> links_of(const std::string& cell) {
  std::vector<std::string> links;
  for (std::size_t open = cell.find('`'); open != std::string::npos;) {
    const std::size_t close = cell.find('`', open + 1);
    REQUIRE(close != std::string::npos);
    links.push_back(cell.substr(open + 1, close - open - 1));
    open = cell.find('`', close + 1);
  }
  return links;
}

bool has_case(const std::string& file, const std::string& name) {
  static std::map<std::string, std::string> known;
  if (!known.contains(file)) {
    std::ifstream source(kTests / file);
    std::stringstream text;
    text << source.rdbuf();
    // A name that is too long for its line is written as several literals, and TEST_CASE( may stand alone.
    known[file] = std::regex_replace(text.str(), std::regex("\"\\s*\n\\s*\"|(TEST_CASE\\()\\s*\n\\s*"), "$1");
  }
  return known[file].find("TEST_CASE(\"" + name + "\")") != std::string::npos;
}

}  // namespace

TEST_CASE("every row of PARITY.md names tests that exist, or says why there is none") {
  const std::vector<Row> rows = rows_of(lines_of(kTests / "PARITY.md"));
  CHECK(rows.size() > 90);
  for (const Row& row : rows) {
    CAPTURE(row.name);
    if (row.here.starts_with("none: ")) {
      CHECK(row.here.size() > 12);
      continue;
    }
    const std::vector<std::string> links = links_of(row.here);
    CHECK(!links.empty());
    CHECK(!row.shows.empty());
    for (const std::string& link : links) {
      CAPTURE(link);
      const std::size_t colon = link.find("_test.cpp: ");
      REQUIRE(colon != std::string::npos);
      CHECK(has_case(link.substr(0, colon + 9), link.substr(colon + 11)));
    }
  }
}

TEST_CASE("PARITY.md has one row for each name of parity_names.txt, and no other") {
  std::multiset<std::string> rows, names;
  for (const Row& row : rows_of(lines_of(kTests / "PARITY.md"))) rows.insert(row.name);
  for (const std::string& name : lines_of(kTests / "parity_names.txt")) names.insert(name);
  CHECK(rows == names);
  CHECK(std::set<std::string>(rows.begin(), rows.end()).size() == rows.size());
}
