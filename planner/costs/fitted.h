// Constants of the cost model that were fitted to runs, and where they hold.
//
//   const FittedCosts fitted = parse_fitted_costs(text, "costs.json");             // "fsdp-plan/fitted-costs/1"
//   Costs c = costs_for(fitted, cluster);                                          // of the cluster's GPU, pooled
//   Costs c = costs_for(fitted, cluster, "pytorch/torchtitan", "2024");            // of one platform
//
// A platform is a source of measurements, a GPU and a generation of software. A constant that the platform does not
// state is that of its GPU, pooled over platforms; one that the GPU does not state is the datasheet's (default_costs).
// Of a platform that is not known the fabric is the datasheet's: other clusters' say nothing about it. There is no
// constant of a model, a size or a row.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/cluster.h"
#include "planner/costs.h"

namespace fsdp {

// One constant that a fit may move: one line of a table.
struct CostParameter {
  std::string_view name;  // the key of the member in "fsdp-plan/costs/1"
  std::variant<double Costs::*, Seconds Costs::*> member;
  double lower, upper;  // physical range
  // Expected distance (log) of a GPU's value from the datasheet's, and of a platform's from its GPU's.
  double pool_width, platform_width;
  std::string_view why;                            // the source of range and widths
  void (*follow)(Costs&, double ratio) = nullptr;  // moves other constants in the same ratio; null: none
  bool of_cluster = false;                         // not of a GPU: others of that GPU do not share it
};
[[nodiscard]] std::span<const CostParameter> cost_parameters();
[[nodiscard]] const CostParameter* find_parameter(std::string_view name);  // nullptr: there is none
[[nodiscard]] double value_of(const Costs&, const CostParameter&);
void set_value(Costs&, const CostParameter&, double);

struct FittedConstant {
  std::string name;           // of a CostParameter
  double value = 0;           // in its unit
  double standard_error = 0;  // in its unit
  std::int64_t rows = 0;      // whose predictions depend on it
  friend bool operator==(const FittedConstant&, const FittedConstant&) = default;
};
struct FittedPlatform {
  // Source and generation are empty when pooled over the GPU; the generation also if it is not known.
  std::string gpu, source, software_generation;
  std::int64_t rows = 0;
  std::vector<FittedConstant> constants;
  friend bool operator==(const FittedPlatform&, const FittedPlatform&) = default;
};
struct FittedCosts {
  std::string source;  // "calibrate --runs runs.csv, 540 rows"
  std::vector<FittedPlatform> gpus, platforms;
  friend bool operator==(const FittedCosts&, const FittedCosts&) = default;
};

[[nodiscard]] Costs costs_for(const FittedCosts&, const ClusterSpec&);
[[nodiscard]] Costs pooled_costs(const FittedCosts&, const ClusterSpec&);  // with the fabric of the GPU's platforms
[[nodiscard]] Costs costs_for(const FittedCosts&, const ClusterSpec&, std::string_view source,
                              std::string_view software_generation);

[[nodiscard]] std::string to_json_text(const FittedCosts&);  // parse_fitted_costs(to_json_text(x), f) == x
[[nodiscard]] FittedCosts parse_fitted_costs(std::string_view json_text, std::string_view where);

// A file given with --costs: of one platform, or fitted. Throws InputError naming what was found and what is expected.
[[nodiscard]] std::variant<Costs, FittedCosts> parse_any_costs(std::string_view json_text, std::string_view where);

}  // namespace fsdp
