// Published step times and peaks beside ours, row by row (tests/accuracy/published_runs.csv, each with its source).
// Predictions are from data sheets; no constant was fitted to these rows.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "simulator/published/accuracy.h"
#include "simulator/published/fit_runs.h"
#include "simulator/published/pairs.h"
#include "tests/accuracy/recorded_table.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kEvery = 9;
#else
constexpr int kEvery = 1;
#endif

// Of the file, each `every`-th row.
AccuracyReport of_file(int every, const AccuracyOptions& options, const PriceList& prices = datasheet_prices()) {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/accuracy/published_runs.csv", std::ios::binary);
  std::string text, line;
  for (int i = 0; std::getline(file, line); ++i)
    if (i % every == 0) text += line + "\n";
  std::istringstream in(text);
  return accuracy_of(in, "published_runs.csv", prices, options);
}

struct Whole {
  AccuracyReport report;
  std::int64_t rows = 0;
};

// Predicted once for all cases of this file.
const Whole& whole_file() {
  static const Whole kWhole = [] {
    Whole w;
    AccuracyOptions options;
    options.keep_runs = true;
    options.progress = [&](std::int64_t row) { w.rows = row; };
    w.report = of_file(kEvery, options);
    return w;
  }();
  return kWhole;
}

AccuracyReport report_of(const std::string& name) {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/accuracy/" + name, std::ios::binary);
  return accuracy_of(file, name, datasheet_prices());
}

// The second file: experts, adapters, offload, failures (2025 and 2026).
const AccuracyReport& second_file() {
  static const AccuracyReport kReport = report_of("published_runs_2.csv");
  return kReport;
}

// The third one: runs that were predicted before anything was changed for them (docs/accuracy.md).
const AccuracyReport& third_file() {
  static const AccuracyReport kReport = report_of("published_runs_3.csv");
  return kReport;
}

// The fourth one: the same, of other sources.
const AccuracyReport& fourth_file() {
  static const AccuracyReport kReport = report_of("published_runs_4.csv");
  return kReport;
}

const AccuracyReport& fifth_file() {
  static const AccuracyReport kReport = report_of("published_runs_5.csv");
  return kReport;
}

const AccuracyReport& sixth_file() {
  static const AccuracyReport kReport = report_of("published_runs_6.csv");
  return kReport;
}

// Where predictions differ from the recorded ones, or rows are skipped for other reasons; empty: nowhere.
std::string differences(const AccuracyReport& report, const std::string& name) {
  RecordedTable now(name, {"id", "predicted_step_time_s", "predicted_peak_bytes"});
  for (const AccuracyRow& r : report.rows)
    now.add(r.id, {r.step_time_error() ? decimal(*r.predicted_step_time_s) : "-",
                   r.predicted_peak_bytes ? whole(*r.predicted_peak_bytes) : "-"});
  for (const FailedRun& r : report.failed)
    if (r.predicted_total_bytes) now.add(r.id, {"out of memory", whole(*r.predicted_total_bytes)});
  for (const RefusedRow& r : report.skipped) now.add(r.id, {"skipped", r.reason.substr(0, r.reason.find(':'))});
  return now.differences();
}

// |ln(predicted / measured)|: twice too fast and twice too slow weigh the same.
double log_error(const AccuracyRow& row) { return std::abs(std::log1p(*row.step_time_error())); }

}  // namespace

TEST_CASE("every published run is predicted or skipped, and the JSON says so") {
  const auto& [report, told] = whole_file();
  CHECK(report.rows.size() + report.skipped.size() == static_cast<std::size_t>(told));
  CHECK(told == 677 / kEvery);
  const Json j = Json::parse(to_json_text(report));
  REQUIRE(j.at("rows").size() == report.rows.size());
  std::set<std::string> ids;
  for (const Json& r : j.at("rows")) {
    ids.insert(r.at("id").get<std::string>());
    CHECK(r.at("source").is_string());
    CHECK(r.at("trust").is_string());
    CHECK(r.at("predicted_step_time_s").get<double>() > 0);
    for (const char* key : {"measured_step_time_s", "measured_peak_bytes", "predicted_peak_bytes"})
      CHECK((r.at(key).is_null() || r.at(key).get<double>() > 0));
    CHECK(r.at("measured_peak_bytes").is_null() == r.at("predicted_peak_bytes").is_null());
    CHECK_FALSE((r.at("measured_step_time_s").is_null() && r.at("measured_peak_bytes").is_null()));
  }
  for (const Json& r : j.at("skipped")) {
    ids.insert(r.at("id").get<std::string>());
    CHECK_FALSE(r.at("reason").get<std::string>().empty());
  }
  CHECK(ids.size() == static_cast<std::size_t>(told));
  CHECK(j.at("summary").at("free_constants") == 0);
  if (kEvery == 1) CHECK(report.skipped.size() == 2);  // 1247 and 1248: changes to the loss that are not all stated
}

TEST_CASE("every published run is predicted as it was when it was last recorded") {
  const AccuracyReport& report = whole_file().report;
  RecordedTable now("published_runs.csv", {"id", "predicted_step_time_s", "predicted_peak_bytes"});
  for (const AccuracyRow& r : report.rows) {
    now.add(r.id, {r.step_time_error() ? decimal(*r.predicted_step_time_s) : "-",
                   r.predicted_peak_bytes ? whole(*r.predicted_peak_bytes) : "-"});
  }
  for (const RefusedRow& r : report.skipped) now.add(r.id, {"skipped", "skipped"});
  CHECK(now.differences(kEvery != 1) == "");
}

TEST_CASE("every row of the further files is predicted as it was, or skipped for the reason that it was") {
  CHECK(second_file().ignored_columns == std::vector<std::string>{});
  CHECK(differences(second_file(), "published_runs_2.csv") == "");
  CHECK(third_file().ignored_columns == std::vector<std::string>{});
  CHECK(differences(third_file(), "published_runs_3.csv") == "");
  CHECK(fourth_file().ignored_columns == std::vector<std::string>{});
  CHECK(differences(fourth_file(), "published_runs_4.csv") == "");
  CHECK(fifth_file().ignored_columns == std::vector<std::string>{});
  CHECK(differences(fifth_file(), "published_runs_5.csv") == "");
  CHECK(sixth_file().ignored_columns == std::vector<std::string>{});
  CHECK(differences(sixth_file(), "published_runs_6.csv") == "");
}

// Its peaks: of half of them within half a percent.
TEST_CASE("runs of the fourth file are as near as they were") {
  std::vector<double> peaks;
  double times_of_a = 0, peaks_of_a = 0;
  int times = 0, peaks_counted = 0;
  for (const AccuracyRow& r : fourth_file().rows) {
    if (r.peak_error()) peaks.push_back(std::abs(*r.peak_error()));
    if (r.trust != "A" || r.float8) continue;
    if (r.step_time_error()) times_of_a += std::abs(*r.step_time_error()), ++times;
    if (r.peak_error()) peaks_of_a += std::abs(*r.peak_error()), ++peaks_counted;
  }
  REQUIRE(peaks.size() >= 51);
  std::sort(peaks.begin(), peaks.end());
  CHECK(peaks[peaks.size() / 2] < 0.0045);
  REQUIRE(times >= 32);
  REQUIRE(peaks_counted >= 30);
  CHECK(times_of_a / times < 0.0665);
  CHECK(peaks_of_a / peaks_counted < 0.0155);
}

// Nine runs in 8 bits of transformers' form could not be predicted at first: the others' bounds stand without them.
// Experts of gpt-oss in torchtitan (4047, 4048), of Mixtral in transformers 4 (4105, which moves what it saves to the
// host as 4103 and 4104 do), and clipping of offloaded gradients under fsdp1 (4107) were refused until 1 December.
TEST_CASE("half of the runs of the third file are as near as they were") {
  const std::set<std::string> later = {"4047", "4048", "4105", "4107"};
  std::vector<double> times, peaks;
  for (const AccuracyRow& r : third_file().rows) {
    if (r.float8 && (r.implementation.starts_with("hf") || r.implementation.starts_with("litgpt"))) continue;
    if (later.contains(r.id)) continue;
    if (r.step_time_error()) times.push_back(std::abs(*r.step_time_error()));
    if (r.peak_error()) peaks.push_back(std::abs(*r.peak_error()));
  }
  const auto median = [](std::vector<double>& errors) {
    std::sort(errors.begin(), errors.end());
    return (errors[(errors.size() - 1) / 2] + errors[errors.size() / 2]) / 2;
  };
  REQUIRE(times.size() >= 83);
  CHECK(median(times) < 0.0650);
  REQUIRE(peaks.size() >= 58);
  CHECK(median(peaks) < 0.0400);
  const AccuracyGroup& all = third_file().summary.all;
  MESSAGE(fmt::format("{}: time: {} rows, mean {:.4f}, median {:.4f}; peaks: {}, mean {:.4f}, median {:.4f}", all.name,
                      all.step_time.rows, all.step_time.mean, all.step_time.median, all.peak.rows, all.peak.mean,
                      all.peak.median));
  CHECK(all.step_time.rows >= 97);
  // 0.0795 and, below, 0.0745 until fms-fsdp's loss was read as its cells have it, of logits in bf16: 4005 went from
  // -7.4 to -7.7 %.
  CHECK(all.step_time.median < 0.0798);
  // 4106 was refused until 30 November; 4049 was near without flex.
  times.clear();
  for (const AccuracyRow& r : third_file().rows)
    if (r.step_time_error() && r.id != "4049" && r.id != "4106" && !later.contains(r.id))
      times.push_back(std::abs(*r.step_time_error()));
  REQUIRE(times.size() >= 92);
  CHECK(median(times) < 0.0753);
  CHECK(all.peak.rows >= 68);
  CHECK(all.peak.median < 0.0265);
}

TEST_CASE("runs that failed for memory are predicted not to fit, those that completed fit, and peaks are near") {
  const AccuracyReport& report = second_file();
  std::int64_t judged = 0, refused = 0;
  for (const FailedRun& r : report.failed)
    if (r.predicted_total_bytes) CHECK_MESSAGE(r.predicted_not_to_fit(), r.id);
  for (const AccuracyRow& r : report.rows)
    if (r.predicted_total_bytes) ++judged, refused += *r.predicted_total_bytes > r.device_bytes ? 1 : 0;
  CHECK(judged >= 41);
  CHECK(refused == 0);
  const AccuracyGroup& a = report.summary.headline;
  MESSAGE(fmt::format("time: {} rows, mean {:.4f}, worst {:.4f}; peaks: {}, mean {:.4f}, worst {:.4f}",
                      a.step_time.rows, a.step_time.mean, a.step_time.worst, a.peak.rows, a.peak.mean, a.peak.worst));
  // The worst of six that multiply experts in turn, which were refused until 1 December, is 3028, which waits for the
  // host; the bounds of the others stand without these.
  CHECK(a.step_time.rows >= 41);
  CHECK(a.step_time.mean < 0.0668);
  CHECK(a.step_time.worst < 0.3497);
  CHECK(a.peak.rows >= 40);
  CHECK(a.peak.mean < 0.0147);
  CHECK(a.peak.worst < 0.1186);
  const std::set<std::string> in_turn = {"3021", "3023", "3024", "3026", "3028", "3029"};
  double times = 0;
  int counted = 0;
  for (const AccuracyRow& r : report.rows)
    if (r.step_time_error() && !in_turn.contains(r.id)) times += std::abs(*r.step_time_error()), ++counted;
  REQUIRE(counted >= 35);
  CHECK(times / counted < 0.0580);
}

// What was reached, rounded up: a change may make these smaller only. Whoever makes one smaller writes it down here.
TEST_CASE("errors over the published runs are no larger than they were") {
  if (kEvery != 1) return;
  const AccuracyReport& report = whole_file().report;
  const ErrorSummary& a = report.summary.headline.step_time;
  std::map<std::string, double> worst;  // by trust, |ln|
  for (const AccuracyRow& r : report.rows)
    if (r.step_time_error()) worst[r.trust] = std::max(worst[r.trust], log_error(r));
  std::string text = fmt::format("trust A: mean {:.4f} median {:.4f} p90 {:.4f} bias {:+.4f}, tau {:.4f}\n", a.mean,
                                 a.median, a.p90, a.bias, report.summary.headline_order.tau);
  for (const auto& [trust, error] : worst) text += fmt::format("worst |ln| of trust {}: {:.4f}\n", trust, error);
  const ErrorSummary& peak = report.summary.headline.peak;
  MESSAGE(text << fmt::format("peaks: {} rows, mean {:.4f} worst {:.4f}\n", peak.rows, peak.mean, peak.worst));
  // Raised once: the tenth that is furthest off (p90, 0.0877), since products wait for the slowest GPU: rows on H100
  // that are too slow by other causes (long sequences, Qwen3) are 1 or 2 points more.
  CHECK(a.mean < 0.0342);
  CHECK(a.median < 0.0237);
  CHECK(a.p90 < 0.0932);
  CHECK(std::abs(a.bias) < 0.0016);
  CHECK(report.summary.headline_order.tau > 0.9253);
  CHECK(worst.at("A") < 0.3169);
  CHECK(worst.at("B") < 1.7310);
  CHECK(peak.mean < 0.0151);
  CHECK(peak.worst < 0.0704);
}

TEST_CASE("errors of large jobs are no larger than they were") {
  if (kEvery != 1) return;
  struct Reached {
    const char* name;
    double mean;
  };
  const AccuracySummary& summary = whole_file().report.summary;
  CHECK(summary.all.step_time.mean < 0.0390);
  // Raised since products wait for the slowest GPU: 129 to 512 GPUs (0.0844) and more (0.2060). MareNostrum's are too
  // slow there by 4 % instead of 3. 33 to 128 GPUs was 0.0567 until second rounds became shorter, which took 129 to 512
  // from 0.0847.
  for (const Reached& r :
       {Reached{"33 to 128 GPUs", 0.0574}, Reached{"129 to 512 GPUs", 0.0744}, Reached{"over 512 GPUs", 0.2003}}) {
    CAPTURE(r.name);
    const auto at = std::find_if(summary.groups.begin(), summary.groups.end(),
                                 [&](const AccuracyGroup& g) { return g.name == r.name; });
    REQUIRE(at != summary.groups.end());
    CHECK(at->step_time.mean < r.mean);
  }
}

namespace {

const PairGroup& group_of(const PairReport& report, std::string_view name) {
  const auto at =
      std::find_if(report.groups.begin(), report.groups.end(), [&](const PairGroup& g) { return g.name == name; });
  REQUIRE(at != report.groups.end());
  MESSAGE(fmt::format("{}: {} pairs, mean {:.4f}, {} of {} signs right", at->name, at->error.rows, at->error.mean,
                      at->sign_right, at->clear));
  return *at;
}

}  // namespace

// A plan is chosen by differences. Those of 13B on 2,048 GPUs (row 1468) are the worst by far: see docs/accuracy.md.
TEST_CASE("differences between published runs are predicted no worse than they were, and a fit makes them better") {
  if (kEvery != 1) return;
  AccuracyOptions options;
  options.memory = false;
  options.keep_runs = true;
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/accuracy/fitted_costs.json", std::ios::binary);
  const std::string costs((std::istreambuf_iterator<char>(file)), {});
  const PairReport pairs = pair_up(whole_file().report),
                   fitted = pair_up(of_file(1, options, prices_of(parse_fitted_costs(costs, "fitted_costs.json"))));
  struct Reached {
    const char* name;
    std::int64_t pairs;
    double mean, sign_right;  // the mean in points / 100, the share of clear differences
    double fitted_mean, fitted_sign_right;
  };
  // Raised: over 128 GPUs fitted (0.1520) and sharding fitted (0.0608, five signs of five; above 128 GPUs 0.1080),
  // since times hold the allocator's stops: these brought rows from 0.053 to 0.043, and a fabric that is fitted beside
  // stops is another one. Raised a little since products wait for the slowest GPU, which took trust A from 0.0193
  // to 0.0160: over 128 GPUs (0.1863), sharding there (0.1398) and micro-batch (0.0800). Raised by a thirtieth, most of
  // them, since second rounds of products are as long as their tiles say, which took trust A's steps from 0.0348 to
  // 0.0341 and those of 129 to 512 GPUs from 0.0847 to 0.0743: longer ones had hidden that full sharding is too fast on
  // some machines. Fitted they were, in this order: 0.0423, 0.0139, 0.1603, 0.0676, 0.1217, 0.0491, 0.0206.
  constexpr Reached kReached[] = {{"all", 746, 0.0479, 0.910, 0.0428, 0.910},
                                  {"trust A", 25, 0.0167, 1, 0.0150, 1},
                                  {"over 128 GPUs", 92, 0.1918, 0.974, 0.1626, 0.974},
                                  {"sharding", 9, 0.0784, 0.8, 0.0709, 0.8},
                                  {"sharding, over 128 GPUs", 4, 0.1455, 1, 0.1256, 1},
                                  {"micro-batch", 23, 0.0857, 1, 0.0508, 1},
                                  {"sequence", 12, 0.0271, 1, 0.0225, 1}};
  for (const Reached& r : kReached) {
    CAPTURE(r.name);
    const PairGroup &plain = group_of(pairs, r.name), &fit = group_of(fitted, r.name);
    CHECK(plain.error.rows == r.pairs);
    CHECK(plain.error.mean < r.mean);
    CHECK(static_cast<double>(plain.sign_right) >= r.sign_right * static_cast<double>(plain.clear));
    CHECK(fit.error.rows == r.pairs);
    CHECK(fit.error.mean < r.fitted_mean);
    CHECK(fit.error.mean < plain.error.mean);
    CHECK(static_cast<double>(fit.sign_right) >= r.fitted_sign_right * static_cast<double>(fit.clear));
  }
}
