// A plan as a script or a configuration for another tool.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

struct Emitted {
  std::string text;                         // a Python script, a YAML file, a TOML file
  std::vector<std::string> cannot_express;  // what the target cannot express; also in comments at the top
};

// `format`: pytorch, accelerate or torchtitan.
[[nodiscard]] Emitted emit(std::string_view format, const ShardingPlan&, const ModelGraph&);
[[nodiscard]] std::vector<std::string> emit_formats();

}  // namespace fsdp
