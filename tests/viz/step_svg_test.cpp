// The picture of a step: as much of a colour as there is time of its kind, memory as high as it is, names as text.
#include "viz/step_svg.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "planner/job.h"
#include "planner/plan/naive_plan.h"
#include "simulator/predict.h"
#include "viz/drawn_as.h"

using namespace fsdp;

namespace {

struct Case {
  ModelGraph model = load_model("llama3-8b", 8192);
  ClusterSpec cluster = load_cluster("dgx-h100", 8);
  ShardingPlan plan = naive_plan(model, PlanOptions{.ranks = 8, .seq_len = 8192, .micro_batches = {1, 1}});
  Programs programs{resolve(model, plan, find_implementation("torchtitan", false, ""), cluster)};
  Prediction prediction = predict(programs, default_costs(cluster));
  std::string svg(const SvgText& words = {.title = "a", .subtitle = "b"}) {
    return step_svg({programs.of(0), plan, model, prediction.timeline}, words);
  }
};

// The attribute d of every path of a class, one behind the other.
std::string paths(const std::string& svg, const std::string& of_class) {
  const std::string open = "<path class=\"" + of_class + "\" d=\"";
  std::string all;
  for (std::size_t i = svg.find(open); i != std::string::npos; i = svg.find(open, i + 1)) {
    const std::size_t begin = i + open.size();
    all += svg.substr(begin, svg.find('"', begin) - begin);
  }
  return all;
}

std::vector<double> widths(const std::string& path) {
  std::vector<double> out;
  const std::regex width("h([0-9.]+)v");
  for (std::sregex_iterator it(path.begin(), path.end(), width), end; it != end; ++it)
    out.push_back(std::stod((*it)[1]));
  return out;
}

// What a renderer would refuse: a tag that is not closed, or not the one that was opened last.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  const std::regex tag(R"(<(/?)([a-z?]+)([^<>]*?)(/?)>)");
  std::size_t reached = 0;
  for (std::sregex_iterator it(xml.begin(), xml.end(), tag), end; it != end; ++it) {
    const auto place = static_cast<std::size_t>(it->position());
    if (xml.substr(reached, place - reached).find_first_of("<>") != std::string::npos) return false;
    reached = place + static_cast<std::size_t>(it->length());
    if ((*it)[2].str().starts_with("?")) continue;
    if ((*it)[1] == "/") {
      if (open.empty() || open.back() != (*it)[2]) return false;
      open.pop_back();
    } else if ((*it)[4] != "/") {
      open.push_back((*it)[2]);
    }
  }
  return open.empty() && xml.find('<', reached) == std::string::npos;
}

}  // namespace

TEST_CASE("each kind has as much of the width as it has of the time") {
  Case c;
  const std::string svg = c.svg();
  CHECK(well_formed(svg));
  CHECK(well_formed("<a><b/></a>"));
  CHECK_FALSE(well_formed("<a><b></a>"));
  CHECK_FALSE(well_formed("<a>x < y</a>"));
  const Step& step = c.programs.of(0).steady_step;
  double high = 0, low = 0;
  std::map<DrawnAs, double> seconds;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Span& s = c.prediction.timeline.spans[i];
    high = std::max(high, s.end), low = std::min(low, s.start);
    seconds[drawn_as(step.ops[i].action, step.ops[i].host_only)] += s.end - s.start;
  }
  const double pixels = (1000 - 106 - 12) / (high - std::max(low, -0.02 * high));
  for (const DrawnAs kind : {DrawnAs::forward, DrawnAs::backward}) {
    double least = 0, most = 0;  // rectangles wider than 3 leave a gap of 0.6 behind them
    for (const double w : widths(paths(svg, "k" + std::to_string(static_cast<int>(kind)))))
      least += w, most += w > 2.4 ? w + 0.6 : w;
    CHECK(0.99 * least <= seconds[kind] * pixels);
    CHECK(1.01 * most >= seconds[kind] * pixels);
    CHECK(most < 1.3 * least);
  }
}

TEST_CASE("memory is as high as its peak") {
  Case c;
  const std::int64_t peak = c.prediction.memory.steady_step.peak();
  const std::string svg = c.svg({.title = "a", .subtitle = "b", .lines = {{"peak", Bytes(peak)}}});
  std::smatch line;
  REQUIRE(std::regex_search(svg, line, std::regex("class=\"limit\"[^>]* d=\"M[0-9]+ ([0-9.]+)h")));
  double highest = 1e9;
  const std::regex up("V([0-9.]+)");
  for (int part = 0; part < 12; ++part) {
    const std::string area = paths(svg, "m" + std::to_string(part));
    for (std::sregex_iterator it(area.begin(), area.end(), up), end; it != end; ++it)
      highest = std::min(highest, std::stod((*it)[1]));
  }
  CHECK(highest == doctest::Approx(std::stod(line[1])).epsilon(0.001));
}

TEST_CASE("names are text, nothing outside is asked for, and equal steps give equal pictures") {
  Case c;
  const std::string svg = c.svg({.title = "<script>x</script> & \"y\"", .subtitle = "<b>"});
  CHECK(well_formed(svg));
  CHECK(svg.find("<script>") == std::string::npos);
  CHECK(svg.find("&lt;script&gt;x&lt;/script&gt; &amp; &quot;y&quot;") != std::string::npos);
  for (const char* outside : {"href", "url(", "@import", "<image"}) CHECK(svg.find(outside) == std::string::npos);
  CHECK(svg.size() < 200'000);
  CHECK(c.svg() == c.svg());
}

TEST_CASE("long words above the chart are several lines, and the chart begins below them") {
  Case c;
  std::string verdict = "does not fit";
  while (verdict.size() < 400) verdict += ": 12.3 GiB more than the limit";
  const std::string svg = c.svg({.title = std::string(150, 'm'), .subtitle = verdict});
  CHECK(well_formed(svg));
  const std::regex line("<text x=\"14.0\" y=\"([0-9.]+)\"[^>]*>([^<]*)</text>");
  std::string all;
  double lowest = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), line), end; it != end; ++it) {
    const std::string words = (*it)[2];
    CHECK(words.size() <= 138);
    CHECK(std::stod((*it)[1]) > lowest + 12);
    lowest = std::stod((*it)[1]);
    if (words.front() != 'm') all += (all.empty() ? "" : " ") + words;
  }
  CHECK(all == verdict);
  std::smatch first;
  REQUIRE(std::regex_search(svg, first, std::regex("y=\"([0-9.]+)\" font-size=\"11\"")));
  CHECK(std::stod(first[1]) > lowest + 12);
}

TEST_CASE("its colours are those of the report's page") {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/../viz/page/report.css");
  const std::string css{std::istreambuf_iterator<char>(file), {}};
  const std::string svg = Case().svg();
  const char* parts[] = {"parameters", "optimizer",   "sharded-gradients",    "gathered", "gather-buffers", "gradients",
                         "reduce",     "activations", "activation-gradients", "logits",   "temporaries",    "other"};
  std::vector<std::pair<std::string, std::string>> names;
  for (std::size_t k = 0; k < std::size(kDrawnAs); ++k) names.emplace_back(kDrawnAs[k], "k" + std::to_string(k));
  for (std::size_t k = 0; k < std::size(parts); ++k)
    names.emplace_back(std::string("m-") + parts[k], "m" + std::to_string(k));
  for (const auto& [variable, of_class] : names) {
    std::smatch found;
    REQUIRE_MESSAGE(std::regex_search(css, found, std::regex("--" + variable + ": light-dark\\((#\\w+), (#\\w+)\\)")),
                    variable);
    for (int k = 1; k <= 2; ++k)
      CHECK_MESSAGE(svg.find("." + of_class + "{fill:" + found[k].str() + "}") != std::string::npos, variable);
  }
}
