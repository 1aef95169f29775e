#include "cli/report/intervals_report.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "models/units.h"
#include "simulator/published/doubt/intervals.h"

namespace fsdp::cli {
namespace {

using Lines = std::vector<std::vector<std::string>>;

std::string table(const std::vector<std::string>& header, const Lines& lines, bool markdown) {
  if (!markdown) return fitting_table(header, lines);
  std::vector<std::string> plain;
  for (const std::string& h : header) plain.push_back(h.starts_with('>') ? h.substr(1) : h);
  std::string out = fmt::format("| {} |\n|", fmt::join(plain, " | "));
  for (std::size_t i = 0; i < header.size(); ++i) out += "---|";
  out += "\n";
  for (const auto& line : lines) out += fmt::format("| {} |\n", fmt::join(line, " | "));
  return out;
}

Lines quality_lines(const std::string& what, const std::vector<IntervalQuality>& all) {
  Lines lines;
  for (const IntervalQuality& q : all)
    lines.push_back({what + ", " + q.name, with_commas(q.rows), percent(q.coverage), percent(std::expm1(q.half_width)),
                     percent(std::expm1(q.median_half_width)), fmt::format("{:.3f}", q.score),
                     percent(q.baseline_coverage), fmt::format("{:.3f}", q.baseline_score)});
  return lines;
}

std::vector<std::string> constant_line(const std::string& what, const DoubtQuantiles& q) {
  const auto signed_change = [](double x) { return fmt::format("{:+.1f} % ({:+.3f})", 100 * std::expm1(x), x); };
  return {what, signed_change(q.low), signed_change(q.median), signed_change(q.high)};
}

}  // namespace

std::string intervals_text(const AccuracyReport& report, bool markdown) {
  const std::vector<DoubtRow> rows = doubt_rows(report);
  const DoubtQuality q = doubt_quality(rows);
  const DoubtTable fitted = fit_doubt(rows);
  Lines quality = quality_lines("step time", q.step_time);
  for (auto& line : quality_lines("peak memory", q.peak)) quality.push_back(std::move(line));
  std::string out = table({"80 % intervals of", ">rows", ">measured inside", ">half-width, mean", ">median", ">score",
                           ">one width for all: inside", ">score"},
                          quality, markdown);
  out += fmt::format(
      "\nOut of memory, {} runs that completed and {} that failed: Brier score {:.4f}, of the bare verdict {:.4f}.\n\n",
      with_commas(q.completed), with_commas(q.failed), q.brier, q.verdict_brier);
  Lines constants;
  for (int c = 0; c < kDoubtCauses; ++c)
    constants.push_back(constant_line(fmt::format("step time: {}", name(static_cast<DoubtCause>(c))),
                                      fitted.step_time[static_cast<std::size_t>(c)]));
  constants.push_back(constant_line("peak: software with published runs of trust A", fitted.peak[0]));
  constants.push_back(constant_line("peak: other software", fitted.peak[1]));
  return out + table({"measured over predicted", ">low", ">median", ">high"}, constants, markdown);
}

}  // namespace fsdp::cli
