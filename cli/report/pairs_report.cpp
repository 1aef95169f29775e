#include "cli/report/pairs_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "models/input/suggest.h"
#include "models/units.h"

namespace fsdp::cli {
namespace {

std::string points(double difference) { return fmt::format("{:.1f}", 100 * difference); }
std::string signed_points(double difference) { return fmt::format("{:+.1f}", 100 * difference); }

std::string share(const PairGroup& g) {
  return g.clear == 0 ? "" : percent(static_cast<double>(g.sign_right) / static_cast<double>(g.clear));
}

// "1403 (+1)": measured once more in another row.
std::string rows_of(const std::vector<std::string>& ids) {
  return printable(ids[0]) + (ids.size() > 1 ? fmt::format(" (+{})", ids.size() - 1) : "");
}

std::string pair_table(const PairReport& report, std::size_t at_most) {
  std::vector<const RunPair*> pairs;
  for (const RunPair& p : report.pairs) pairs.push_back(&p);
  const bool all = at_most >= pairs.size();
  if (!all)
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const RunPair* a, const RunPair* b) { return std::abs(a->error()) > std::abs(b->error()); });
  pairs.resize(std::min(at_most, pairs.size()));
  std::vector<std::vector<std::string>> lines;
  for (const RunPair* p : pairs)
    lines.push_back({p->knob, printable(p->from), printable(p->to), rows_of(p->from_rows), rows_of(p->to_rows),
                     printable(p->model), printable(p->gpu), std::to_string(p->gpus), signed_points(p->measured),
                     signed_points(p->predicted), signed_points(p->error()),
                     !p->clear()       ? ""
                     : p->sign_right() ? "right"
                                       : "WRONG"});
  if (lines.empty()) return {};
  const std::string of = with_commas(static_cast<std::int64_t>(report.pairs.size()));
  const std::string title =
      all ? "Pairs:"
      : lines.size() == 1
          ? fmt::format("The pair that is furthest off, of {} (--all: every pair):", of)
          : fmt::format("The {} pairs that are furthest off, of {} (--all: every pair):", lines.size(), of);
  return "\n" + title + "\n" +
         fitting_table({"knob", "from", "to", "row", "row", "model", "GPU", ">GPUs", ">measured %", ">predicted %",
                        ">error", "sign"},
                       lines);
}

}  // namespace

std::string pairs_text(const PairReport& report, std::size_t worst) {
  if (report.pairs.empty()) return "No two rows with a step time differ in one knob alone.\n";
  std::vector<std::vector<std::string>> lines;
  for (const PairGroup& g : report.groups)
    lines.push_back({g.name, std::to_string(g.error.rows), points(g.error.mean), points(g.error.median),
                     points(g.error.p90), points(g.error.worst) + " (" + printable(g.error.worst_id) + ")",
                     signed_points(g.error.bias), std::to_string(g.clear), share(g)});
  return fmt::format(
             "Pairs of rows that differ in one knob: by how much time per token and GPU differs. Errors are of the\n"
             "predicted less the measured difference, in points. A difference is clear above {:g} %.\n",
             100 * kClearDifference) +
         fitting_table(
             {"knob", ">pairs", ">mean", ">median", ">p90", ">worst (rows)", ">bias", ">clear", ">sign right"}, lines) +
         pair_table(report, worst);
}

std::string pairs_markdown(const PairReport& report) {
  std::string out =
      "| rows that differ in | pairs | mean error, points | median | worst | bias | clear differences | sign right "
      "|\n|---|---|---|---|---|---|---|---|\n";
  for (const PairGroup& g : report.groups)
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", g.name, with_commas(g.error.rows),
                       points(g.error.mean), points(g.error.median), points(g.error.worst), signed_points(g.error.bias),
                       with_commas(g.clear), share(g));
  return out;
}

}  // namespace fsdp::cli
