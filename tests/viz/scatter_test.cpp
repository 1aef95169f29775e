// The picture of measured against predicted: well-formed XML whatever the labels hold, and points where they belong.
#include "viz/scatter.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace fsdp;

namespace {

// A checker for the XML that pictures consist of: tags nest, attributes are quoted, text holds no bare & or < and is
// UTF-8 of characters that XML knows.
bool well_formed(const std::string& text) {
  std::vector<std::string> open;
  std::size_t i = 0;
  const auto reference = [&](std::size_t at) {
    for (const char* r : {"&amp;", "&lt;", "&gt;", "&quot;"})
      if (text.compare(at, std::string(r).size(), r) == 0) return true;
    return false;
  };
  while (i < text.size()) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '<') {
      const std::size_t end = text.find('>', i);
      if (end == std::string::npos) return false;
      std::string tag = text.substr(i + 1, end - i - 1);
      i = end + 1;
      if (tag.starts_with("?")) continue;
      if (tag.find('<') != std::string::npos) return false;
      for (std::size_t k = 0; k < tag.size(); ++k)
        if (tag[k] == '&' && !reference(end - tag.size() + k)) return false;
      int quotes = 0;
      for (const char q : tag) quotes += q == '"';
      if (quotes % 2 != 0) return false;
      const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
      if (tag.starts_with("/")) {
        if (open.empty() || "/" + open.back() != tag) return false;
        open.pop_back();
      } else if (!tag.ends_with("/")) {
        open.push_back(name);
      }
      continue;
    }
    if (c == '&' && !reference(i)) return false;
    if (c < 0x20 && c != '\n') return false;
    if (c >= 0x80) {
      const std::size_t more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
      if (c < 0xC2 || c > 0xF4 || i + more >= text.size()) return false;
      for (std::size_t k = 1; k <= more; ++k)
        if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return false;
      i += more;
    }
    ++i;
  }
  return open.empty();
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

double attribute(const std::string& svg, std::size_t from, const std::string& name) {
  const std::size_t at = svg.find(name + "=\"", from);
  return std::stod(svg.substr(at + name.size() + 2));
}

}  // namespace

TEST_CASE("the test refuses malformed XML") {
  CHECK(well_formed("<a b=\"c\"><d/>&amp;</a>"));
  CHECK_FALSE(well_formed("<a><b></a></b>"));
  CHECK_FALSE(well_formed("<a>&</a>"));
  CHECK_FALSE(well_formed("<a>\xff</a>"));
}

TEST_CASE("points lie where their values say") {
  const std::vector<ScatterPoint> points = {{1, 1, "a", "even"}, {10, 20, "b", "slow"}, {100, 50, "a", "fast"}};
  const std::string svg = scatter_svg(points, {"Step <time>", "s"});
  CHECK(well_formed(svg));
  CHECK(count(svg, "<title>") == 3);
  CHECK(svg.find("Step &lt;time&gt;") != std::string::npos);
  const auto place = [&](const std::string& label) {
    const std::size_t at = svg.rfind("<circle", svg.find("<title>" + label));
    return std::pair(attribute(svg, at, "cx"), attribute(svg, at, "cy"));
  };
  const auto [x1, y1] = place("even");
  const auto [x2, y2] = place("slow");
  const auto [x3, y3] = place("fast");
  CHECK(x2 - x1 == doctest::Approx(x3 - x2).epsilon(0.01));  // decades are equally wide
  CHECK(y1 - y2 == doctest::Approx((x2 - x1) * std::log10(20)).epsilon(0.01));
  CHECK(y1 - y3 == doctest::Approx((x2 - x1) * std::log10(50)).epsilon(0.01));
}

TEST_CASE("nothing, nonsense and hostile labels") {
  CHECK(well_formed(scatter_svg({}, {"", ""})));
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const std::vector<ScatterPoint> odd = {{0, 1, "", ""},   {-1, 1, "", ""},         {inf, 1, "", ""},
                                         {1, nan, "", ""}, {1e-300, 1e300, "", ""}, {1e-9, 1e9, "<&>\"'", "]]>"},
                                         {3, 3, "g", "x"}};
  const std::string svg = scatter_svg(odd, {"t", "u"});
  CHECK(well_formed(svg));
  CHECK(count(svg, "<title>") == 2);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    std::string label;
    for (int k = 0; k < 12; ++k) label += static_cast<char>(random());
    const std::vector<ScatterPoint> one = {{1, 2, label, label}};
    CHECK(well_formed(scatter_svg(one, {label, label})));
  }
}
