#include "simulator/published/reading/csv.h"

#include <fmt/format.h>

namespace fsdp {
namespace {
constexpr int kEnd = -1;
}

bool CsvReader::fill() {
  if (!in_) return false;
  in_.read(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  filled_ = static_cast<std::size_t>(in_.gcount());
  at_ = 0;
  return filled_ > 0;
}

int CsvReader::peek() { return at_ < filled_ || fill() ? static_cast<unsigned char>(buffer_[at_]) : kEnd; }

int CsvReader::get() {
  const int c = peek();
  if (c != kEnd) ++at_;
  if (c == '\n') ++at_line_;
  return c;
}

// A record that is too long is read on to its end, but no longer kept.
bool CsvReader::keep(std::string& cell, int c) {
  if (++record_bytes_ > kMaxCsvRecord) {
    if (problem_.empty()) problem_ = fmt::format("longer than {} KiB: is a quote not closed?", kMaxCsvRecord >> 10);
    return false;
  }
  cell.push_back(static_cast<char>(c));
  return true;
}

// After the opening quote, up to the closing one. A quote that opens and never closes would swallow the rest of the
// file: past the limit the record ends with its line.
void CsvReader::quoted(std::string& cell) {
  for (int c = get(); c != kEnd; c = get()) {
    if (c == '"') {
      if (peek() != '"') return;
      c = get();
    }
    if (!keep(cell, c) && c == '\n') return;
  }
  if (problem_.empty()) problem_ = "a quote is opened and not closed";
}

bool CsvReader::end_of_line(int c) {
  if (c == '\r') {
    if (peek() == '\n') (void)get();
    else ++at_line_;
    return true;
  }
  return c == '\n';
}

bool CsvReader::next() {
  if (!started_) {
    started_ = true;
    for (const int mark : {0xEF, 0xBB, 0xBF})
      if (peek() == mark) (void)get();
      else break;
  }
  while (peek() == '\n' || peek() == '\r') (void)end_of_line(get());
  if (peek() == kEnd) return false;
  cells_.assign(1, {});
  problem_.clear();
  record_bytes_ = 0;
  line_ = at_line_;
  bool closed = false;  // a quoted cell has ended: only a comma or the end of the line may follow
  for (int c = get();; c = get()) {
    if (c == kEnd) break;
    line_ends_ = at_line_;
    if (c == '\n' || c == '\r') {
      if (c == '\n') line_ends_ = at_line_ - 1;
      (void)end_of_line(c);
      break;
    }
    if (c == ',') {
      closed = false;
      if (++record_bytes_ <= kMaxCsvRecord) cells_.emplace_back();
      else if (problem_.empty()) problem_ = fmt::format("longer than {} KiB", kMaxCsvRecord >> 10);
    } else if (c == '"' && cells_.back().empty() && !closed) {
      quoted(cells_.back());
      closed = true;
      line_ends_ = at_line_;
      if (record_bytes_ > kMaxCsvRecord) break;
    } else if (closed && c != ' ') {
      if (problem_.empty()) problem_ = "text follows a closing quote";
    } else if (!closed) {
      (void)keep(cells_.back(), c);
    }
  }
  return true;
}

}  // namespace fsdp
