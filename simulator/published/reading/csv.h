// Comma-separated records from a stream, one at a time, in bounded memory: RFC 4180 (quotes, doubled quotes, line
// breaks inside quotes), lines that end with LF, CRLF or CR, a UTF-8 byte order mark.
//
//   std::ifstream file("runs.csv", std::ios::binary);
//   CsvReader csv(file);
//   while (csv.next()) use(csv.cells(), csv.line());
//
// Cells are bytes, exactly as they stand in the file. A record may be broken: then `problem` says how, its cells must
// not be used, and reading continues with the next record. Empty lines are skipped.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace fsdp {

inline constexpr std::size_t kMaxCsvRecord = std::size_t{1} << 20;  // bytes

class CsvReader {
 public:
  explicit CsvReader(std::istream& in) : in_(in), buffer_(std::size_t{1} << 16) {}

  [[nodiscard]] bool next();  // false at the end
  [[nodiscard]] const std::vector<std::string>& cells() const { return cells_; }
  [[nodiscard]] std::int64_t line() const { return line_; }  // where the record starts, from 1
  [[nodiscard]] std::int64_t last_line() const { return line_ends_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }  // empty: none

 private:
  [[nodiscard]] int get();
  [[nodiscard]] int peek();
  [[nodiscard]] bool fill();
  void quoted(std::string& cell);
  [[nodiscard]] bool keep(std::string& cell, int c);
  [[nodiscard]] bool end_of_line(int c);

  std::istream& in_;
  std::vector<char> buffer_;
  std::size_t at_ = 0, filled_ = 0, record_bytes_ = 0;
  bool started_ = false;
  std::int64_t at_line_ = 1, line_ = 1, line_ends_ = 1;
  std::vector<std::string> cells_;
  std::string problem_;
};

}  // namespace fsdp
