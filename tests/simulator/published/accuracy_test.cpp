// Errors of predictions, summed up: numbers that were worked out by hand. The published runs themselves are in
// tests/accuracy/step_time_test.cpp.
#include "simulator/published/accuracy.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "models/input/error.h"
#include "tests/support/relative.h"
#include "viz/scatter.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

AccuracyRow made(const std::string& id, double measured, double predicted, const std::string& trust = "A") {
  AccuracyRow r;
  r.id = id, r.source = "s", r.gpu = "g", r.model = "m", r.trust = trust, r.gpus = 8;
  r.measured_step_time_s = measured, r.predicted_step_time_s = predicted;
  return r;
}

}  // namespace

TEST_CASE("errors are summed up to mean, median, p90, worst and bias") {
  const std::vector<double> errors = {0.1, -0.2, 0.0, 0.4, -0.3};
  const std::vector<std::string> ids = {"a", "b", "c", "d", "e"};
  const ErrorSummary s = summarize_errors(errors, ids);
  CHECK(s.rows == 5);
  CHECK(s.mean == relative(0.2));
  CHECK(s.median == relative(0.2));
  CHECK(s.p90 == relative(0.36));  // between the fourth, 0.3, and the fifth, 0.4
  CHECK(s.worst == relative(0.4));
  CHECK(s.worst_id == "d");
  CHECK(std::abs(s.bias) < 1e-15);
  CHECK(summarize_errors({}, {}).rows == 0);
}

TEST_CASE("Kendall's tau leaves out near ties, small groups and other models") {
  // Measured 1 2 3 4 5; predicted swaps one neighbouring pair: 9 of 10 pairs agree, tau 0.8.
  std::vector<AccuracyRow> rows = {made("1", 1, 10), made("2", 2, 30), made("3", 3, 20), made("4", 4, 40),
                                   made("5", 5, 50)};
  CHECK(rank_agreement(rows).tau == relative(0.8));
  CHECK(rank_agreement(rows).pairs == 10);
  CHECK(rank_agreement(rows).groups == 1);
  rows[2].measured_step_time_s = 2.03;  // within 2 % of row 2: that pair no longer counts
  CHECK(rank_agreement(rows).tau == 1.0);
  CHECK(rank_agreement(rows).pairs == 9);
  rows[1].predicted_step_time_s = 40;  // a tie in the prediction is neither
  CHECK(rank_agreement(rows).tau == relative(8.0 / 9));
  rows.pop_back();
  CHECK(rank_agreement(rows).groups == 0);  // four rows are no group
  std::vector<AccuracyRow> mixed = {made("1", 1, 1), made("2", 2, 2), made("3", 3, 3), made("4", 4, 4),
                                    made("5", 5, 5)};
  mixed[0].model = "other";
  CHECK(rank_agreement(mixed).pairs == 0);
}

TEST_CASE("Kendall's tau counts as comparing every pair does") {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<AccuracyRow> rows;
    for (int i = 0; i < 40; ++i)  // few values, so that there are ties and times within 2 %
      rows.push_back(made(std::to_string(i), 1 + 0.01 * static_cast<double>(random() % 30),
                          1 + static_cast<double>(random() % 20)));
    std::int64_t pairs = 0, score = 0;
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const double a = *rows[i].measured_step_time_s, b = *rows[j].measured_step_time_s,
                     p = *rows[i].predicted_step_time_s, q = *rows[j].predicted_step_time_s;
        if (std::abs(a - b) < 0.02 * std::max(a, b)) continue;
        ++pairs;
        score += p == q ? 0 : (a < b) == (p < q) ? 1 : -1;
      }
    const RankAgreement r = rank_agreement(rows);
    CHECK(r.pairs == pairs);
    CHECK(r.tau == relative(static_cast<double>(score) / static_cast<double>(pairs)));
  }
}

TEST_CASE("the headline is trust A; groups hold every row once") {
  std::vector<AccuracyRow> rows = {made("1", 1, 1.1), made("2", 1, 0.9, "B"), made("3", 2, 3)};
  rows[2].gpus = 512;
  rows[1].measured_peak_bytes = 100, rows[1].predicted_peak_bytes = 90;
  const AccuracySummary s = summarize(rows);
  CHECK(s.headline.step_time.rows == 2);
  CHECK(s.headline.step_time.mean == relative(0.3));
  CHECK(s.all.step_time.rows == 3);
  CHECK(s.headline.peak.rows == 0);
  CHECK(s.all.peak.bias == relative(-0.1));
  for (const char* by : {"source", "gpu", "scale", "trust"}) {
    std::int64_t rows_in_groups = 0;
    for (const AccuracyGroup& g : s.groups) rows_in_groups += g.by == by ? g.step_time.rows : 0;
    CHECK(rows_in_groups == 3);
  }
}

TEST_CASE("rows that say too little or the wrong thing") {
  const std::string header =
      "id,trust,model,gpu,gpus,seq_len,micro_batch,tokens_per_s_per_gpu,step_time_s,peak_memory_gib,memory_kind\n";
  const auto of = [&](const std::string& rows) {
    std::istringstream in(header + rows);
    return accuracy_of(in, "runs.csv", datasheet_prices());
  };
  const AccuracyReport r =
      of("a,A,llama3-8b,h100-sxm-80,8,8192,1,,,,\n"
         "b,A,llama3-8b,h100-sxm-80,8,8192,1,8192,2,,\n"
         "c,A,llama3-8b,h100-sxm-80,8,8192,1,8192,1,,\n"
         "c,A,llama3-8b,h100-sxm-80,8,8192,1,4096,,,\n"
         "d,A,llama3-8b,h100-sxm-80,8,8192,16,,,70,allocated\n");
  REQUIRE(r.skipped.size() == 3);
  CHECK(r.skipped[0].reason.find("nothing to compare") != std::string::npos);
  CHECK(r.skipped[1].reason.find("contradict") != std::string::npos);
  CHECK(r.skipped[2].id == "d");
  CHECK(r.skipped[2].reason.find("of a device of 80.0 GiB") != std::string::npos);
  REQUIRE(r.rows.size() == 2);
  CHECK(*r.rows[1].measured_step_time_s == relative(2.0));
  CHECK(r.summary.repeated_ids == std::vector<std::string>{"c"});
}

TEST_CASE("what of a step waits for communication is said where it was asked for, and is null elsewhere") {
  const auto share = [](bool every_peak) {
    std::istringstream in(
        "id,trust,model,gpu,gpus,seq_len,micro_batch,tokens_per_s_per_gpu\n"
        "a,A,llama3-8b,a100-sxm-80,64,1024,1,3000\n");
    AccuracyOptions options;
    options.every_peak = every_peak;
    return Json::parse(to_json_text(accuracy_of(in, "runs.csv", datasheet_prices(), options)))
        .at("rows")
        .at(0)
        .at("exposed_share");
  };
  CHECK(share(false).is_null());
  CHECK(share(true).get<double>() > 0.05);
  CHECK(share(true).get<double>() < 1);
}

TEST_CASE("text that JSON cannot hold is replaced, not thrown at") {
  AccuracyReport report;
  report.skipped.push_back({"1", "caf\xc3"});
  CHECK(Json::parse(to_json_text(report)).at("skipped").size() == 1);
}
