#include "cli/report/sizes_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace fsdp::cli {
namespace {

double gpu_seconds(const SizeSearched& s) {
  return gpu_seconds_per_sequence(s.result->best->plan, s.result->best->score.step);
}

std::string ranks(std::int64_t tensor) { return fmt::format("{} rank{}", tensor, tensor == 1 ? "" : "s"); }

std::string outcome(const SizeSearched& s, const SizesResult& r) {
  if (!s.result->best) return "nothing fits";
  if (!s.fits() || !r.chosen().fits()) return std::string(name(s.result->best->score.verdict));
  const double longer = gpu_seconds(s) / gpu_seconds(r.chosen()) - 1;
  return fmt::format("{:.1f} % {}{}", 100 * std::abs(longer), longer < 0 ? "faster" : "slower",
                     s.uniform ? " with all blocks alike" : "");
}

}  // namespace

std::string sizes_line(const SizesResult& r) {
  if (r.sizes.size() < 2) return "";
  std::vector<std::string> said;
  std::vector<std::int64_t> left;
  bool possible = false;
  if (const SizeSearched& first = r.sizes.front(); !first.refusal.empty())  // what was asked, without a split
    said.push_back(fmt::format("{} is not possible ({})", ranks(first.tensor), first.refusal));
  for (const SizeSearched& s : r.sizes) {
    possible = possible || (s.tensor > 1 && s.refusal.empty());
    if (s.ruled_out) left.push_back(s.tensor);
    if (!s.result) continue;
    if (&s == &r.chosen()) said.push_back(ranks(s.tensor) + (s.result->best ? " chosen" : " need least"));
    else said.push_back(ranks(s.tensor) + ": " + outcome(s, r));
  }
  if (!possible) return "";
  if (!left.empty())
    said.push_back(fmt::format("{}: no plan is {:.0f} % faster (by certificate)", fmt::join(left, ", "),
                               100 * (kWorthSplitting - 1)));
  return fmt::format("Tensor parallelism: {}.\n", fmt::join(said, "; "));
}

nlohmann::ordered_json sizes_json(const SizesResult& r) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SizeSearched& s : r.sizes) {
    nlohmann::ordered_json row = {{"tensor", s.tensor}, {"chosen", &s == &r.chosen()}};
    if (!s.refusal.empty()) row["not_possible"] = s.refusal;
    if (s.ruled_out) row["faster_at_most_by"] = kWorthSplitting - 1;
    if (s.result)
      row["verdict"] = std::string(name(s.result->best ? s.result->best->score.verdict : Verdict::does_not_fit));
    if (s.uniform) row["searched"] = "uniform";
    if (s.result && s.result->best) {
      row["step_time_s"] = s.result->best->score.step.count();
      row["gpu_seconds_per_sequence"] = gpu_seconds(s);
      row["peak_total_bytes"] = s.result->best->score.peak_total.count();
    }
    list.push_back(std::move(row));
  }
  return list;
}

}  // namespace fsdp::cli
