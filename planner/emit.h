// A plan as something to paste into another tool.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

struct Emitted {
  std::string text;                         // a Python script, a YAML file, a TOML file
  std::vector<std::string> cannot_express;  // what the target has no word for; also written as comments at the top
};

[[nodiscard]] Emitted emit(std::string_view format, const ShardingPlan&,
                           const ModelGraph&);  // pytorch | accelerate | torchtitan
[[nodiscard]] std::vector<std::string> emit_formats();

}  // namespace fsdp
