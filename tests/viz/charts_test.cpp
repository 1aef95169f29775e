// Charts and tables, on records small enough to draw by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/lines.h"
#include "tests/support/refusal.h"
#include "viz/viz.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

std::size_t full_cells(const std::string& line) {
  std::size_t n = 0;
  for (std::size_t at = line.find("█"); at != std::string::npos; at = line.find("█", at + 1)) ++n;
  return n;
}

MemoryTimeline ramp(std::int64_t unit) {  // 0, 1, 2, ... 7 units: a staircase
  MemoryTimeline m;
  for (std::int64_t i = 0; i < 8; ++i) m.points.push_back({i * unit, i * unit});
  return m;
}

}  // namespace

TEST_CASE("a table aligns its columns") {
  const auto lines =
      lines_of(table({"plan", ">step", "why"}, {{"block", "1.5 s", "chosen"}, {"a longer one", "12.25 s", ""}}));
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "plan             step  why");
  CHECK(lines[1] == "------------  -------  ------");
  CHECK(lines[2] == "block           1.5 s  chosen");
  CHECK(lines[3] == "a longer one  12.25 s");  // no blanks at the end
}

TEST_CASE("a table counts characters, not bytes, and survives short rows") {
  const auto lines = lines_of(table({"name", ">n"}, {{"größe", "1"}, {"plain"}}));
  CHECK(lines[2] == "größe  1");
  CHECK(lines[3] == "plain");
}

TEST_CASE("the memory chart fills what is allocated and marks peak and limit") {
  // A staircase of 8 steps in 8 columns and 7 rows: the row k from below is filled from column k + 1 on, so 7 - k
  // cells.
  const std::int64_t gib = std::int64_t{1} << 30;
  const auto lines = lines_of(memory_chart(ramp(gib), Bytes(0), 8, 7));
  for (std::size_t row = 0; row < 7; ++row) CHECK(full_cells(lines[row]) == row + 1);
  CHECK(holds(lines[0], "peak 7"));
  CHECK(holds(lines[6], "0 |"));
  const std::string limited = memory_chart(ramp(gib), Bytes(14 * gib), 8, 7);
  CHECK(holds(lines_of(limited)[0], "limit 14"));  // twice the peak: drawn, at the top
  CHECK(holds(lines_of(limited)[0], "--------"));
  CHECK(holds(lines_of(limited)[3], "peak 7"));  // half way: 3.5 of 7 rows, in the fourth from below
}

TEST_CASE("colours and ASCII change what a chart is drawn with, not its shape") {
  const std::int64_t gib = std::int64_t{1} << 30;
  const auto without_escapes = [](std::string text) {
    for (std::size_t i = text.find('\033'); i != std::string::npos; i = text.find('\033'))
      text.erase(i, text.find('m', i) - i + 1);
    return text;
  };
  const std::string plain = memory_chart(ramp(gib), Bytes(14 * gib), 8, 7);
  const std::string coloured = memory_chart(ramp(gib), Bytes(14 * gib), 8, 7, {.colours = true});
  CHECK(coloured != plain);
  CHECK(without_escapes(coloured) == plain);
  const std::string ascii = memory_chart(ramp(gib), Bytes(14 * gib), 8, 7, {.ascii = true});
  CHECK(std::all_of(ascii.begin(), ascii.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
  CHECK(lines_of(ascii).size() == lines_of(plain).size());
  CHECK(holds(ascii, "#"));
  Breakdown b;
  b.compute = Seconds(3);
  b.idle = Seconds(1);
  CHECK(without_escapes(time_bar(b, Seconds(4), 40, {.colours = true})) == time_bar(b, Seconds(4), 40));
  const std::vector<double> losses = {4, 3, 2, 1};
  CHECK(without_escapes(loss_chart(losses, 8, 4, {.colours = true})) == loss_chart(losses, 8, 4));
}

TEST_CASE("a limit far above the curve is named, not drawn") {
  const std::string chart = memory_chart(ramp(1 << 20), Bytes(std::int64_t{80} << 30), 40, 6);
  CHECK(holds(chart, "limit 80"));
  CHECK(full_cells(lines_of(chart)[0]) > 0);
}

TEST_CASE("the memory chart keeps a spike that is shorter than a column") {
  MemoryTimeline m;
  m.points.assign(1000, {100, 100});
  m.points[501] = {800, 100};
  const auto lines = lines_of(memory_chart(m, Bytes(0), 10, 8));
  CHECK(full_cells(lines[0]) == 1);
}

TEST_CASE("the memory chart takes nothing and odd sizes") {
  CHECK(!memory_chart({}, Bytes(0)).empty());
  CHECK(!memory_chart(ramp(0), Bytes(0), -5, 0).empty());
  CHECK(!memory_chart(ramp(std::int64_t{1} << 59), Bytes(INT64_MAX), 10, 5).empty());
}

TEST_CASE("the time bar gives each part its share of the width") {
  Breakdown b;
  b.compute = Seconds(6);
  b.exposed_all_gather = Seconds(3);
  b.idle = Seconds(1);
  const std::string bar = time_bar(b, Seconds(10), 20);
  const std::string first = lines_of(bar).front();
  CHECK(holds(first, "[CCCCCCCCCCCCAAAAAA..]"));  // 12 + 6 + 2 of 20
  CHECK(holds(bar, "60.0 %"));
  CHECK(holds(bar, "exposed all-gather"));
  CHECK(!holds(bar, "recompute"));  // parts that are zero are left out
  CHECK(!time_bar({}, Seconds(0)).empty());
}

TEST_CASE("a chart of losses: the least and the largest column, a column for each step, falls where they fall") {
  std::vector<double> losses;
  for (int i = 0; i < 16; ++i) losses.push_back(8.0 - 0.25 * i);  // 8 .. 4.25
  const std::string chart = loss_chart(losses, 72, 4);
  CHECK(chart.starts_with("    8.0000 |"));
  CHECK(chart.find("    4.2500 |") != std::string::npos);
  CHECK(chart.find("+----------------\n") != std::string::npos);
  CHECK(chart.find("step  1             16\n") != std::string::npos);
  // Four rows of eighths over 16 columns: from 32 eighths down to 1.
  const std::string first = chart.substr(0, chart.find('\n'));
  CHECK(first == "    8.0000 |█▆▄▂");
  // Two steps to a column: their mean, 7.875 and 4.375 at the ends.
  const std::string half = loss_chart(losses, 8, 4);
  CHECK(half.starts_with("    7.8750 |"));
  CHECK(half.find("    4.3750 |") != std::string::npos);
}

TEST_CASE("a chart of losses that are no numbers, or all one, or none") {
  CHECK(loss_chart({}) == "");
  CHECK(loss_chart({std::nan(""), std::nan("")}) == "");
  CHECK(loss_chart({5, 4, std::nan(""), 3}, 72, 2).find('?') != std::string::npos);
  CHECK(loss_chart({1, 1, 1}).find("1.0000 |") != std::string::npos);
}
