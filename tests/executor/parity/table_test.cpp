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
    if (row.here.starts_with("none: ")) continue;  // below
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

// A row without a test here gives one of these reasons, for one of these names: no rewording and no new row passes.
TEST_CASE("rows of PARITY.md without a test are those that are listed here, each for its reason") {
  const std::map<std::string, std::set<std::string>> listed = {
      {"plumbing of Python",
       {"test_modules_to_run_forward_empty_for_single_module", "test_to_float64_after_init",
        "test_non_root_forward_backward", "test_grouped_module_cast_forward_inputs",
        "test_layer_by_layer_shard_no_false_positive", "test_register_fsdp_forward_method",
        "test_reduce_scatter_max_input_buffers_resolves_to_max", "test_unshard_without_lazy_init",
        "test_exception_when_used_together_with_comm_hooks", "test_cached_state_dict", "test_fully_shard_del_memory",
        "test_reduce_dtype_after_frozen_first_forward", "test_structured_input_output", "test_norm_modules_bf16",
        "test_norm_modules_fp16", "test_clamp_reduce_dtype", "register_comm_hook",
        "apply, check_is_root, fsdp_modules, module, named_parameters, UnshardHandle"}},
      {"CUDA graphs", {"test_two_layer_fully_shard_cudagraph"}},
      {"symmetric memory", {"test_fully_shard_symm_mem"}},
      {"NCCL's own log", {"test_fully_shard_alloc_from_pg"}},
      {"kernel names", {"test_kernels (chunk_cat mixed dtype)"}},
  };
  CHECK(listed.at("plumbing of Python").size() <= 18);
  for (const Row& row : rows_of(lines_of(kTests / "PARITY.md"))) {
    if (!row.here.starts_with("none: ")) continue;
    CAPTURE(row.name);
    CAPTURE(row.here);
    const std::string reason = row.here.substr(6, row.here.find(':', 6) - 6);
    const auto found = listed.find(reason);
    REQUIRE(found != listed.end());
    CHECK(found->second.contains(row.name.substr(row.name.find(": ") + 2)));
  }
}

TEST_CASE("PARITY.md has one row for each name of parity_names.txt, and no other") {
  std::multiset<std::string> rows, names;
  for (const Row& row : rows_of(lines_of(kTests / "PARITY.md"))) rows.insert(row.name);
  for (const std::string& name : lines_of(kTests / "parity_names.txt")) names.insert(name);
  CHECK(rows == names);
  CHECK(std::set<std::string>(rows.begin(), rows.end()).size() == rows.size());
}
