// Published runs with tensor parallelism beside FSDP2 (tests/accuracy/published_parallel_runs.csv, each with its
// source). Predictions are from data sheets; no constant was fitted to these rows. They are few, so each is listed.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "simulator/published/accuracy.h"

using namespace fsdp;

namespace {

AccuracyReport parallel_runs() {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/accuracy/published_parallel_runs.csv", std::ios::binary);
  return accuracy_of(file, "published_parallel_runs.csv", datasheet_prices());
}

struct Most {
  double time = 0, peak = 0;  // error, rounded up; 0: nothing was published
};
// 1122 is a number that its source took back later (1119 is the corrected one). 1136 to 1139 are torchtitan of March
// 2024, whose collectives over tensor ranks mark what they use by record_stream: how much of it waits for the device
// depends on how far the host is ahead. 1177 and 1178 are eager Qwen3. 1195 recomputes, as torchtitan's configuration
// of that model does and its peak says: its time was -2.1 % while that was not known, and its peak +36 %. Since
// products wait for the slowest GPU, eight of these are 1 to 2 points further off in time and six nearer, and the host
// is further ahead in row 1137 (whose peak was at +38 %). 1100 and 1101 were at +4.1 and +2.8 % while a compiled loss
// over tensor ranks was taken not to write its logits out, which it does (tests/torch/record_split_loss.py).
const std::map<std::string, Most> kMost = {
    {"1094", {0.02, 0}},      {"1100", {0.0446, 0}},  {"1119", {0.06, 0}},    {"1122", {0.147, 0}},
    {"1095", {0.02, 0}},      {"1101", {0.032, 0}},   {"1136", {0.03, 0.30}}, {"1137", {0.03, 0.41}},
    {"1138", {0.05, 0.14}},   {"1139", {0.05, 0.10}}, {"1177", {0.21, 0.01}}, {"1178", {0.22, 0.01}},
    {"1195", {0.046, 0.001}}, {"1197", {0.03, 0}},
};

}  // namespace

TEST_CASE("published runs with tensor parallelism: what is predicted, and how far off it is") {
  const AccuracyReport report = parallel_runs();
  std::set<std::string> seen;
  double sum = 0, peaks = 0, peak_rows = 0;
  std::string text;
  for (const AccuracyRow& r : report.rows) {
    CAPTURE(r.id);
    REQUIRE(kMost.contains(r.id));
    seen.insert(r.id);
    const Most& most = kMost.at(r.id);
    const double time = std::abs(r.step_time_error().value()), peak = std::abs(r.peak_error().value_or(0));
    CHECK(time < most.time);
    CHECK((most.peak == 0 ? peak == 0 : peak < most.peak));
    sum += time;
    if (r.peak_error()) peaks += peak, peak_rows += 1;
    text += fmt::format("{}: time {:+.3f}, peak {:+.3f}\n", r.id, *r.step_time_error(), r.peak_error().value_or(0));
    if (r.predicted_total_bytes) CHECK(*r.predicted_total_bytes < r.device_bytes);  // all of them completed
  }
  MESSAGE(text << fmt::format("mean {:.4f}", sum / static_cast<double>(report.rows.size())));
  CHECK(seen.size() == kMost.size());
  CHECK(sum / static_cast<double>(report.rows.size()) < 0.077);
  CHECK(peaks / peak_rows < 0.135);
}

TEST_CASE("runs of pipeline and context parallelism and of 8-bit products beside tensor parallelism are skipped") {
  const AccuracyReport report = parallel_runs();
  std::map<std::string, int> reasons;
  for (const RefusedRow& r : report.skipped) ++reasons[r.reason.substr(0, r.reason.find(':'))];
  CHECK(report.skipped.size() + report.rows.size() == 21);
  CHECK(reasons == std::map<std::string, int>{{"pp", 1}, {"float8", 6}});
}
