// Terminal charts and tables. Records in, text out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/units.h"
#include "planner/breakdown.h"
#include "planner/timeline.h"
#include "viz/chart_style.h"

namespace fsdp {

// Allocated bytes over one step, about `width` x `height` characters, with the peak and the limit marked.
[[nodiscard]] std::string memory_chart(const MemoryTimeline&, Bytes limit, int width = 72, int height = 10,
                                       const ChartStyle& = {});
// One bar: where the step time goes, with a legend that carries seconds and percent.
[[nodiscard]] std::string time_bar(const Breakdown&, Seconds step, int width = 72, const ChartStyle& = {});

// The loss of each step, as many columns as steps up to `width`: a column stands for the mean of its steps; '?': one of
// them is NaN or infinite.
[[nodiscard]] std::string loss_chart(const std::vector<double>& losses, int width = 72, int height = 8,
                                     const ChartStyle& = {});

// A text table with aligned columns. Numbers right-aligned (a column is numeric when its header starts with '>'). A
// table that is wider than `width` has its texts, never its numbers, broken into several lines, as far as that helps.
[[nodiscard]] std::string table(const std::vector<std::string>& header,
                                const std::vector<std::vector<std::string>>& rows, std::optional<int> width = {});

}  // namespace fsdp
