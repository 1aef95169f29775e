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

}  // namespace

std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::string> titles;
  std::vector<bool> right;
  for (const std::string& h : header) {
    const bool numeric = !h.empty() && h.front() == '>';
    right.push_back(numeric);
    titles.push_back(numeric ? h.substr(1) : h);
  }
  std::vector<std::size_t> widths(titles.size(), 0);
  for (std::size_t c = 0; c < titles.size(); ++c) {
    widths[c] = columns_of(titles[c]);
    for (const auto& row : rows) {
      if (c < row.size()) widths[c] = std::max(widths[c], columns_of(row[c]));
    }
  }
  std::vector<std::string> rule;
  for (const std::size_t w : widths) rule.emplace_back(w, '-');
  std::string out = line(titles, widths, right) + line(rule, widths, right);
  for (const auto& row : rows) out += line(row, widths, right);
  return out;
}

}  // namespace fsdp
