// Terminal charts. The memory chart's horizontal axis is host order (one column is a run of operations), because memory
// is handed out and taken back at host time; its vertical axis starts at zero.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "viz/viz.h"

namespace fsdp {
namespace {

// The largest value of each of `width` equal runs of operations.
std::vector<std::int64_t> columns(const MemoryTimeline& memory, int width) {
  const std::size_t n = memory.points.size();
  std::vector<std::int64_t> out(static_cast<std::size_t>(width), memory.start);
  for (std::size_t c = 0; c < out.size() && n > 0; ++c) {
    const std::size_t begin = c * n / out.size();
    const std::size_t end = std::max(begin + 1, (c + 1) * n / out.size());
    std::int64_t top = 0;
    for (std::size_t i = begin; i < end; ++i) top = std::max(top, memory.points[i].at);
    out[c] = top;
  }
  return out;
}

// One cell of a column `eighths` high (in eighths of a row), in row `row` counted from below.
std::string_view cell(std::int64_t eighths, int row, const ChartStyle& style) {
  return filled_cell(static_cast<std::size_t>(std::clamp<std::int64_t>(eighths - 8LL * row, 0, 8)), style);
}

// What the parts of a breakdown are drawn with, in the table's order.
constexpr std::array<char, kBreakdownParts.size()> kMarks = {'C', 'R', 'A', 'S', 'L', 'y', 'O', '.'};
constexpr std::array<Ink, kBreakdownParts.size()> kInks = {Ink::blue,    Ink::cyan,  Ink::yellow, Ink::red,
                                                           Ink::magenta, Ink::plain, Ink::green,  Ink::grey};

}  // namespace

std::string memory_chart(const MemoryTimeline& memory, Bytes limit, int width, int height, const ChartStyle& style) {
  width = std::clamp(width, 8, 400);
  height = std::clamp(height, 2, 100);
  const std::int64_t peak = memory.peak();
  // The limit is drawn where it does not flatten the curve: up to four times the peak.
  const bool draw_limit = limit.count() > 0 && limit.count() / 4 <= peak;
  const std::int64_t top = std::max<std::int64_t>({peak, draw_limit ? limit.count() : 0, 1});
  const double rows_per_byte = height / static_cast<double>(top);
  const int limit_row =
      draw_limit ? std::min(height - 1, static_cast<int>(static_cast<double>(limit.count()) * rows_per_byte)) : -1;
  const int peak_row =
      std::clamp(static_cast<int>(std::ceil(static_cast<double>(peak) * rows_per_byte)) - 1, 0, height - 1);
  const std::vector<std::int64_t> tops = columns(memory, width);
  std::string out;
  for (int row = height - 1; row >= 0; --row) {
    std::string label;
    if (row == peak_row) label = "peak " + human(Bytes(peak));
    else if (row == limit_row) label = "limit " + human(limit);
    else if (row == 0) label = "0";
    std::string line;
    for (const std::int64_t bytes : tops) {
      const auto eighths = static_cast<std::int64_t>(std::llround(static_cast<double>(bytes) * rows_per_byte * 8));
      const std::string_view glyph = cell(eighths, row, style);
      line += glyph == " " && row == limit_row ? std::string_view("-") : glyph;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += fmt::format("{:>16} |", label) + inked(line, row == limit_row ? Ink::red : Ink::blue, style);
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  out += fmt::format("{:>16} +{}\n", "", std::string(static_cast<std::size_t>(width), '-'));
  out += fmt::format("{:>16}  {} operations in host order", "", memory.points.size());
  if (limit.count() > 0 && (!draw_limit || limit_row == peak_row)) out += ", limit " + human(limit);
  return out + "\n";
}

std::string time_bar(const Breakdown& breakdown, Seconds step, int width, const ChartStyle& style) {
  width = std::clamp(width, 8, 400);
  const double whole = std::max(step.count(), total(breakdown).count());
  std::string bar;
  std::string legend;
  std::size_t columns = 0;
  double upto = 0;
  for (std::size_t i = 0; i < kBreakdownParts.size(); ++i) {
    const Seconds seconds = breakdown.*kBreakdownParts[i].member;
    if (!(seconds.count() > 0) || !(whole > 0)) continue;
    upto += seconds.count();
    const auto end = static_cast<std::size_t>(std::llround(upto / whole * width));
    if (end > columns) bar += inked(std::string(end - columns, kMarks[i]), kInks[i], style);
    columns = std::max(columns, end);
    legend += fmt::format("  {} {:<22} {:>10} {:>5.1f} %\n", inked(std::string(1, kMarks[i]), kInks[i], style),
                          kBreakdownParts[i].label, human(seconds), 100 * seconds.count() / whole);
  }
  if (const auto all = static_cast<std::size_t>(width); columns < all) bar.append(all - columns, ' ');
  return "[" + bar + "] " + human(step) + "\n" + legend;
}

}  // namespace fsdp
