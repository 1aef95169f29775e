// Pairs of runs that differ in one knob: files made by hand, whose differences were worked out by hand.
#include "simulator/published/pairs.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/input/error.h"
#include "tests/support/relative.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

constexpr const char* kHeader =
    "id,source,trust,model,gpu,gpus,gpus_per_node,strategy,dp_shard,dp_replicate,seq_len,micro_batch,grad_accum,"
    "activation_checkpointing,compile,software,step_time_s\n";

// A report in which every prediction is `predicted[i]`, so that differences are known.
AccuracyReport report_of(const std::string& rows, const std::vector<double>& predicted) {
  std::istringstream in(kHeader + rows);
  AccuracyOptions options;
  options.keep_runs = true;
  AccuracyReport report = accuracy_of(in, "runs.csv", datasheet_prices(), options);
  CAPTURE(report.skipped.empty() ? "" : report.skipped[0].reason);
  REQUIRE(report.skipped.empty());
  REQUIRE(report.rows.size() == predicted.size());
  for (std::size_t i = 0; i < predicted.size(); ++i) report.rows[i].predicted_step_time_s = predicted[i];
  return report;
}

const PairGroup* group(const PairReport& r, const std::string& name) {
  const auto at = std::find_if(r.groups.begin(), r.groups.end(), [&](const PairGroup& g) { return g.name == name; });
  return at == r.groups.end() ? nullptr : &*at;
}

std::string row(const std::string& id, const std::string& shape, const std::string& rest, double seconds) {
  return fmt::format("{},me,A,llama3-8b,h100-sxm-80,{},{},{}\n", id, shape, rest, seconds);
}

}  // namespace

TEST_CASE("hybrid beside full sharding: measured, predicted, error, sign") {
  // Measured 2.0 and 1.5 s: hybrid takes 25 % less. Predicted 1.6 and 1.68: 5 % more. 30 points, the wrong sign.
  const PairReport pairs = pair_up(report_of(row("full", "256,8,FULL_SHARD,256,1", "4096,1,1,none,no,x", 2.0) +
                                                 row("hybrid", "256,8,HYBRID_SHARD,8,32", "4096,1,1,none,no,x", 1.5),
                                             {1.6, 1.68}));
  REQUIRE(pairs.pairs.size() == 1);
  const RunPair& p = pairs.pairs[0];
  CHECK(p.knob == "sharding");
  CHECK(p.from == "full");
  CHECK(p.to == "hybrid of 8");
  CHECK(p.from_rows == std::vector<std::string>{"full"});
  CHECK(p.to_rows == std::vector<std::string>{"hybrid"});
  CHECK(p.trust == "A");
  CHECK(p.gpus == 256);
  CHECK(p.measured == relative(-0.25));
  CHECK(p.predicted == relative(0.05));
  CHECK(p.error() == relative(0.30));
  CHECK_FALSE(p.sign_right());
  for (const char* name : {"all", "trust A", "over 128 GPUs", "sharding", "sharding, over 128 GPUs"}) {
    CAPTURE(name);
    const PairGroup* g = group(pairs, name);
    REQUIRE(g);
    CHECK(g->error.rows == 1);
    CHECK(g->error.mean == relative(0.30));
    CHECK(g->clear == 1);
    CHECK(g->sign_right == 0);
  }
  CHECK(group(pairs, "GPUs") == nullptr);
}

TEST_CASE("differences are of time per token and GPU, so that batches can be compared") {
  // A micro-batch of 2 takes 1.8 times as long for twice the tokens: 10 % less per token; predicted 1.9 times: 5 %
  // less.
  const PairReport pairs = pair_up(report_of(row("1", "8,8,FULL_SHARD,8,1", "4096,1,1,none,no,x", 1.0) +
                                                 row("2", "8,8,FULL_SHARD,8,1", "4096,2,1,none,no,x", 1.8),
                                             {1.0, 1.9}));
  REQUIRE(pairs.pairs.size() == 1);
  CHECK(pairs.pairs[0].knob == "micro-batch");
  CHECK(pairs.pairs[0].measured == relative(-0.10));
  CHECK(pairs.pairs[0].predicted == relative(-0.05));
  CHECK(pairs.pairs[0].sign_right());
  CHECK(group(pairs, "all")->sign_right == 1);
  CHECK(group(pairs, "sharding") == nullptr);
}

TEST_CASE("two knobs at once are no pair, but for accumulation that keeps the global batch") {
  const std::string one = "8,8,FULL_SHARD,8,1";
  const auto knobs = [&](const std::string& a, const std::string& b) {
    std::vector<std::string> out;
    for (const RunPair& p : pair_up(report_of(a + b, {1, 1})).pairs) out.push_back(p.knob);
    return out;
  };
  using Names = std::vector<std::string>;
  const std::string base = row("1", one, "4096,1,4,none,no,x", 1);
  CHECK(knobs(base, row("2", one, "4096,2,4,full,no,x", 1)).empty());
  CHECK(knobs(base, row("2", one, "4096,2,3,none,no,x", 1)).empty());
  CHECK(knobs(base, row("2", one, "4096,1,4,full,no,x", 1)) == Names{"checkpointing"});
  CHECK(knobs(base, row("2", one, "4096,1,4,none,yes,x", 1)) == Names{"compile"});
  CHECK(knobs(base, row("2", one, "8192,1,4,none,no,x", 1)) == Names{"sequence"});
  CHECK(knobs(base, row("2", one, "4096,1,8,none,no,x", 1)) == Names{"accumulation"});
  CHECK(knobs(base, row("2", one, "4096,2,2,none,no,x", 1)) == Names{"micro-batch, same global batch"});
  CHECK(knobs(base, row("2", "16,8,FULL_SHARD,16,1", "4096,1,4,none,no,x", 1)) == Names{"GPUs"});
  CHECK(knobs(base, row("2", "16,8,FULL_SHARD,16,1", "4096,1,2,none,no,x", 1)) == Names{"GPUs, same global batch"});
  CHECK(knobs(base, row("2", "8,8,SHARD_GRAD_OP,8,1", "4096,1,4,none,no,x", 1)) == Names{"reshard"});
  CHECK(knobs(base, row("2", one, "4096,1,4,none,no,y", 1)).empty());                   // other software
  CHECK(knobs(base, row("2", "8,4,FULL_SHARD,8,1", "4096,1,4,none,no,x", 1)).empty());  // other nodes
}

TEST_CASE("a configuration that was measured twice counts once, by its mean") {
  const PairReport pairs = pair_up(report_of(row("1", "8,8,FULL_SHARD,8,1", "4096,1,1,none,no,x", 0.9) +
                                                 row("2", "8,8,FULL_SHARD,8,1", "4096,1,1,none,no,x", 1.1) +
                                                 row("3", "16,8,FULL_SHARD,16,1", "4096,1,1,none,no,x", 1.02),
                                             {1, 1, 1.01}));
  REQUIRE(pairs.pairs.size() == 1);
  CHECK(pairs.pairs[0].from_rows == std::vector<std::string>{"1", "2"});
  CHECK(pairs.pairs[0].measured == relative(0.02));
  CHECK(pairs.pairs[0].predicted == relative(0.01));
  CHECK_FALSE(pairs.pairs[0].clear());
  CHECK(group(pairs, "all")->clear == 0);
}

TEST_CASE("every two of a knob's values are a pair; of more than 64, neighbours only") {
  const auto pairs_among = [](int values) {
    std::string rows;
    for (int i = 0; i < values; ++i)
      rows += row(std::to_string(i), "8,8,FULL_SHARD,8,1", fmt::format("{},1,1,none,no,x", 512 + 64 * i), 1);
    return pair_up(report_of(rows, std::vector<double>(static_cast<std::size_t>(values), 1.0))).pairs;
  };
  CHECK(pairs_among(5).size() == 10);
  const std::vector<RunPair> many = pairs_among(66);
  REQUIRE(many.size() == 65);
  for (std::size_t i = 0; i < many.size(); ++i) CHECK(many[i].from_rows[0] == std::to_string(i));  // ordered as numbers
}

TEST_CASE("the JSON has the report and its pairs; a report without its runs has none") {
  AccuracyReport report = report_of(row("1", "8,8,FULL_SHARD,8,1", "4096,1,1,none,no,x", 1.0) +
                                        row("2", "16,8,FULL_SHARD,16,1", "4096,1,1,none,no,x", 1.1),
                                    {1, 1.2});
  const Json j = Json::parse(to_json_text(report, pair_up(report)));
  CHECK(j.at("rows").size() == 2);
  const Json& pair = j.at("pairs").at("pairs").at(0);
  CHECK(pair.at("knob") == "GPUs");
  CHECK(pair.at("from") == "8");
  CHECK(pair.at("to_rows") == Json{"2"});
  CHECK(pair.at("measured_difference").get<double>() == relative(0.1));
  CHECK(pair.at("predicted_difference").get<double>() == relative(0.2));
  CHECK(pair.at("sign_right") == true);
  CHECK(j.at("pairs").at("groups").at(0).at("name") == "all");
  CHECK(j.at("pairs").at("groups").at(0).at("clear_with_the_right_sign") == 1);
  report.runs.clear();
  CHECK_THROWS_AS(static_cast<void>(pair_up(report)), InternalError);
  CHECK(pair_up(AccuracyReport{}).pairs.empty());
}
