// How a comparison, and the measurement by itself, read on a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "models/input/counted.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

std::string quantity(double value, const std::string& unit) {
  if (unit == "B") return human(Bytes(std::llround(value)));
  return human(Seconds(value));
}

// Against nothing there is no error.
bool has_error(const CompareRow& row) { return row.measured != 0 || row.predicted == 0; }

std::vector<std::string> compared(const CompareRow& row) {
  return {row.what, quantity(row.predicted, row.unit), quantity(row.measured, row.unit),
          has_error(row) ? fmt::format("{:+.1f} %", 100 * row.error()) : "-"};
}

// "step time +1.2 % (tolerance 15 %)".
std::string time_text(const CompareRow& row, double tolerance) {
  if (!has_error(row)) return "step time not known: 0 s was measured, which is no step's time";
  return fmt::format("step time {:+.1f} % (tolerance {:.4g} %)", 100 * row.error(), 100 * tolerance);
}

void section(std::string& out, const std::string& title, const std::vector<CompareRow>& rows, std::size_t most) {
  if (rows.empty()) return;
  std::vector<std::vector<std::string>> lines;
  for (std::size_t i = 0; i < std::min(most, rows.size()); ++i) lines.push_back(compared(rows[i]));
  out += "\n" + fitting_table({title, ">predicted", ">measured", ">error"}, lines);
  if (rows.size() > most) out += fmt::format("  ... and {} that differ less (--json has all)\n", rows.size() - most);
}

void words(std::string& out, const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out += fmt::format("\n{}\n", title);
  for (const std::string& line : lines) out += "  " + line + "\n";
}

// Of a measurement that did not observe everything.
std::string observed_line(const ValidationReport& report, const Tolerances& tolerances) {
  std::string out = report.within ? "Within tolerance: " : "Outside tolerance: ";
  out += !report.order_compared ? "order not compared" : report.order_equal ? "order equal" : "order DIFFERENT";
  if (report.memory_compared && report.memory.empty())
    out += report.memory_equal ? ", memory equal" : ", memory DIFFERENT";
  if (report.memory_compared)
    out += fmt::format(", peak {:+.2f} % (tolerance {:.4g} %)", 100 * report.peak.error(), 100 * tolerances.memory);
  if (report.time_compared) out += ", " + time_text(report.step_time, tolerances.time);
  return out + ".\n";
}

// The rows of the first table: what was compared.
std::vector<std::vector<std::string>> main_rows(const ValidationReport& report) {
  std::vector<std::vector<std::string>> rows;
  if (report.time_compared) rows.push_back(compared(report.step_time));
  if (report.memory_compared) rows.push_back(compared(report.peak));
  return rows;
}

}  // namespace

std::string validation_line(const ValidationReport& report, const Tolerances& tolerances) {
  if (!report.order_compared || !report.time_compared || !report.memory_compared)
    return observed_line(report, tolerances);
  return fmt::format("{}: {}, peak {:+.2f} % (tolerance {:.4g} %), order {}, memory {}.\n",
                     report.within ? "Within tolerance" : "Outside tolerance",
                     time_text(report.step_time, tolerances.time), 100 * report.peak.error(), 100 * tolerances.memory,
                     report.order_equal ? "equal" : "DIFFERENT", report.memory_equal ? "equal" : "DIFFERENT");
}

std::string validation_report(const ValidationReport& report, const Tolerances& tolerances) {
  constexpr std::size_t kActionRows = 20, kUnitRows = 8, kRankRows = 8;
  const std::string mean = report.by_rank.empty() ? "" : " (mean of the ranks)";
  std::string out = validation_line(report, tolerances);
  if (const auto rows = main_rows(report); !rows.empty())
    out += "\n" + fitting_table({"what", ">predicted", ">measured", ">error"}, rows);
  words(out, "order and memory", report.differences);
  section(out, "memory", report.memory, report.memory.size());
  section(out, "where the step goes" + mean, report.where, report.where.size());
  section(out, "by kind of operation" + mean, report.by_action, kActionRows);
  section(out, "by unit" + mean, report.by_unit, kUnitRows);
  section(out, "by rank", report.by_rank, kRankRows);
  std::vector<std::string> findings;
  for (const Finding& f : report.findings) findings.push_back(f.text);
  words(out, "largest disagreements", findings);
  words(out, "not compared", report.not_compared);
  words(out, "what stands against the measurement", report.doubts);
  return out;
}

std::string measurement_lines(const Measurement& m) {
  std::string out;
  if (m.steps) {
    const StepNoise& n = *m.steps;
    out += fmt::format("Steps: {} warm-up, {} measured ({}): p10 {}, median {}, p90 {}", n.warmup_steps,
                       m.step_seconds.size(), n.stopped, human(Seconds(n.p10_seconds)),
                       human(Seconds(m.median_step_seconds)), human(Seconds(n.p90_seconds)));
    out += n.median_interval
               ? fmt::format("; 95 % interval of the median {} to {}.\n", human(Seconds(n.median_interval->low)),
                             human(Seconds(n.median_interval->high)))
               : ".\n";
  }
  if (m.machine) {
    const MachineState& s = *m.machine;
    out += fmt::format("Machine: {}, {} usable{}; load {:.1f} at the start, {:.1f} at the end",
                       counted(s.cores, "core"), s.usable_cores, s.pinned ? ", threads pinned" : ", threads not pinned",
                       s.load_at_start, s.load_at_end);
    if (s.own_cores && s.other_cores)
      out += fmt::format("; this run kept {:.2f} cores busy, others {:.2f}", *s.own_cores, *s.other_cores);
    if (!s.governor.empty()) out += fmt::format("; governor {}", s.governor);
    if (!s.turbo.empty()) out += fmt::format("; turbo {}", s.turbo);
    out += fmt::format("; {}.\n", s.date);
  }
  if (m.memory && m.memory->high_water_bytes > 0) {
    const ProcessMemory& p = *m.memory;
    std::int64_t allocated = 0;
    for (const RankMeasurement& r : m.ranks) allocated += r.peak_allocated_bytes;
    out += fmt::format(
        "Memory: allocators' peaks {} together; the process {} at most: arenas {} (touched pages), heap {}, code {}, "
        "stacks and "
        "libraries {}, given back before the end {}.\n",
        human(Bytes(allocated)), human(Bytes(p.high_water_bytes)), human(Bytes(p.arenas_bytes)),
        human(Bytes(p.heap_bytes)), human(Bytes(p.code_bytes)), human(Bytes(p.rest_bytes)),
        human(Bytes(p.high_water_bytes - p.resident_bytes)));
  }
  return out;
}

}  // namespace fsdp::cli
