// Text tables. Width counts UTF-8 code points, since names of models and units may hold any of them.
#include <algorithm>
#include <cstddef>

#include "viz/viz.h"

namespace fsdp {
namespace {

std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::size_t have = columns_of(text);
  const std::string fill(width > have ? width - have : 0, ' ');
  return right ? fill + text : text + fill;
}

std::string line(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths,
                 const std::vector<bool>& right) {
  std::string out;
  for (std::size_t c = 0; c < widths.size(); ++c) {
    if (c > 0) out += "  ";
    out += padded(c < cells.size() ? cells[c] : std::string(), widths[c], right[c]);
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + "\n";
}

// Bytes of the first `columns` code points.
std::size_t bytes_of(const std::string& text, std::size_t columns) {
  std::size_t at = 0;
  for (; at < text.size() && columns > 0; --columns) do
      ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U);
  return at;
}

// Broken at spaces, and inside a word only where that is wider than a line.
std::vector<std::string> broken(std::string text, std::size_t width) {
  std::vector<std::string> lines;
  while (columns_of(text) > width) {
    const std::size_t most = bytes_of(text, width);
    const std::size_t space = text.rfind(' ', most);
    const bool at_space = space != std::string::npos && space > 0;
    lines.push_back(text.substr(0, at_space ? space : most));
    text.erase(0, at_space ? space + 1 : most);
  }
  lines.push_back(std::move(text));
  return lines;
}

std::size_t longest_word(const std::string& text) {
  std::size_t longest = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    longest = std::max(longest, columns_of(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return longest;
}

constexpr std::size_t kNarrowest = 12;  // a column of text

struct Columns {
  std::vector<std::string> titles;
  std::vector<bool> right;
  std::vector<std::size_t> widths, least;
};

// The widest column that can do with less gives way, column by column, until the table fits or none can.
void shrink(Columns& columns, std::size_t width) {
  const auto total = [&] {
    std::size_t sum = 2 * (columns.widths.size() - 1);
    for (const std::size_t w : columns.widths) sum += w;
    return sum;
  };
  while (total() > width) {
    std::size_t widest = columns.widths.size();
    for (std::size_t c = 0; c < columns.widths.size(); ++c)
      if (columns.widths[c] > columns.least[c] &&
          (widest == columns.widths.size() || columns.widths[c] > columns.widths[widest]))
        widest = c;
    if (widest == columns.widths.size()) return;
    --columns.widths[widest];
  }
}

// A row as lines: cells that are wider than their column go on below.
std::string lines(const std::vector<std::string>& cells, const Columns& columns) {
  std::vector<std::vector<std::string>> parts;
  std::size_t height = 1;
  for (std::size_t c = 0; c < columns.widths.size(); ++c) {
    parts.push_back(broken(c < cells.size() ? cells[c] : std::string(), columns.widths[c]));
    height = std::max(height, parts.back().size());
  }
  std::string out;
  for (std::size_t i = 0; i < height; ++i) {
    std::vector<std::string> now;
    for (const auto& cell : parts) now.push_back(i < cell.size() ? cell[i] : "");
    out += line(now, columns.widths, columns.right);
  }
  return out;
}

}  // namespace

std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                  std::optional<int> width) {
  Columns columns;
  for (const std::string& h : header) {
    const bool numeric = !h.empty() && h.front() == '>';
    columns.right.push_back(numeric);
    columns.titles.push_back(numeric ? h.substr(1) : h);
  }
  for (std::size_t c = 0; c < columns.titles.size(); ++c) {
    std::size_t values = 0;
    for (const auto& row : rows)
      if (c < row.size()) values = std::max(values, columns_of(row[c]));
    columns.widths.push_back(std::max(values, columns_of(columns.titles[c])));
    const std::size_t least = columns.right[c] ? values : std::min(values, kNarrowest);
    columns.least.push_back(std::max(least, longest_word(columns.titles[c])));
  }
  if (width) shrink(columns, static_cast<std::size_t>(std::max(1, *width)));
  std::vector<std::string> rule;
  for (const std::size_t w : columns.widths) rule.emplace_back(w, '-');
  std::string out = lines(columns.titles, columns) + line(rule, columns.widths, columns.right);
  for (const auto& row : rows) out += lines(row, columns);
  return out;
}

}  // namespace fsdp
