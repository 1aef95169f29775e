// The fit against runs that the simulator itself made up with known constants: it must find them again through noise
// and wild rows. (This tests the fit, not the model: whether the model is right, tests/accuracy/published_runs.csv
// says.)
#include "simulator/published/fit_runs.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <random>
#include <sstream>

#include "models/input/error.h"
#include "simulator/published/cross_validation.h"

using namespace fsdp;

namespace {

const std::string kHeader =
    "id,source,trust,framework,model,layers,hidden,heads,ffn,vocab,seq_len,gpu,gpus,gpus_per_node,fabric_gbps_per_gpu,"
    "param_dtype,reduce_dtype,"
    "micro_batch,grad_accum,activation_checkpointing,optimizer,step_time_s,software_generation\n";

struct Made {
  std::string id, source, generation, gpu;
  int layers, hidden, seq, gpus, micro, accum;
  bool checkpointed;
  double seconds = 0;
};

std::string csv(const std::vector<Made>& rows, bool with_times = true) {
  std::string text = kHeader;
  for (const Made& m : rows)
    text +=
        fmt::format("{},{},A,fsdp2,GPT made up,{},{},{},{},32000,{},{},{},8,200,bf16,fp32,{},{},{},adamw,{},{}\n", m.id,
                    m.source, m.layers, m.hidden, m.hidden / 64, 4 * m.hidden, m.seq, m.gpu, m.gpus, m.micro, m.accum,
                    m.checkpointed ? "full" : "none", with_times ? fmt::format("{:.9g}", m.seconds) : "", m.generation);
  return text;
}

// Runs of many shapes on one platform.
std::vector<Made> shapes(const std::string& source, const std::string& generation, const std::string& gpu, int count) {
  std::vector<Made> rows;
  for (int i = 0; i < count; ++i) {
    Made m{fmt::format("{}-{}-{}", source, generation, i), source, generation, gpu, 0, 0, 0, 0, 0, 0, false};
    m.layers = 4 + 4 * (i % 3);
    m.hidden = 512 << (i % 4);
    m.seq = 512 << (i * 7 % 5);
    m.gpus = i % 5 == 0 ? 16 : 8;
    m.micro = std::max(1, (i % 3 + 1) * 4096 / m.seq);
    m.accum = i % 4 == 1 ? 3 : 1;
    m.checkpointed = i % 6 == 2;
    rows.push_back(m);
  }
  return rows;
}

using Truth = std::vector<std::pair<const char*, double>>;  // constant, ratio to the datasheet's

// Fills in the times that the simulator predicts with other constants than the datasheet's.
void measure(std::vector<Made>& rows, const Truth& truth, double noise, double wild, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const PublishedRuns parsed = parse_runs(csv(rows, false), "made.csv");
  REQUIRE(parsed.runs.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto setup = set_up(parsed.runs[i], "made.csv");
    if (const auto* why = std::get_if<std::string>(&setup)) FAIL(*why);
    const PreparedRun run = prepare(std::get<RunSetup>(std::move(setup)));
    Costs costs = default_costs(run.setup.cluster);
    for (const auto& [name, ratio] : truth)
      set_value(costs, *find_parameter(name), value_of(costs, *find_parameter(name)) * ratio);
    rows[i].seconds = predict_step_time(run, costs).count() * std::exp(noise * normal(random));
    if (uniform(random) < wild) rows[i].seconds *= uniform(random) < 0.5 ? 2.2 : 0.5;
  }
}

FitRuns read(const std::vector<Made>& rows) {
  std::istringstream in(csv(rows));
  return read_fit_runs(in, "made.csv");
}

double default_of(const char* name, const FitRun& run) {
  return value_of(default_costs(run.prepared.setup.cluster), *find_parameter(name));
}

const FittedPlatform* find(const std::vector<FittedPlatform>& all, const std::string& source,
                           const std::string& generation = "") {
  for (const FittedPlatform& p : all)
    if (p.source == source && p.software_generation == generation) return &p;
  return nullptr;
}

const FittedConstant* find(const FittedPlatform& p, const std::string& name) {
  for (const FittedConstant& c : p.constants)
    if (c.name == name) return &c;
  return nullptr;
}

std::vector<Made> joined(std::vector<Made> a, const std::vector<Made>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("known constants come back from runs with 1 % noise and 5 % wild rows") {
  const Truth truth = {
      {"matmul_efficiency", 0.93}, {"attention_forward_efficiency", 0.85}, {"memory_efficiency", 0.88}};
  std::vector<Made> rows = shapes("lab", "torch-2.1", "h100-sxm-80", 120);
  measure(rows, truth, 0.01, 0.05, 4);
  const FitRuns runs = read(rows);
  REQUIRE(runs.rows.size() == 120);
  CHECK(runs.left_out.empty());
  const CalibratedRuns fitted = fit_runs(runs.rows, "test");
  const FittedPlatform* lab = find(fitted.costs.platforms, "lab", "torch-2.1");
  REQUIRE(lab);
  for (const auto& [name, ratio] : truth) {
    CAPTURE(name);
    const FittedConstant* c = find(*lab, name);
    REQUIRE(c);
    const double target = default_of(name, runs.rows[0]) * ratio;
    CHECK(std::abs(std::log(c->value / target)) < 0.04);
    CHECK(std::abs(c->value - target) < 4 * c->standard_error);
    CHECK(c->standard_error < 0.06 * c->value);
    CHECK(c->rows >= 5);
    CHECK(c->rows <= 120);
  }
  CHECK(fitted.platforms.size() == 1);
  CHECK(fitted.platforms[0].after < fitted.platforms[0].before);
  CHECK(parse_fitted_costs(to_json_text(fitted.costs), "costs.json") == fitted.costs);
}

TEST_CASE("rows held out are predicted as well as the noise allows, and one source helps another on the same GPU") {
  const Truth truth = {{"matmul_efficiency", 0.85}, {"memory_efficiency", 0.90}};
  std::vector<Made> one = shapes("lab", "", "a100-sxm-80", 40), two = shapes("other", "", "a100-sxm-80", 12);
  measure(one, truth, 0.01, 0, 7);
  measure(two, truth, 0.01, 0, 8);
  FitRuns runs = read(joined(one, two));
  REQUIRE(runs.rows.size() == 52);
  const CrossValidation random = cross_validate(runs.rows, HoldOut::random);
  CHECK(random.folds == 10);
  CHECK(random.rows.size() == 52);
  CHECK(random.summary.all.step_time.rows == 52);
  CHECK(random.summary.all.step_time.mean < 0.02);
  CHECK(random.linear.all.step_time.mean > random.summary.all.step_time.mean);
  const CrossValidation source = cross_validate(runs.rows, HoldOut::source);
  CHECK(source.folds == 2);
  double datasheet = 0;
  for (const FitRun& r : runs.rows) datasheet += std::abs(std::exp(r.datasheet_error) - 1) / 52;
  CHECK(source.summary.all.step_time.mean < 0.85 * datasheet);
  const CrossValidation model = cross_validate(runs.rows, HoldOut::source_model);
  CHECK(model.folds == 2);  // one model name in two sources
}

TEST_CASE("what a row measured does not move its own prediction when it is held out") {
  std::vector<Made> one = shapes("lab", "", "a100-sxm-80", 16), two = shapes("other", "", "a100-sxm-80", 12);
  measure(one, {{"matmul_efficiency", 0.85}}, 0.01, 0, 7);
  measure(two, {{"matmul_efficiency", 0.85}}, 0.01, 0, 8);
  std::vector<Made> slower = two;
  for (Made& m : slower) m.seconds *= 1.2;
  FitRuns before = read(joined(one, two)), after = read(joined(one, slower));
  const CrossValidation a = cross_validate(before.rows, HoldOut::source),
                        b = cross_validate(after.rows, HoldOut::source);
  REQUIRE(a.rows.size() == 28);
  REQUIRE(b.rows.size() == 28);
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    CAPTURE(a.rows[i].id);
    const double ratio = *b.rows[i].predicted_step_time_s / *a.rows[i].predicted_step_time_s;
    if (a.rows[i].source == "other")
      CHECK(std::abs(ratio - 1) < 0.01);  // the fit to all rows, near which a part's begins, moved
    else CHECK(ratio > 1.02);             // their constants come from the rows that changed
  }
}

TEST_CASE("a platform with four rows has the pooled constants; a GPU with four rows has the datasheet's") {
  std::vector<Made> lab = shapes("lab", "", "h100-sxm-80", 20), few = shapes("few", "", "h100-sxm-80", 4),
                    rare = shapes("rare", "", "a100-sxm-40", 4);
  for (auto* rows : {&lab, &few, &rare}) measure(*rows, {{"matmul_efficiency", 0.9}}, 0.005, 0, 3);
  const FitRuns runs = read(joined(joined(lab, few), rare));
  const CalibratedRuns fitted = fit_runs(runs.rows, "test");
  CHECK(find(fitted.costs.platforms, "lab"));
  CHECK_FALSE(find(fitted.costs.platforms, "few"));
  CHECK_FALSE(find(fitted.costs.platforms, "rare"));
  REQUIRE(fitted.costs.gpus.size() == 1);
  CHECK(fitted.costs.gpus[0].gpu == "h100-sxm-80");
  CHECK(fitted.costs.gpus[0].rows == 24);
  CHECK(fitted.platforms.size() == 3);
  for (const FitRun& r : runs.rows) {
    const Costs costs = costs_for(fitted.costs, r);
    if (r.run.source == "rare") CHECK(costs == default_costs(r.prepared.setup.cluster));
    if (r.run.source == "few") CHECK(costs == costs_for(fitted.costs, r.prepared.setup.cluster));
    CHECK(prices_of(fitted.costs).costs_of(r.prepared.setup) == costs);
  }
  CHECK(prices_of(fitted.costs).free_constants == free_constants(fitted.costs));
}

TEST_CASE("two threads and one give the same bits; so do two runs") {
  std::vector<Made> rows = shapes("lab", "", "h100-sxm-80", 16);
  measure(rows, {{"matmul_efficiency", 0.9}}, 0.01, 0, 5);
  const FitRuns runs = read(rows);
  const FittedCosts one = fit_runs(runs.rows, "test").costs;
  CHECK(fit_runs(runs.rows, "test", {.threads = 2}).costs == one);
  CHECK(fit_runs(runs.rows, "test").costs == one);
}

TEST_CASE(
    "rows that are odd throughout still give constants inside their physical range, and the error left over is said") {
  std::vector<Made> rows = shapes("lab", "", "h100-sxm-80", 20);
  measure(rows, {}, 0, 0, 5);
  for (Made& m : rows) m.seconds *= 20;
  const CalibratedRuns slow = fit_runs(read(rows).rows, "test");
  CHECK(slow.platforms[0].after > 0.5);
  for (const FittedConstant& c : slow.costs.platforms[0].constants) {
    CHECK(c.value >= find_parameter(c.name)->lower);
    CHECK(c.value <= find_parameter(c.name)->upper);
  }
  CHECK(parse_fitted_costs(to_json_text(slow.costs), "costs.json") == slow.costs);
  std::mt19937 random(1);
  for (Made& m : rows) m.seconds *= std::exp(static_cast<double>(random() % 1000) / 100 - 5);  // and without any order
  CHECK(parse_fitted_costs(to_json_text(fit_runs(read(rows).rows, "test").costs), "costs.json").platforms.size() == 1);
}

TEST_CASE("few rows: one, equal ones, none") {
  std::vector<Made> one = shapes("lab", "", "h100-sxm-80", 1);
  measure(one, {}, 0, 0, 1);
  FitRuns runs = read(one);
  const CalibratedRuns nothing = fit_runs(runs.rows, "test");
  CHECK(nothing.costs.gpus.empty());
  CHECK(nothing.costs.platforms.empty());
  CHECK_THROWS_WITH_AS((void)cross_validate(runs.rows, HoldOut::random), doctest::Contains("one run only"), InputError);
  std::vector<Made> ten(10, one[0]);  // published ten times
  const FitRuns same = read(ten);
  CHECK(same.rows.size() == 1);
  REQUIRE(same.left_out.size() == 9);
  CHECK(same.left_out[0].reason.find("same run") != std::string::npos);
  CHECK_THROWS_AS((void)fit_runs(std::span<const FitRun>(), "test"), InputError);
  const auto refused = [](const std::string& text, const char* words) {
    std::istringstream in(text);
    CHECK_THROWS_WITH_AS((void)read_fit_runs(in, "made.csv"), doctest::Contains(words), InputError);
  };
  refused("", "made.csv");
  refused(
      "\x7f"
      "ELF\x01\x02",
      "made.csv");
  refused(kHeader, "holds no run to fit to");
  refused(csv(one, false), "step_time_s");
  std::string zero = csv(one);
  refused(zero.replace(zero.find(fmt::format("{:.9g}", one[0].seconds)), 3, "-0."), "holds no run to fit to");
  std::vector<Made> unknown = one;
  unknown[0].gpu = "abacus-9000";
  refused(csv(unknown), "abacus-9000");
}

TEST_CASE("ways to hold rows out have names; others are refused") {
  for (const HoldOut h : {HoldOut::source_model, HoldOut::source, HoldOut::random})
    CHECK(parse_hold_out(name(h), "flag") == h);
  CHECK_THROWS_WITH_AS((void)parse_hold_out("rows", "--cross-validate"), doctest::Contains("source-model"), InputError);
}
