// The loss over the steps of a run. One column is a run of steps (their mean); the vertical axis reaches from the least
// to the largest column.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "viz/viz.h"

namespace fsdp {
namespace {

// NaN: the run of steps has a loss that is no number.
std::vector<double> columns(const std::vector<double>& losses, std::size_t width) {
  std::vector<double> out(std::min(width, losses.size()));
  for (std::size_t c = 0; c < out.size(); ++c) {
    const std::size_t begin = c * losses.size() / out.size(), end = (c + 1) * losses.size() / out.size();
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += losses[i];
    out[c] = sum / static_cast<double>(end - begin);
    if (!std::isfinite(out[c])) out[c] = std::nan("");
  }
  return out;
}

}  // namespace

std::string loss_chart(const std::vector<double>& losses, int width, int height, const ChartStyle& style) {
  const int rows = std::clamp(height, 2, 100);
  const std::vector<double> tops = columns(losses, static_cast<std::size_t>(std::clamp(width, 8, 400)));
  std::vector<double> numbers;
  std::copy_if(tops.begin(), tops.end(), std::back_inserter(numbers), [](double x) { return !std::isnan(x); });
  if (numbers.empty()) return "";
  const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
  const double span = *most > *least ? *most - *least : 1;
  std::string out;
  for (int row = rows - 1; row >= 0; --row) {
    out += fmt::format("{:>10} |", row == rows - 1 ? fmt::format("{:.4f}", *most)
                                   : row == 0      ? fmt::format("{:.4f}", *least)
                                                   : "");
    std::string line;
    for (const double top : tops) {
      // From one eighth of the lowest row to the whole chart.
      const double eighths = std::isnan(top) ? 0 : 1 + (top - *least) / span * (8 * rows - 1);
      line +=
          std::isnan(top) && row == 0
              ? "?"
              : filled_cell(static_cast<std::size_t>(std::clamp<long>(std::lround(eighths) - 8L * row, 0, 8)), style);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += inked(line, Ink::cyan, style);
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  const std::string last = fmt::format("{}", losses.size());
  const auto gap = static_cast<int>(tops.size()) - 1 - static_cast<int>(last.size());
  out += fmt::format("{:>10} +{}\n", "", std::string(tops.size(), '-'));
  out += fmt::format("{:>10}  1{:>{}}\n", "step", last, std::max(gap, 0) + static_cast<int>(last.size()));
  return out;
}

}  // namespace fsdp
