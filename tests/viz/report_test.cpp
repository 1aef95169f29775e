// The report's data: what is in the page is what the prediction says, and the page holds no text that could be read as
// markup. That it is shown rightly is tests/web's to say.
#include "viz/report.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "planner/job.h"
#include "planner/plan/naive_plan.h"
#include "simulator/analysis/breakdown.h"
#include "simulator/analysis/critical_path.h"
#include "simulator/engine/memory.h"
#include "simulator/predict.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

std::string base64_decoded(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0, value = 0;
  for (const char c : text) {
    if (c == '=') break;
    value = value << 6 | static_cast<unsigned>(digits.find(c));
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    out += static_cast<char>(value >> bits & 255);
  }
  return out;
}

std::string inflated(const std::string& packed) {
  std::string out(64 * 1024 * 1024, '\0');
  uLongf size = out.size();
  REQUIRE(uncompress(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(packed.data()),
                     packed.size()) == Z_OK);
  out.resize(size);
  return out;
}

// The JSON in the page's element of this id.
Json element(const std::string& html, const std::string& id) {
  const std::string open = "<script type=\"text/plain\" id=\"" + id + "\">";
  const std::size_t begin = html.find(open);
  REQUIRE(begin != std::string::npos);
  const std::size_t text = begin + open.size();
  return Json::parse(inflated(base64_decoded(html.substr(text, html.find('<', text) - text))));
}

struct Case {
  ModelGraph model;
  ClusterSpec cluster;
  ShardingPlan plan;
  Costs costs;
  Programs programs;
  Prediction prediction;
  Demands demands;

  Case(const char* name, std::int64_t micro_batches, std::int64_t replicate)
      : model(load_model(name, 512)),
        cluster(load_cluster("dgx-h100", 8)),
        plan(plan_with(model, micro_batches, replicate)),
        costs(default_costs(cluster)),
        programs(resolve(model, plan, find_implementation("torchtitan", false, ""), cluster)),
        prediction(predict(programs, costs)),
        demands(demands_of(program().steady_step, program(),
                           {model, plan, find_implementation("torchtitan", false, ""), cluster, costs})) {}
  static ShardingPlan plan_with(const ModelGraph& model, std::int64_t micro_batches, std::int64_t replicate) {
    ShardingPlan plan = naive_plan(model, PlanOptions{.ranks = 8, .seq_len = 512, .micro_batches = {1}});
    plan.micro_batches.assign(static_cast<std::size_t>(micro_batches), 1);
    if (replicate > 1) plan.mesh = {{"replicate", replicate}, {"shard", 8 / replicate}};
    return plan;
  }
  [[nodiscard]] const Program& program() { return programs.of(0); }
  [[nodiscard]] StepPicture picture() { return {program(), plan, model, prediction.timeline, demands, nullptr}; }
};

std::vector<std::int64_t> summed(const Json& deltas) {
  std::vector<std::int64_t> values = deltas;
  std::partial_sum(values.begin(), values.end(), values.begin());
  return values;
}

}  // namespace

TEST_CASE("the columns of a step are its operations, their times, waits and critical path") {
  for (const auto& [micro_batches, replicate] : {std::pair{1, 1}, std::pair{3, 2}}) {
    CAPTURE(micro_batches);
    Case c("tiny-llama", micro_batches, replicate);
    const Step& step = c.program().steady_step;
    const Json columns = Json::parse(report_step("predicted", c.picture()).columns);
    const std::vector<std::int64_t> start = summed(columns["start_ns_d"]), issued = summed(columns["issued_ns_d"]);
    REQUIRE(start.size() == step.ops.size());
    std::size_t wait = 0;
    for (std::size_t i = 0; i < step.ops.size(); ++i) {
      const Span& span = c.prediction.timeline.spans[i];
      CHECK(std::abs(static_cast<double>(start[i]) - span.start * 1e9) <= 0.5);
      CHECK(std::abs(static_cast<double>(start[i] + columns["duration_ns"][i].get<std::int64_t>()) - span.end * 1e9) <=
            0.5);
      CHECK(std::abs(static_cast<double>(issued[i]) - c.prediction.timeline.issued[i] * 1e9) <= 0.5);
      const std::string label = columns["label_text"][columns["label"][i].get<std::size_t>()];
      CHECK(label + " mb " + std::to_string(columns["micro_batch"][i].get<int>()) ==
            describe(step.ops[i], c.program(), c.plan, c.model));
      std::vector<std::int32_t> waits;
      for (std::size_t k = 0; k < columns["waits"][i].get<std::size_t>(); ++k, ++wait)
        waits.push_back(static_cast<std::int32_t>(i) - columns["waits_back"][wait].get<std::int32_t>());
      std::vector<std::int32_t> expected;
      for (const std::int32_t w : step.waits_of(step.ops[i]))
        if (w >= 0) expected.push_back(w);
      CHECK(waits == expected);
      CHECK(columns["demand_flops"][columns["demand"][i].get<std::size_t>()] == c.demands[i].flops.count());
    }
    const std::vector<std::int64_t> chain = summed(columns["critical_d"]);
    const std::vector<std::int32_t> expected = critical_chain(step, c.prediction.timeline);
    CHECK(std::vector<std::int32_t>(chain.begin(), chain.end()) == expected);
  }
}

TEST_CASE("exposed spans sum to the exposed communication of the prediction") {
  for (const auto& [micro_batches, replicate] : {std::pair{1, 1}, std::pair{3, 2}}) {
    Case c("tiny-llama", micro_batches, replicate);
    Breakdown sums;
    double before = -1e9;
    for (const ExposedSpan& e : exposed_spans(c.program().steady_step, c.prediction.timeline)) {
      CHECK(e.span.start >= before);
      before = e.span.start;
      sums.*e.part += Seconds(e.span.end - e.span.start);
    }
    CHECK(exposed_communication(sums).count() > 0);
    for (const BreakdownPart& part : kBreakdownParts)
      if (is_communication(part))
        CHECK((sums.*part.member).count() == doctest::Approx((c.prediction.where.*part.member).count()));
  }
}

TEST_CASE("stacked memory sums to the memory of the prediction at every operation") {
  for (const auto& [micro_batches, replicate] : {std::pair{1, 1}, std::pair{3, 2}}) {
    Case c("tiny-llama", micro_batches, replicate);
    const Json columns = Json::parse(report_step("predicted", c.picture()).columns);
    const MemoryTimeline& memory = c.prediction.memory.steady_step;
    const std::vector<std::int64_t> moments = summed(columns["memory_moment_d"]);
    std::vector<std::int64_t> stack = columns["memory_start_bytes"];
    CHECK(std::accumulate(stack.begin(), stack.end(), std::int64_t{0}) == memory.start);
    std::size_t k = 0;
    for (std::size_t i = 0; i < memory.points.size(); ++i) {
      for (const auto& [moment, expected] :
           {std::pair{2 * i, memory.points[i].at}, std::pair{2 * i + 1, memory.points[i].after}}) {
        for (; k < moments.size() && moments[k] == static_cast<std::int64_t>(moment); ++k)
          stack[columns["memory_part"][k].get<std::size_t>()] += columns["memory_bytes"][k].get<std::int64_t>();
        CHECK(std::accumulate(stack.begin(), stack.end(), std::int64_t{0}) == expected);
      }
    }
    CHECK(k == moments.size());
  }
}

TEST_CASE("a step of records alone has the operations, times and memory of the step that they are of") {
  for (const auto& [micro_batches, replicate] : {std::pair{1, 1}, std::pair{3, 2}}) {
    Case c("tiny-llama", micro_batches, replicate);
    const Prediction& p = c.prediction;
    const Json whole = Json::parse(report_step("predicted", c.picture()).columns);
    const Json alone = Json::parse(
        report_step("predicted", RecordedStep{p.order, p.issued, p.timeline, p.memory.steady_step, nullptr}).columns);
    for (const char* key : {"step_ns", "start_ns_d", "duration_ns", "issued_ns_d", "lanes", "kinds"})
      CHECK_MESSAGE(alone[key] == whole[key], key);
    const std::size_t host = whole["lanes"].size() - 1;
    for (std::size_t i = 0; i < whole["label"].size(); ++i) {
      const auto a = alone["label"][i].get<std::size_t>(), w = whole["label"][i].get<std::size_t>();
      CHECK(alone["label_lane"][a] == whole["label_lane"][w]);
      CHECK(alone["label_kind"][a] == whole["label_kind"][w]);
      if (whole["label_lane"][w] == host) continue;
      CHECK(alone["label_text"][a] == whole["label_text"][w]);
      CHECK(alone["micro_batch"][i] == whole["micro_batch"][i]);
    }
    std::int64_t total = alone["memory_start_bytes"][0];
    const std::vector<std::int64_t> moments = summed(alone["memory_moment_d"]);
    std::size_t k = 0;
    for (std::size_t i = 0; i < p.memory.steady_step.points.size(); ++i)
      for (const auto& [moment, expected] : {std::pair{2 * i, p.memory.steady_step.points[i].at},
                                             std::pair{2 * i + 1, p.memory.steady_step.points[i].after}}) {
        for (; k < moments.size() && moments[k] == static_cast<std::int64_t>(moment); ++k)
          total += alone["memory_bytes"][k].get<std::int64_t>();
        CHECK(total == expected);
      }
  }
}

TEST_CASE("modules sum to the model, and name the units of the plan") {
  Case c("tiny-llama", 1, 1);
  c.plan.checkpointed = {c.plan.units.front().modules.front()};
  const Json modules = Json::parse(report_modules(c.picture()));
  REQUIRE(modules.size() == c.model.modules.size());
  CHECK(modules[0]["parameters"] == c.model.parameter_count());
  std::size_t units = 0, recomputed = 0;
  for (std::size_t m = 0; m < modules.size(); ++m) {
    CHECK(modules[m]["name"] == c.model.modules[m].name);
    units += modules[m].contains("unit");
    recomputed += modules[m].contains("recomputed");
    double inside = 0;  // of the children: never more than of the module
    for (std::size_t k = 0; k < modules.size(); ++k)
      if (c.model.modules[k].parent == static_cast<std::int32_t>(m)) inside += modules[k]["backward_s"].get<double>();
    CHECK(inside <= modules[m]["backward_s"].get<double>() * (1 + 1e-9));
  }
  CHECK(units == c.plan.units.size());
  CHECK(recomputed == 1);
}

TEST_CASE("the units' bytes at the peak and seconds sum to those of the step") {
  Case c("tiny-llama", 2, 1);
  const Json units = Json::parse(report_units(c.picture()));
  REQUIRE(units.size() == c.plan.units.size() + 1);
  std::int64_t bytes = 0;
  double seconds = 0, expected = 0;
  for (const Json& unit : units) {
    bytes += unit["peak_bytes"].get<std::int64_t>();
    for (const char* key : {"compute_s", "all_gather_s", "reduce_scatter_s", "all_reduce_s"})
      seconds += unit[key].get<double>();
  }
  for (const ActionTime& row : c.prediction.by_action) expected += row.seconds;
  CHECK(bytes == c.prediction.memory.steady_step.peak());
  CHECK(seconds == doctest::Approx(expected));
}

TEST_CASE("a page holds its documents, asks for nothing, and reads no text as markup") {
  Case c("tiny-llama", 1, 1);
  const std::string evil = "</script><img src=x onerror=alert(1)>&\"'";
  ReportPage page;
  page.command = "simulate", page.title = evil, page.verdict = "Fits: " + evil, page.command_line = evil;
  page.details = {evil};
  page.answer = to_json_text(c.prediction);
  page.documents = {{"units", "[]"}};
  page.steps = {report_step(evil, c.picture())};
  const std::string html = report_html(page);
  CHECK(html.find("<img") == std::string::npos);
  CHECK(html.find("</script><") == std::string::npos);
  for (const char* outside : {"src=\"", "href=\"", "http://", "https://", "<!-- data -->", "@import", "url("}) {
    std::size_t found = 0, allowed = 0;
    for (std::size_t i = html.find(outside); i != std::string::npos; i = html.find(outside, i + 1)) {
      ++found;
      allowed += html.compare(i, 11, "href=\"data:") == 0;
      allowed += html.compare(i, 26, "http://www.w3.org/2000/svg") == 0;  // a name, no address
    }
    CHECK_MESSAGE(found == allowed, outside);
  }
  const Json report = element(html, "report");
  CHECK(report["title"] == evil);
  CHECK(report["command_line"] == evil);
  CHECK(report["answer"] == Json::parse(to_json_text(c.prediction)));
  CHECK(report["steps"][0] == evil);
  CHECK(element(html, "step-0") == Json::parse(page.steps[0].columns));
  CHECK(report_html(page) == html);  // the same answer gives the same bytes
}
