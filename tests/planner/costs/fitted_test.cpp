// Fitted costs: which constants hold where, and the document.
#include "planner/costs/fitted.h"

#include <doctest/doctest.h>

#include <string>

#include "models/catalog.h"
#include "models/input/error.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

FittedCosts example() {
  FittedCosts f;
  f.source = "calibrate --runs r.csv, \"quoted\" \xc3\xbc";
  f.gpus = {{"h100-sxm-80", "", "", 30, {{"matmul_efficiency", 0.1 + 0.5, 0.01, 30}, {"host_scale", 1.5, 0.1, 12}}}};
  f.platforms = {{"h100-sxm-80", "someone", "", 20, {{"matmul_efficiency", 0.62, 0.02, 20}}},
                 {"h100-sxm-80", "someone", "torch-2.1", 10, {}},
                 {"a100-sxm-80", "someone", "torch-2.1", 7, {{"memory_efficiency", 0.7, 0.03, 7}}}};
  return f;
}

}  // namespace

TEST_CASE(
    "every parameter: its default lies in its range, it is set and read back, and what follows it moves in the same "
    "ratio") {
  const Costs costs = default_costs(load_cluster("dgx-h100", 8));
  for (const CostParameter& p : cost_parameters()) {
    CAPTURE(p.name);
    CHECK(find_parameter(p.name) == &p);
    const double before = value_of(costs, p);
    CHECK(before >= p.lower);
    CHECK(before <= p.upper);
    CHECK(p.lower > 0);
    CHECK(p.pool_width > 0);
    CHECK(p.platform_width > 0);
    CHECK_FALSE(p.why.empty());
    Costs changed = costs;
    set_value(changed, p, p.upper);
    CHECK(value_of(changed, p) == p.upper);
    CHECK_FALSE(changed == costs);
    const std::string key = "\"" + std::string(p.name);
    CHECK(to_json_text(costs).find(key) != std::string::npos);
  }
  CHECK(find_parameter("nothing") == nullptr);
  Costs changed = costs;
  set_value(changed, *find_parameter("attention_forward_efficiency"), costs.attention_forward_efficiency * 0.5);
  CHECK(changed.attention_backward_efficiency == relative(costs.attention_backward_efficiency * 0.5));
  set_value(changed, *find_parameter("memory_efficiency"), costs.memory_efficiency * 0.8);
  CHECK(changed.copy.byte_rate.count() == relative(costs.copy.byte_rate.count() * 0.8));
  CHECK(changed.optimizer.byte_rate.count() == relative(costs.optimizer.byte_rate.count() * 0.8));
}

TEST_CASE("a platform's own constant, else its GPU's, else the datasheet's") {
  const FittedCosts f = example();
  const ClusterSpec h100 = load_cluster("dgx-h100", 8), a100 = load_cluster("dgx-a100-80", 8),
                    h200 = load_cluster("dgx-h200", 8);
  const Costs none = default_costs(h100);
  const Costs own = costs_for(f, h100, "someone", "");
  CHECK(own.matmul_efficiency == 0.62);
  CHECK(own.host_scale == 1.5);                            // pooled
  CHECK(own.memory_efficiency == none.memory_efficiency);  // the datasheet's
  CHECK(own.source.find("someone") != std::string::npos);
  CHECK(own.platform == "h100-sxm-80");
  CHECK(costs_for(f, h100, "someone", "torch-2.1").matmul_efficiency == 0.6);
  CHECK(costs_for(f, h100, "nobody", "torch-2.1").matmul_efficiency == 0.6);
  CHECK(costs_for(f, h100) == costs_for(f, h100, "nobody", ""));
  // A fabric is a cluster's: sources that the fit knows share what was pooled, others do not.
  FittedCosts of_fabrics = f;
  of_fabrics.gpus[0].constants.push_back({"fabric_efficiency", 0.5, 0.1, 9});
  of_fabrics.gpus[0].constants.push_back({"fabric_efficiency_at_scale", 0.4, 0.1, 9});
  CHECK(costs_for(of_fabrics, h100) == costs_for(f, h100));
  CHECK(costs_for(of_fabrics, h100, "nobody", "") == costs_for(f, h100));
  CHECK(costs_for(of_fabrics, h100, "someone", "").fabric_efficiency == 0.5);
  CHECK(costs_for(of_fabrics, h100, "someone", "of which no run is known").fabric_efficiency_at_scale == 0.4);
  CHECK(costs_for(f, a100) == default_costs(a100));  // no pool of that GPU
  CHECK(costs_for(f, a100, "someone", "torch-2.1").memory_efficiency == 0.7);
  CHECK(costs_for(f, h200, "someone", "") == default_costs(h200));
  CHECK_THROWS_AS((void)costs_for(f, load_cluster("host", 2)), InputError);
}

TEST_CASE("large jobs have a fabric constant of their own; in files of before they follow that of small ones") {
  FittedCosts f = example();
  const ClusterSpec h100 = load_cluster("dgx-h100", 8);
  const Costs none = default_costs(h100);
  f.platforms[0].constants.push_back({"fabric_efficiency", none.fabric_efficiency / 2, 0.1, 5});
  const Costs before = costs_for(f, h100, "someone", "");
  CHECK(before.fabric_efficiency == none.fabric_efficiency / 2);
  CHECK(before.fabric_efficiency_at_scale == relative(none.fabric_efficiency_at_scale / 2));
  CHECK(costs_for(f, h100, "nobody", "") == costs_for(f, h100));
  f.gpus[0].constants.push_back({"fabric_efficiency_at_scale", 0.8, 0.1, 5});
  const Costs now = costs_for(f, h100, "someone", "");
  CHECK(now.fabric_efficiency == none.fabric_efficiency / 2);
  CHECK(now.fabric_efficiency_at_scale == 0.8);
  f.platforms[0].constants.push_back({"fabric_efficiency_at_scale", 0.6, 0.1, 5});
  CHECK(costs_for(f, h100, "someone", "").fabric_efficiency_at_scale == 0.6);
  CHECK(parse_fitted_costs(to_json_text(f), "costs.json") == f);
}

TEST_CASE("fitted costs read back equal; cut or changed files are refused") {
  const FittedCosts f = example();
  const std::string text = to_json_text(f);
  CHECK(parse_fitted_costs(text, "costs.json") == f);
  CHECK(std::get<FittedCosts>(parse_any_costs(text, "costs.json")) == f);
  const Costs one = default_costs(load_cluster("dgx-h100", 8));
  CHECK(std::get<Costs>(parse_any_costs(to_json_text(one), "costs.json")) == one);
  for (std::size_t cut = 0; cut + 2 < text.size(); cut += 3)
    CHECK_THROWS_AS((void)parse_any_costs(text.substr(0, cut), "costs.json"), InputError);
  const auto refused = [&](const std::string& from, const std::string& to, const char* words) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    changed.replace(at, from.size(), to);
    CHECK_THROWS_WITH_AS((void)parse_any_costs(changed, "costs.json"), doctest::Contains(words), InputError);
  };
  refused("fitted-costs/1", "fitted-costs/2", "schema");
  refused("fitted-costs/1", "fitted\\u0007", "schema");
  refused("\"schema\"", "\"shema\"", "schema");
  refused("\"value\": 0.62", "\"value\": 0.99", "value");
  refused("\"value\": 0.62", "\"value\": -1", "value");
  refused("\"value\": 0.62", "\"value\": \"0.62\"", "value");
  refused("\"value\": 0.62", "\"value\": 1e999", "too large");
  refused("\"standard_error\": 0.02", "\"standard_error\": -0.02", "standard_error");
  refused("\"rows\": 20", "\"rows\": 20.5", "rows");
  refused("\"host_scale\"", "\"host_scala\"", "host_scale");
  refused("\"torch-2.1\"", "\"\"", "occurs twice");
  refused("\"gpus\"", "\"gpu\"", "gpus");
  refused("\"constants\": {}", "\"constants\": []", "constants");
  refused("\"constants\": {}", "\"constants\": {}, \"more\": 1", "more");
  refused("\"gpu\": \"a100-sxm-80\"", "\"gpu\": 5", "gpu");
}
