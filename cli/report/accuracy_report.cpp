#include "cli/report/accuracy_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "models/input/suggest.h"
#include "models/units.h"
#include "viz/scatter.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

std::string signed_percent(const std::optional<double>& error) {
  return error ? fmt::format("{:+.1f} %", 100 * *error) : "";
}
std::string gib(const std::optional<std::int64_t>& bytes) {
  return bytes ? fmt::format("{:.2f}", static_cast<double>(*bytes) / (1 << 30)) : "";
}
std::string seconds(const std::optional<double>& s) { return s ? fmt::format("{:.4g}", *s) : ""; }

double badness(const AccuracyRow& r) {
  return std::max(std::abs(r.step_time_error().value_or(0)), std::abs(r.peak_error().value_or(0)));
}

// All in the order of the file, or those that are furthest off.
std::vector<const AccuracyRow*> shown_rows(const AccuracyReport& report, std::size_t at_most) {
  std::vector<const AccuracyRow*> rows;
  for (const AccuracyRow& r : report.rows) rows.push_back(&r);
  if (at_most < rows.size())
    std::stable_sort(rows.begin(), rows.end(), [](const auto* a, const auto* b) { return badness(*a) > badness(*b); });
  rows.resize(std::min(at_most, rows.size()));
  return rows;
}

std::string row_table(const AccuracyReport& report, std::size_t at_most) {
  const bool all = at_most >= report.rows.size();
  std::vector<std::vector<std::string>> lines;
  for (const AccuracyRow* r : shown_rows(report, at_most))
    lines.push_back({printable(r->id), printable(r->model), printable(r->gpu), std::to_string(r->gpus),
                     printable(r->trust), seconds(r->measured_step_time_s), seconds(r->predicted_step_time_s),
                     signed_percent(r->step_time_error()), gib(r->measured_peak_bytes), gib(r->predicted_peak_bytes),
                     signed_percent(r->peak_error())});
  if (lines.empty()) return {};
  return (all ? "Rows:\n"
              : fmt::format("The {} rows that are furthest off, of {}:\n", lines.size(), report.rows.size())) +
         fitting_table({"row", "model", "GPU", ">GPUs", "trust", ">measured s", ">predicted s", ">error",
                        ">measured GiB", ">predicted GiB", ">error"},
                       lines);
}

// The rows of the table above, each with what was assumed of it.
std::string assumed_table(const AccuracyReport& report, std::size_t at_most) {
  std::vector<std::vector<std::string>> lines;
  for (const AccuracyRow* r : shown_rows(report, at_most))
    lines.push_back(
        {printable(r->id), r->assumptions.empty() ? "nothing" : fmt::format("{}", fmt::join(r->assumptions, "; "))});
  return lines.empty() ? std::string() : "\nAssumed of these rows:\n" + fitting_table({"row", "assumed"}, lines);
}

std::vector<std::string> summary_line(const std::string& what, const ErrorSummary& s) {
  if (s.rows == 0) return {what, "0", "", "", "", "", ""};
  return {what,
          std::to_string(s.rows),
          percent(s.mean),
          percent(s.median),
          percent(s.p90),
          percent(s.worst) + " (" + printable(s.worst_id) + ")",
          signed_percent(s.bias)};
}

std::string summary_table(const AccuracySummary& s, const std::string& what, ErrorSummary AccuracyGroup::*part) {
  std::vector<std::vector<std::string>> lines = {summary_line("trust A, without float8", s.headline.*part),
                                                 summary_line("all rows", s.all.*part)};
  for (const AccuracyGroup& g : s.groups)
    if ((g.*part).rows > 0) lines.push_back(summary_line(g.by + ": " + printable(g.name), g.*part));
  return "\n" + what + ", absolute errors:\n" +
         fitting_table({"rows", ">count", ">mean", ">median", ">p90", ">worst (row)", ">bias"}, lines);
}

std::string tau_line(const AccuracySummary& s) {
  const auto words = [](const RankAgreement& r) {
    return r.pairs == 0 ? std::string("no group of 5 rows")
                        : fmt::format("{:.3f} over {} pairs ({:.3f}, mean of {} groups)", r.tau, with_commas(r.pairs),
                                      r.mean_tau, r.groups);
  };
  return fmt::format(
      "\nKendall's tau inside groups of source, GPU and model: trust A {}; all {}.\nFree constants in use: {}.\n",
      words(s.headline_order), words(s.order), s.free_constants);
}

// A reason without what is quoted from the row, so that rows with the same trouble count together.
std::string kind_of(const std::string& reason) {
  std::string out;
  bool quoted = false;
  for (const char c : reason) {
    if (c == '"') out += quoted ? "\"" : "\"...";
    else if (!quoted) out += c;
    quoted ^= c == '"';
  }
  return out;
}

// What the reason quotes from the row, if anything.
std::string quoted_in(const std::string& reason) {
  const std::size_t begin = reason.find('"');
  const std::size_t end = begin == std::string::npos ? begin : reason.find('"', begin + 1);
  return end == std::string::npos ? "" : reason.substr(begin, end - begin + 1);
}

// The reason of rows that differ in what is quoted: `optimizer: "adam8bit", "lion" is not modelled`.
std::string with_values(std::string kind, const std::vector<std::string>& values) {
  constexpr std::size_t kValues = 3;
  const std::vector<std::string> shown(values.begin(),
                                       values.begin() + static_cast<std::ptrdiff_t>(std::min(kValues, values.size())));
  const std::size_t at = kind.find("\"...\"");
  if (at == std::string::npos) return kind;
  return kind.replace(at, 5, join(shown) + (values.size() > kValues ? ", ..." : ""));
}

std::string skip_table(const AccuracyReport& report) {
  if (report.skipped.empty()) return {};
  struct Rows {
    std::int64_t count = 0;
    std::string first;
    std::vector<std::string> values;  // distinct ones
    std::set<std::string> reasons;
  };
  std::map<std::string, Rows> reasons;
  for (const RefusedRow& r : report.skipped) {
    const std::string kind = kind_of(r.reason);
    auto& [count, rows, values, all] = reasons[kind];
    const std::string value = quoted_in(r.reason);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    if (all.size() < 2) all.insert(r.reason);
    if (count++ < 4) rows += (rows.empty() ? "" : ", ") + printable(r.id);
    else if (count == 5) rows += ", ...";
  }
  std::vector<std::vector<std::string>> lines;
  for (const auto& [kind, r] : reasons)
    lines.push_back({std::to_string(r.count), printable(r.first),
                     r.reasons.size() == 1 ? *r.reasons.begin() : with_values(kind, r.values)});
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return std::stoll(a[0]) > std::stoll(b[0]); });
  const std::size_t shown = std::min<std::size_t>(lines.size(), 25);
  const std::string more =
      lines.size() > shown ? fmt::format("... and {} further reasons (--json lists every row)\n", lines.size() - shown)
                           : "";
  lines.resize(shown);
  return fmt::format("\nSkipped, {} row{}:\n", report.skipped.size(), report.skipped.size() == 1 ? "" : "s") +
         fitting_table({">count", "rows", "reason"}, lines) + more;
}

// Runs that ran out of memory beside what is predicted of them, and what is predicted of the others.
std::string memory_verdicts(const AccuracyReport& report) {
  std::vector<std::vector<std::string>> lines;
  for (const FailedRun& r : report.failed)
    lines.push_back({printable(r.id), printable(r.model), printable(r.gpu), std::to_string(r.gpus),
                     gib(r.predicted_total_bytes), r.predicted_total_bytes ? gib(r.device_bytes) : "",
                     !r.predicted_total_bytes   ? "skipped: " + r.reason
                     : r.predicted_not_to_fit() ? "yes"
                                                : "no"});
  std::int64_t judged = 0, refused = 0;
  for (const AccuracyRow& r : report.rows)
    if (r.predicted_total_bytes) ++judged, refused += *r.predicted_total_bytes > r.device_bytes ? 1 : 0;
  std::string text;
  if (!lines.empty())
    text +=
        "\nRuns that failed for memory:\n" +
        fitting_table({"row", "model", "GPU", ">GPUs", ">predicted GiB", ">device GiB", "predicted not to fit"}, lines);
  if (judged > 0)
    text +=
        fmt::format("Of {} runs that completed and whose reserved memory is predicted, {} are predicted not to fit.\n",
                    with_commas(judged), with_commas(refused));
  return text;
}

std::string markdown_cells(const ErrorSummary& s) {
  if (s.rows == 0) return "0 | | | | ";
  return fmt::format("{} | {:.1f} % | {:.1f} % | {:.1f} % | {:+.1f} %", s.rows, 100 * s.mean, 100 * s.median,
                     100 * s.worst, 100 * s.bias);
}

std::string markdown_line(const std::string& what, const AccuracyGroup& g) {
  const std::string memory =
      g.peak.rows > 0 ? fmt::format("{} | {:.1f} % | {:.1f} %", g.peak.rows, 100 * g.peak.mean, 100 * g.peak.worst)
                      : " | | ";
  return fmt::format("| {} | {} | {} |\n", what, markdown_cells(g.step_time), memory);
}

std::string escaped(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return text;
}

}  // namespace

std::string accuracy_text(const AccuracyReport& report, std::size_t worst, bool assumed) {
  const AccuracySummary& s = report.summary;
  std::string out = row_table(report, worst);
  if (assumed) out += assumed_table(report, worst);
  if (s.all.step_time.rows > 0) out += summary_table(s, "Step time", &AccuracyGroup::step_time);
  if (s.all.peak.rows > 0) out += summary_table(s, "Peak memory of the kind that the row names", &AccuracyGroup::peak);
  out += tau_line(s);
  std::vector<std::string> repeated;
  for (const std::string& id : s.repeated_ids) repeated.push_back(printable(id));
  if (!repeated.empty()) out += "Ids that occur more than once (each row counts): " + join(repeated) + ".\n";
  return out + memory_verdicts(report) + assumptions_text(report) + skip_table(report);
}

std::string assumptions_text(const AccuracyReport& report) {
  std::map<std::string, std::pair<std::int64_t, std::string>> counts;  // rows, the first of them
  std::size_t touched = 0;
  for (const AccuracyRow& r : report.rows) {
    touched += r.assumptions.empty() ? 0 : 1;
    for (const std::string& what : r.assumptions) {
      auto& [count, first] = counts[what];
      if (count++ == 0) first = printable(r.id);
      else if (count == 2) first += ", ...";
    }
  }
  if (counts.empty()) return {};
  std::vector<std::vector<std::string>> lines;
  for (const auto& [what, rows] : counts) lines.push_back({std::to_string(rows.first), rows.second, what});
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return std::stoll(a[0]) > std::stoll(b[0]); });
  return fmt::format("\nAssumed where rows do not say, in {} of {} row{}:\n", touched, report.rows.size(),
                     report.rows.size() == 1 ? "" : "s") +
         fitting_table({">rows", "first", "assumption"}, lines);
}

std::string ignored_columns_text(const AccuracyReport& report) {
  if (report.ignored_columns.empty()) return {};
  return fmt::format("note: nothing is read from the column{} {}\n", report.ignored_columns.size() == 1 ? "" : "s",
                     join(report.ignored_columns));
}

std::string nothing_predicted(const AccuracyReport& report) {
  const std::size_t rows = report.skipped.size();
  return "Nothing was predicted: " + (rows == 1 ? "the only row is" : fmt::format("all {} rows are", rows)) +
         " skipped.\n";
}

std::string accuracy_plot(const AccuracyReport& report) {
  std::vector<ScatterPoint> points;
  for (const AccuracyRow& r : report.rows)
    if (const auto error = r.step_time_error())
      points.push_back({*r.measured_step_time_s, *r.predicted_step_time_s, r.source,
                        fmt::format("{}: {} on {} {}, {}", r.id, r.model, r.gpus, r.gpu, signed_percent(error))});
  return scatter_svg(
      points,
      {fmt::format("Step time of {} published runs", with_commas(static_cast<std::int64_t>(points.size()))), "s"});
}

std::string accuracy_markdown(const AccuracyReport& report) {
  const AccuracySummary& s = report.summary;
  std::string out =
      "| rows | step times | mean error | median | worst | bias | peaks | mean error | worst "
      "|\n|---|---|---|---|---|---|---|---|---|\n";
  out += markdown_line("**trust A, no 8-bit products**", s.headline) + markdown_line("all", s.all);
  for (const AccuracyGroup& g : s.groups)
    if (g.by != "trust") out += markdown_line(escaped(g.by + ": " + printable(g.name)), g);
  const auto tau = [](const RankAgreement& r) {
    return r.pairs > 0 ? fmt::format("{:.3f}", r.tau) : std::string("none");
  };
  out += fmt::format(
      "\nErrors are absolute, of predicted over measured; bias is their mean with its sign. Kendall's tau inside "
      "groups of source, GPU and\n"
      "model: {} (trust A), {} (all). Free constants in use: {}. {} rows cannot be expressed and are skipped, each "
      "with its reason.\n",
      tau(s.headline_order), tau(s.order), with_commas(s.free_constants),
      with_commas(static_cast<std::int64_t>(report.skipped.size())));
  return out;
}

std::string errors_line(const ErrorSummary& s) {
  return fmt::format("mean {}, median {}, worst {}", percent(s.mean), percent(s.median), percent(s.worst));
}

}  // namespace fsdp::cli
