// Numbers pinned beside the data that they are computed from. A change of one row fails its test and, recorded again,
// shows as a diff of that row.
//
//   RecordedTable now("memory.csv", {"id", "peak_bytes"});
//   now.add("1078", {whole(peak)});
//   CHECK(now.differences() == "");        // FSDP_PLAN_RECORD=1 in the environment: writes the file instead
//
// Whole numbers and words must be equal; decimal ones to 1e-6, which other compilers and libraries stay within.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

inline std::string whole(std::int64_t x) { return std::to_string(x); }
inline std::string decimal(double x) { return fmt::format("{:.8e}", x); }

class RecordedTable {
 public:
  // `file`: below tests/accuracy/recorded/.
  RecordedTable(const std::string& file, const std::vector<std::string>& header)
      : file_(std::string(FSDP_TESTS_DIR) + "/accuracy/recorded/" + file), header_(line_of(header)) {}

  // A key that was added before is the same row's next occurrence.
  void add(const std::string& key, const std::vector<std::string>& cells) {
    const int nth = ++seen_[key];
    rows_.emplace_back(nth == 1 ? key : key + "#" + std::to_string(nth), line_of(cells));
  }

  // One line for each row that is new, gone or different. `part`: only some rows were computed, none is missed.
  [[nodiscard]] std::string differences(bool part = false) const {
    if (std::getenv("FSDP_PLAN_RECORD") != nullptr && !part) return write(), std::string();
    const std::string text = differences_from(read(), part);
    return text.empty() ? text : text + "\n(FSDP_PLAN_RECORD=1 writes " + file_ + ")\n";
  }

  [[nodiscard]] std::string differences_from(std::map<std::string, std::string> recorded, bool part) const {
    std::string text;
    for (const auto& [key, cells] : rows_) {
      const auto before = recorded.find(key);
      if (before == recorded.end()) text += fmt::format("\n  row {}: not recorded", key);
      else if (!equal(before->second, cells))
        text += fmt::format("\n  row {}: recorded {}, now {}", key, before->second, cells);
      if (before != recorded.end()) recorded.erase(before);
    }
    for (const auto& [key, cells] : recorded)
      if (!part) text += fmt::format("\n  row {}: recorded {}, now missing", key, cells);
    return text;
  }

 private:
  [[nodiscard]] static std::string line_of(const std::vector<std::string>& cells) {
    std::string line;
    for (const std::string& cell : cells) line += (line.empty() ? "" : ",") + cell;
    return line;
  }

  [[nodiscard]] static bool equal_cell(const std::string& a, const std::string& b) {
    if (a == b) return true;
    if (a.find('.') == std::string::npos || b.find('.') == std::string::npos) return false;
    const double x = std::strtod(a.c_str(), nullptr), y = std::strtod(b.c_str(), nullptr);
    return std::abs(x - y) <= 1e-6 * std::max(std::abs(x), std::abs(y));
  }

  [[nodiscard]] static bool equal(const std::string& a, const std::string& b) {
    std::istringstream left(a), right(b);
    std::string x, y;
    while (std::getline(left, x, ',')) {
      if (!std::getline(right, y, ',') || !equal_cell(x, y)) return false;
    }
    return !std::getline(right, y, ',');
  }

  [[nodiscard]] std::map<std::string, std::string> read() const {
    std::ifstream in(file_);
    std::map<std::string, std::string> rows;
    std::string line;
    std::getline(in, line);
    CHECK_MESSAGE(line == header_, file_);
    while (std::getline(in, line)) {
      const std::size_t comma = line.find(',');
      rows[line.substr(0, comma)] = line.substr(comma + 1);
    }
    return rows;
  }

  void write() const {
    std::ofstream out(file_);
    out << header_ << "\n";
    for (const auto& [key, cells] : rows_) out << key << "," << cells << "\n";
    MESSAGE("recorded " << rows_.size() << " rows in " << file_);
  }

  std::string file_, header_;
  std::vector<std::pair<std::string, std::string>> rows_;
  std::map<std::string, int> seen_;
};

}  // namespace fsdp
