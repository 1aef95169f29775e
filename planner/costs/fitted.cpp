// Fitted costs on disk: "fsdp-plan/fitted-costs/1".
#include "planner/costs/fitted.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"

namespace fsdp {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFittedSchema = "fsdp-plan/fitted-costs/1", kOnePlatform = "fsdp-plan/costs/1";
constexpr std::int64_t kMostRows = 1'000'000'000;

Json json_of(const FittedPlatform& p, bool pooled) {
  Json j = {{"gpu", p.gpu}};
  if (!pooled) {
    j["source"] = p.source;
    j["software_generation"] = p.software_generation;
  }
  j["rows"] = p.rows;
  j["constants"] = Json::object();
  for (const FittedConstant& c : p.constants)
    j["constants"][c.name] = {{"value", c.value}, {"standard_error", c.standard_error}, {"rows", c.rows}};
  return j;
}

FittedConstant constant(JsonObject& parent, const std::string& key) {
  const CostParameter* parameter = find_parameter(key);
  if (parameter == nullptr) {
    std::vector<std::string> names;
    for (const CostParameter& p : cost_parameters()) names.emplace_back(p.name);
    parent.refuse(key, "is no constant that is fitted", suggestion(key, names));
  }
  JsonObject o = parent.object(key);
  FittedConstant c;
  c.name = key;
  c.value = o.number("value", parameter->lower, parameter->upper);
  c.standard_error = o.number("standard_error", 0, 1e12);
  c.rows = o.integer("rows", 0, kMostRows);
  o.finish();
  return c;
}

FittedPlatform platform(const JsonValue& item, bool pooled) {
  JsonObject o = item.object();
  FittedPlatform p;
  p.gpu = o.text("gpu");
  if (!pooled) {
    p.source = o.text("source");
    p.software_generation = o.text("software_generation");
  }
  p.rows = o.integer("rows", 0, kMostRows);
  JsonObject constants = o.object("constants");
  for (const CostParameter& known : cost_parameters())  // in the table's order, which is the order of writing
    if (constants.has(known.name)) p.constants.push_back(constant(constants, std::string(known.name)));
  for (const std::string& key : constants.keys())
    if (find_parameter(key) == nullptr) (void)constant(constants, key);  // refuses it
  o.finish();
  return p;
}

std::vector<FittedPlatform> platforms(JsonObject& root, std::string_view key, bool pooled) {
  std::vector<FittedPlatform> all;
  std::set<std::tuple<std::string, std::string, std::string>> seen;
  for (const JsonValue& item : root.array(key)) {
    all.push_back(platform(item, pooled));
    const FittedPlatform& p = all.back();
    if (!seen.emplace(p.gpu, p.source, p.software_generation).second)
      item.refuse(pooled ? "this GPU occurs twice" : "this platform occurs twice", "remove one");
  }
  return all;
}

// Fits of before large jobs had a constant of their own moved theirs with that of small ones.
bool large_jobs_follow(const FittedCosts& f) {
  for (const auto* part : {&f.gpus, &f.platforms})
    for (const FittedPlatform& p : *part)
      for (const FittedConstant& c : p.constants)
        if (c.name == "fabric_efficiency_at_scale") return false;
  return true;
}

void apply(Costs& costs, const FittedPlatform& p, const FittedCosts& from, bool of_cluster) {
  const double before = costs.fabric_efficiency;
  for (const FittedConstant& c : p.constants) {
    const CostParameter* const parameter = find_parameter(c.name);
    if (parameter != nullptr && (of_cluster || !parameter->of_cluster)) set_value(costs, *parameter, c.value);
  }
  if (costs.fabric_efficiency != before && before > 0 && large_jobs_follow(from))
    costs.fabric_efficiency_at_scale *= costs.fabric_efficiency / before;
}

const FittedPlatform* find(const std::vector<FittedPlatform>& all, std::string_view gpu, std::string_view source,
                           std::string_view generation) {
  for (const FittedPlatform& p : all)
    if (p.gpu == gpu && p.source == source && p.software_generation == generation) return &p;
  return nullptr;
}

Costs pooled(const FittedCosts& fitted, const ClusterSpec& cluster, bool of_cluster) {
  Costs costs = default_costs(cluster);
  if (const FittedPlatform* p = find(fitted.gpus, cluster.gpu.name, "", "")) {
    apply(costs, *p, fitted, of_cluster);
    costs.source = fitted.source + ", pooled over " + std::to_string(p->rows) + " runs on " + p->gpu +
                   (of_cluster ? "" : ", without their fabric");
  }
  return costs;
}

}  // namespace

Costs costs_for(const FittedCosts& fitted, const ClusterSpec& cluster) {
  return pooled(fitted, cluster, /*of_cluster=*/false);
}

Costs pooled_costs(const FittedCosts& fitted, const ClusterSpec& cluster) {
  return pooled(fitted, cluster, /*of_cluster=*/true);
}

Costs costs_for(const FittedCosts& fitted, const ClusterSpec& cluster, std::string_view source,
                std::string_view generation) {
  const bool known_source =  // its clusters are among those of the fabric
      std::any_of(fitted.platforms.begin(), fitted.platforms.end(),
                  [&](const FittedPlatform& p) { return p.gpu == cluster.gpu.name && p.source == source; });
  Costs costs = pooled(fitted, cluster, known_source);
  if (const FittedPlatform* own = find(fitted.platforms, cluster.gpu.name, source, generation)) {
    apply(costs, *own, fitted, /*of_cluster=*/true);
    costs.source = fitted.source + ", " + std::to_string(own->rows) + " runs on " + own->gpu + " of " + own->source;
  }
  return costs;
}

std::string to_json_text(const FittedCosts& f) {
  Json j = {{"schema", kFittedSchema}, {"source", f.source}, {"gpus", Json::array()}, {"platforms", Json::array()}};
  for (const FittedPlatform& p : f.gpus) j["gpus"].push_back(json_of(p, true));
  for (const FittedPlatform& p : f.platforms) j["platforms"].push_back(json_of(p, false));
  return j.dump(1) + "\n";
}

FittedCosts parse_fitted_costs(std::string_view json_text, std::string_view where) {
  const JsonDocument document = parse_document(json_text, where, kFittedSchema);
  JsonObject root = document.root();
  FittedCosts f;
  f.source = root.text("source");
  f.gpus = platforms(root, "gpus", true);
  f.platforms = platforms(root, "platforms", false);
  root.finish();
  return f;
}

std::variant<Costs, FittedCosts> parse_any_costs(std::string_view json_text, std::string_view where) {
  std::string schema;
  {
    const JsonDocument document = parse_document(json_text, where, "");
    JsonObject root = document.root();
    schema = root.at("schema").any_text();
    if (schema != kFittedSchema && schema != kOnePlatform)
      root.refuse(
          "schema", "is not that of costs",
          "give a file of `fsdp-plan calibrate`: " + std::string(kOnePlatform) + " or " + std::string(kFittedSchema));
  }
  if (schema == kFittedSchema) return parse_fitted_costs(json_text, where);
  return parse_costs(json_text, where);
}

}  // namespace fsdp
