#include "planner/costs/curve.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "models/input/error.h"

namespace fsdp {

namespace {

// Continues or joins the piece from (x0, y0) to (x1, y1) in log-log space; a falling piece counts as flat.
double on_piece(double x0, double y0, double x1, double y1, double x) {
  const double slope = std::max(0.0, std::log(y1 / y0) / std::log(x1 / x0));
  return y0 * std::pow(x / x0, slope);
}

}  // namespace

double interpolate(std::span<const CurvePoint> curve, double size) {
  if (size <= 0) return 0;
  if (curve.size() == 1) return curve[0].seconds * (size / curve[0].size);
  double low = curve[0].seconds;  // running maxima: the lifted curve
  double high = std::max(low, curve[1].seconds);
  std::size_t i = 1;
  while (i + 1 < curve.size() && curve[i].size < size) {
    low = high;
    high = std::max(high, curve[++i].seconds);
  }
  return on_piece(curve[i - 1].size, low, curve[i].size, high, size);
}

void check_curve(std::span<const CurvePoint> curve, const Origin& where) {
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const Origin at{where.file, where.field + "[" + std::to_string(i) + "]"};
    if (!std::isfinite(curve[i].size) || !std::isfinite(curve[i].seconds) || curve[i].size <= 0 ||
        curve[i].seconds <= 0)
      throw InputError(at, "size and seconds must be positive numbers", "calibrate again");
    if (i > 0 && curve[i].size <= curve[i - 1].size)
      throw InputError(at, "sizes must increase", "sort the points by size");
  }
}

const std::vector<CurvePoint>& collective_curve(CollectiveKind kind, const Costs& costs) {
  if (kind == CollectiveKind::all_gather) return costs.all_gather;
  return kind == CollectiveKind::reduce_scatter ? costs.reduce_scatter : costs.all_reduce;
}

}  // namespace fsdp
