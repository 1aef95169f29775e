// A picture of predicted against measured values: logarithmic axes, the diagonal, a band of 10 % around it, one colour
// per group.
//
//   write_file("accuracy.svg", scatter_svg(points, {.title = "Step time", .unit = "s"}));
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fsdp {

struct ScatterPoint {
  double measured = 0, predicted = 0;  // points that are not positive and finite are left out
  std::string group, label;            // the label shows when a pointer rests on the point
};
struct ScatterText {
  std::string title, unit;
};

// A whole SVG document, with no scripts and no references to anything outside. Text is escaped; the same points give
// the same bytes.
[[nodiscard]] std::string scatter_svg(std::span<const ScatterPoint>, const ScatterText&);

}  // namespace fsdp
