#include "viz/step_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "simulator/analysis/breakdown.h"
#include "simulator/analysis/memory_report.h"
#include "simulator/analysis/order.h"
#include "simulator/analysis/times.h"
#include "viz/drawn_as.h"
#include "viz/memory_walk.h"
#include "viz/text.h"

namespace fsdp {
namespace {

constexpr double kPictureWidth = 1000, kChartLeft = 106, kChartRight = 12, kChartTop = 62,
                 kChartWidth = kPictureWidth - kChartLeft - kChartRight;
constexpr double kTextLeft = 14, kTitleLine = 20, kSubtitleLine = 17;
constexpr std::size_t kTitleCharacters = 110, kSubtitleCharacters = 138;  // of a line, of wide letters too
constexpr double kMemoryHeight = 190, kColumn = 2;  // pixels for which memory's highest moment stands
constexpr std::array<double, kStreams> kLaneHeight = {36, 14, 24, 24, 20, 24};
constexpr double kGap = 5;

// Colours of kinds and of parts of memory, light and dark: those of the report's page.
constexpr std::array<std::array<const char*, 2>, 9> kKindColours = {{{"#3f7fd6", "#6ea6f2"},
                                                                     {"#27509b", "#8f9df0"},
                                                                     {"#2d9a95", "#55c7c0"},
                                                                     {"#df7f1a", "#f3a64e"},
                                                                     {"#c23b63", "#f0789a"},
                                                                     {"#8d4fb5", "#c494e8"},
                                                                     {"#7f8a99", "#a6b1c0"},
                                                                     {"#4e9440", "#86cc76"},
                                                                     {"#5b6675", "#8b97a8"}}};
constexpr std::array<std::array<const char*, 2>, kMemoryParts> kPartColours = {{{"#23467f", "#5a83cf"},
                                                                                {"#3f73c0", "#7fa6e8"},
                                                                                {"#86aee2", "#aac6f2"},
                                                                                {"#df7f1a", "#f3a64e"},
                                                                                {"#f3b56c", "#fbd09a"},
                                                                                {"#b5335b", "#ec6d92"},
                                                                                {"#df86a2", "#f6b0c4"},
                                                                                {"#3f8a45", "#6fbd74"},
                                                                                {"#8ac17f", "#a9dca0"},
                                                                                {"#b59a1f", "#e2c84f"},
                                                                                {"#8d4fb5", "#c494e8"},
                                                                                {"#7f8a99", "#97a2b2"}}};

std::string style_sheet() {
  std::string light, dark;
  for (std::size_t k = 0; k < kKindColours.size(); ++k) {
    light += fmt::format(".k{}{{fill:{}}}", k, kKindColours[k][0]);
    dark += fmt::format(".k{}{{fill:{}}}", k, kKindColours[k][1]);
  }
  for (std::size_t k = 0; k < kPartColours.size(); ++k) {
    light += fmt::format(".m{}{{fill:{}}}", k, kPartColours[k][0]);
    dark += fmt::format(".m{}{{fill:{}}}", k, kPartColours[k][1]);
  }
  light +=
      ".page{fill:#fff}text{fill:#5d6878}.strong{fill:#1d2430}.grid{stroke:#e9ecf1}.limit{stroke:#b3263a}"
      ".limit-name{fill:#b3263a}";
  dark +=
      ".page{fill:#1c2027}text{fill:#98a3b3}.strong{fill:#e4e8ee}.grid{stroke:#2a303a}.limit{stroke:#ff7d8c}"
      ".limit-name{fill:#ff7d8c}";
  return "<style>" + light + "@media (prefers-color-scheme:dark){" + dark + "}</style>\n";
}

std::string svg_text(double x, double y, std::string_view words, std::string_view attributes = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", x, y, attributes.empty() ? "" : " ", attributes,
                     markup_text(words));
}

// 1, 2 or 5 times a power of ten, so that about `wanted` of them are in `length`.
double round_step(double length, double wanted) {
  const double rough = length / wanted, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= rough) return m * power;
  return 10 * power;
}

class StepDrawing {
 public:
  StepDrawing(const StepPicture& p, const SvgText& words)
      : p_(p),
        words_(words),
        title_(text_lines(words.title, kTitleCharacters)),
        subtitle_(text_lines(words.subtitle, kSubtitleCharacters)),
        top_(kChartTop + kTitleLine * static_cast<double>(title_.size() - 1) +
             kSubtitleLine * static_cast<double>(subtitle_.size() - 1)),
        step_(p.program.steady_step) {
    for (const Span& s : p.timeline.spans) {
      low_ = std::min(low_, s.start);
      high_ = std::max(high_, s.end);
    }
    low_ = std::max(low_, -0.02 * high_);  // the host and prefetches may begin long before
  }

  std::string draw() {
    axis();
    exposed();
    lanes();
    kinds_legend();
    memory();
    const double height = y_ + 8;
    return fmt::format(
               "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 "
               "{0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"system-ui, 'Segoe UI', Roboto, "
               "'DejaVu Sans', sans-serif\" font-size=\"12\" role=\"img\">\n<title>{2}</title>\n",
               kPictureWidth, height, markup_text(words_.title + ". " + words_.subtitle)) +
           style_sheet() +
           fmt::format("<rect class=\"page\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"8\"/>\n", kPictureWidth, height) +
           heading() + out_ + "</svg>\n";
  }

 private:
  [[nodiscard]] double x(double seconds) const { return kChartLeft + (seconds - low_) / (high_ - low_) * kChartWidth; }
  [[nodiscard]] double inside(double place) const { return std::clamp(place, kChartLeft, kChartLeft + kChartWidth); }

  [[nodiscard]] std::string heading() const {
    std::string out;
    double y = 24 - kTitleLine;
    for (const std::string& line : title_)
      out += svg_text(kTextLeft, y += kTitleLine, line, "class=\"strong\" font-size=\"16\" font-weight=\"600\"");
    y += 19 - kSubtitleLine;
    for (const std::string& line : subtitle_) out += svg_text(kTextLeft, y += kSubtitleLine, line, "font-size=\"13\"");
    return out;
  }

  void axis() {
    if (!(high_ > low_)) high_ = low_ + 1;
    const double each = round_step(high_ - low_, 7);
    grid_ = "<path class=\"grid\" d=\"";
    for (double t = std::ceil(low_ / each) * each; t <= high_; t += each) {
      grid_ += fmt::format("M{:.1f} {:.0f}V@", x(t), top_ + 6);  // down to where the chart ends, which is not known yet
      out_ += svg_text(x(t) + 3, top_ + 3, std::abs(t) < each / 2 ? "0" : human(Seconds(t)), "font-size=\"11\"");
    }
    grid_ += "\"/>\n";
    y_ = top_ + 12;
  }

  void exposed() {
    bool any = false;
    for (const auto& [member, kind] : {std::pair{&Breakdown::exposed_all_gather, DrawnAs::all_gather},
                                       std::pair{&Breakdown::exposed_reduce_scatter, DrawnAs::reduce_scatter},
                                       std::pair{&Breakdown::exposed_all_reduce, DrawnAs::all_reduce}}) {
      std::string path;
      for (const ExposedSpan& e : exposed_spans(step_, p_.timeline)) {
        if (e.part != member) continue;
        const double from = inside(x(e.span.start)), to = std::max(inside(x(e.span.end)), from + 0.75);
        path += fmt::format("M{:.1f} {:.0f}h{:.2f}v7h-{:.2f}z", from, y_, to - from, to - from);
      }
      if (path.empty()) continue;
      any = true;
      out_ += fmt::format("<path class=\"k{}\" d=\"{}\"/>\n", static_cast<int>(kind), path);
    }
    if (!any) return;
    out_ += svg_text(kChartLeft - 10, y_ + 8, "exposed", "text-anchor=\"end\"");
    y_ += 7 + kGap;
  }

  struct Rectangle {
    double from = 0, to = 0;
    DrawnAs kind{};
    std::int32_t unit = 0;
    std::int16_t micro_batch = 0;
  };
  void lanes() {
    const std::vector<std::int32_t> units = units_of_operations(step_, p_.plan, p_.model);
    for (int s = 0; s < kStreams; ++s) {
      std::vector<Rectangle> drawn;
      for (std::size_t i = 0; i < std::min(step_.ops.size(), p_.timeline.spans.size()); ++i) {
        const Operation& op = step_.ops[i];
        const Span& span = p_.timeline.spans[i];
        if (static_cast<int>(op.stream) != s || !runs_on_a_stream(op) || !(span.end > span.start)) continue;
        drawn.push_back(
            {inside(x(span.start)), inside(x(span.end)), drawn_as(op.action, op.host_only), units[i], op.micro_batch});
      }
      if (drawn.empty()) continue;
      std::stable_sort(drawn.begin(), drawn.end(), [](auto& a, auto& b) { return a.from < b.from; });
      lane(s, joined(drawn));
    }
  }
  static std::vector<Rectangle> joined(const std::vector<Rectangle>& all) {
    std::vector<Rectangle> out;
    for (const Rectangle& r : all) {
      const bool same = !out.empty() && out.back().kind == r.kind && out.back().unit == r.unit &&
                        out.back().micro_batch == r.micro_batch && r.from - out.back().to < 0.3;
      const bool thin = !out.empty() && out.back().kind == r.kind && out.back().to - out.back().from < 0.75 &&
                        r.from - out.back().from < 0.75;
      if (same || thin) out.back().to = std::max(out.back().to, r.to);
      else out.push_back(r);
    }
    return out;
  }
  void lane(int stream, const std::vector<Rectangle>& rectangles) {
    const double height = kLaneHeight[static_cast<std::size_t>(stream)];
    std::string label(name(static_cast<Stream>(stream)));
    std::replace(label.begin(), label.end(), '_', stream == static_cast<int>(Stream::copy_in) ? ' ' : '-');
    out_ += svg_text(kChartLeft - 10, y_ + height / 2 + 4, label, "text-anchor=\"end\"");
    std::map<DrawnAs, std::string> paths;
    for (const Rectangle& r : rectangles) {
      const double wide = r.to - r.from, w = std::max(wide - (wide > 3 ? 0.6 : 0), 0.7);
      paths[r.kind] += fmt::format("M{:.1f} {:.0f}h{:.2f}v{:.0f}h-{:.2f}z", r.from, y_, w, height, w);
      kinds_.insert({r.kind, true});
    }
    for (const auto& [kind, path] : paths)
      out_ += fmt::format("<path class=\"k{}\" d=\"{}\"/>\n", static_cast<int>(kind), path);
    y_ += height + kGap;
  }

  // Coloured squares with words, as many on a line as fit.
  void legend(const std::vector<std::pair<std::string, std::string>>& entries) {
    double at = kChartLeft;
    y_ += 10;
    for (const auto& [colour, words] : entries) {
      const double wide = 22 + 6.6 * static_cast<double>(words.size());
      if (at + wide > kPictureWidth - kChartRight) at = kChartLeft, y_ += 18;
      out_ += fmt::format("<rect class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"9\" height=\"9\" rx=\"2\"/>\n", colour,
                          at, y_);
      out_ += svg_text(at + 14, y_ + 9, words);
      at += wide;
    }
    y_ += 18;
  }
  void kinds_legend() {
    std::vector<std::pair<std::string, std::string>> entries;
    for (const auto& [kind, present] : kinds_)
      entries.emplace_back(fmt::format("k{}", static_cast<int>(kind)), kDrawnAs[static_cast<std::size_t>(kind)]);
    timeline_ends_ = y_;
    legend(entries);
  }

  // Of each column of the chart the highest moment in it: bytes by part.
  std::vector<MemoryStack> columns(const std::vector<std::int64_t>& part_of) {
    std::vector<double> at(step_.ops.size());  // when the compute stream starts what the host issues from here on
    double next = high_;
    for (std::size_t i = step_.ops.size(); i-- > 0;) {
      if (step_.ops[i].stream == Stream::compute && runs_on_a_stream(step_.ops[i])) next = p_.timeline.spans[i].start;
      at[i] = next;
    }
    const auto count = static_cast<std::size_t>(kChartWidth / kColumn);
    std::vector<MemoryStack> out(count);
    std::vector<std::int64_t> most(count, -1);
    MemoryStack last;
    std::size_t reached = 0;
    const auto total = [](const MemoryStack& s) {
      std::int64_t sum = 0;
      for (const std::int64_t bytes : s) sum += bytes;
      return sum;
    };
    const auto see = [&](std::size_t column, const MemoryStack& now) {
      for (; reached < column; ++reached)
        if (most[reached + 1] < 0) most[reached + 1] = total(last), out[reached + 1] = last;
      if (const std::int64_t sum = total(now); sum > most[column]) most[column] = sum, out[column] = now;
      last = now;
    };
    walk_memory(
        p_.program, part_of, kMemoryParts, [&](const MemoryStack& s) { see(0, s); },
        [&](std::size_t moment, const MemoryStack& s) {
          const double place = (inside(x(at[moment / 2])) - kChartLeft) / kColumn;
          see(std::clamp(static_cast<std::size_t>(place), reached, count - 1), s);
        });
    see(count - 1, last);
    return out;
  }

  void memory() {
    const std::vector<MemoryPart> parts = parts_of_buffers(p_.program, p_.model);
    std::vector<std::int64_t> part_of;
    for (const MemoryPart part : parts) part_of.push_back(static_cast<std::int64_t>(part));
    const std::vector<MemoryStack> shown = columns(part_of);
    std::vector<std::int64_t> sums(shown.size(), 0);
    std::int64_t peak = 1;
    for (const MemoryStack& s : shown) {
      std::int64_t sum = 0;
      for (const std::int64_t bytes : s) sum += bytes;
      peak = std::max(peak, sum);
    }
    std::int64_t most = peak;
    for (const SvgText::Line& l : words_.lines)
      if (l.bytes.count() < 1.6 * static_cast<double>(peak)) most = std::max(most, l.bytes.count());
    y_ += 10;
    const double bottom = y_ + kMemoryHeight, per_byte = kMemoryHeight / (1.06 * static_cast<double>(most));
    const auto y = [&](std::int64_t bytes) { return bottom - static_cast<double>(bytes) * per_byte; };
    const auto gib = static_cast<std::int64_t>(std::exp2(std::ceil(std::log2(static_cast<double>(most) / 5))));
    for (std::int64_t b = gib; b <= most; b += gib) {
      out_ += fmt::format("<path class=\"grid\" d=\"M{:.0f} {:.1f}h{:.0f}\"/>\n", kChartLeft, y(b), kChartWidth);
      out_ += svg_text(kChartLeft - 10, y(b) + 4, human(Bytes(b)), "text-anchor=\"end\"");
    }
    out_ += svg_text(kChartLeft - 10, bottom, "0", "text-anchor=\"end\"");
    std::vector<std::pair<std::string, std::string>> entries;
    for (std::size_t k = 0; k < kMemoryParts; ++k) {
      std::vector<std::int64_t> below = sums;
      bool used = false;
      for (std::size_t c = 0; c < shown.size(); ++c) {
        used = used || shown[c][k] > 0;
        sums[c] += shown[c][k];
      }
      if (!used) continue;
      out_ += fmt::format("<path class=\"m{}\" d=\"{}\"/>\n", k, area(below, sums, y));
      entries.emplace_back(fmt::format("m{}", k), std::string(name(static_cast<MemoryPart>(k))));
    }
    double caption = 0;
    for (const SvgText::Line& l : words_.lines) {
      if (l.bytes.count() > most) continue;
      caption = std::max(y(l.bytes.count()) - 5, caption + 14);
      out_ += fmt::format("<path class=\"limit\" stroke-dasharray=\"5 4\" d=\"M{:.0f} {:.1f}h{:.0f}\"/>\n", kChartLeft,
                          y(l.bytes.count()), kChartWidth);
      out_ += svg_text(kPictureWidth - kChartRight - 4, caption, l.name + ", " + human(l.bytes),
                       "text-anchor=\"end\" class=\"limit-name\" font-size=\"11\"");
    }
    y_ = bottom + 4;
    legend(entries);
    std::string grid = grid_;
    for (std::size_t mark = grid.find('@'); mark != std::string::npos; mark = grid.find('@'))
      grid.replace(mark, 1, fmt::format("{:.0f}", timeline_ends_));
    out_ = grid + out_;
  }

  // Between two staircases.
  template <class Y>
  static std::string area(const std::vector<std::int64_t>& below, const std::vector<std::int64_t>& above, const Y& y) {
    std::string path = fmt::format("M{:.0f} {:.1f}", kChartLeft, y(below.front()));
    const auto stairs = [&](const std::vector<std::int64_t>& values, std::size_t c, double to) {
      path += fmt::format("V{:.1f}H{:.0f}", y(values[c]), to);
    };
    for (std::size_t c = 0; c < above.size(); ++c)
      if (c + 1 == above.size() || above[c + 1] != above[c])
        stairs(above, c, kChartLeft + kColumn * static_cast<double>(c + 1));
    for (std::size_t c = below.size(); c-- > 0;)
      if (c == 0 || below[c - 1] != below[c]) stairs(below, c, kChartLeft + kColumn * static_cast<double>(c));
    return path + "z";
  }

  const StepPicture& p_;
  const SvgText& words_;
  const std::vector<std::string> title_, subtitle_;
  const double top_;  // of the chart, below them
  const Step& step_;
  double low_ = 0, high_ = 0, y_ = 0, timeline_ends_ = 0;
  std::map<DrawnAs, bool> kinds_;
  std::string out_, grid_;
};

}  // namespace

std::string step_svg(const StepPicture& p, const SvgText& words) { return StepDrawing(p, words).draw(); }

}  // namespace fsdp
