#include "viz/scatter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "viz/text.h"

namespace fsdp {
namespace {

constexpr double kSide = 560, kLeft = 80, kTop = 48, kBelow = 64, kLegend = 300;
constexpr double kBand = 0.1;
// Okabe and Ito's colours, which people with colour blindness tell apart.
constexpr std::array kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"};

bool drawable(const ScatterPoint& p) {
  return p.measured > 0 && p.predicted > 0 && std::isfinite(p.measured) && std::isfinite(p.predicted) &&
         p.measured >= 1e-200 && p.predicted >= 1e-200;
}

// Both axes cover the same decades.
struct Scale {
  double low = 0, high = 1;  // log10
  [[nodiscard]] double at(double value) const { return (std::log10(value) - low) / (high - low) * kSide; }
  [[nodiscard]] double x(double value) const { return kLeft + at(value); }
  [[nodiscard]] double y(double value) const { return kTop + kSide - at(value); }
};

Scale scale_of(const std::vector<const ScatterPoint*>& points) {
  if (points.empty()) return {};
  double low = points[0]->measured, high = low;
  for (const ScatterPoint* p : points) {
    low = std::min({low, p->measured, p->predicted});
    high = std::max({high, p->measured, p->predicted});
  }
  const double room = std::max(0.02 * std::log10(high / low), 0.05);
  return {std::log10(low) - room, std::log10(high) + room};
}

std::string line(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

std::string text(double x, double y, std::string_view anchor, std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     markup_text(words));
}

// 1, 2 and 5 of every decade that shows; only powers of ten (or of more) where that would be too many.
std::string ticks(const Scale& s) {
  std::string out;
  const double decades = s.high - s.low;
  const int step = std::max(1, static_cast<int>(decades / 8));
  for (int e = static_cast<int>(std::floor(s.low)); e <= static_cast<int>(std::ceil(s.high)); ++e) {
    if (e % step != 0) continue;
    for (const double m : {1.0, 2.0, 5.0}) {
      if (m != 1 && decades > 4) continue;
      const double v = m * std::pow(10.0, e);
      if (std::log10(v) < s.low || std::log10(v) > s.high) continue;
      out += line(s.x(v), kTop, s.x(v), kTop + kSide, "stroke=\"#e5e5e5\"") +
             line(kLeft, s.y(v), kLeft + kSide, s.y(v), "stroke=\"#e5e5e5\"");
      out += text(s.x(v), kTop + kSide + 18, "middle", fmt::format("{:g}", v)) +
             text(kLeft - 8, s.y(v) + 4, "end", fmt::format("{:g}", v));
    }
  }
  return out;
}

std::string diagonals(const Scale& s) {
  const double low = std::pow(10.0, s.low), high = std::pow(10.0, s.high), up = 1 + kBand;
  std::string out = line(s.x(low), s.y(low), s.x(high), s.y(high), "stroke=\"#444\"");
  out += line(s.x(low), s.y(low * up), s.x(high / up), s.y(high), "stroke=\"#999\" stroke-dasharray=\"4 4\"");
  out += line(s.x(low / (1 - kBand)), s.y(low), s.x(high), s.y(high * (1 - kBand)),
              "stroke=\"#999\" stroke-dasharray=\"4 4\"");
  return out;
}

}  // namespace

std::string scatter_svg(std::span<const ScatterPoint> all, const ScatterText& words) {
  std::vector<const ScatterPoint*> points;
  std::vector<std::string> groups;
  for (const ScatterPoint& p : all) {
    if (!drawable(p)) continue;
    points.push_back(&p);
    if (std::find(groups.begin(), groups.end(), p.group) == groups.end()) groups.push_back(p.group);
  }
  std::sort(groups.begin(), groups.end());
  const Scale s = scale_of(points);
  const double width = kLeft + kSide + kLegend, height = kTop + kSide + kBelow;
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      width, height);
  out += ticks(s) + diagonals(s);
  out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#444\"/>\n", kLeft,
                     kTop, kSide, kSide);
  out += fmt::format("<text x=\"{}\" y=\"28\" font-size=\"16\">{}</text>\n", kLeft, markup_text(words.title));
  out += text(kLeft + kSide / 2, kTop + kSide + 44, "middle", "measured, " + words.unit);
  out += fmt::format("<text transform=\"translate(20 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     kTop + kSide / 2, markup_text("predicted, " + words.unit));
  const auto colour = [&](const std::string& group) {
    const auto at = static_cast<std::size_t>(std::find(groups.begin(), groups.end(), group) - groups.begin());
    return kColours[at % kColours.size()];
  };
  for (const ScatterPoint* p : points)
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\" fill-opacity=\"0.6\"><title>{}</title></circle>\n",
        s.x(p->measured), s.y(p->predicted), colour(p->group), markup_text(p->label));
  const std::size_t shown = std::min<std::size_t>(groups.size(), 24);
  for (std::size_t i = 0; i < shown; ++i) {
    const double y = kTop + 14 + 20 * static_cast<double>(i), x = kLeft + kSide + 20;
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n", x, y - 4, colour(groups[i]));
    out += text(x + 12, y, "start", groups[i].empty() ? "not stated" : groups[i].substr(0, 60));
  }
  if (points.empty()) out += text(kLeft + kSide / 2, kTop + kSide / 2, "middle", "nothing to show");
  return out + "</svg>\n";
}

}  // namespace fsdp
