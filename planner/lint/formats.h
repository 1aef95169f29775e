// One reader per framework. Private to planner/lint.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "planner/lint/flat.h"
#include "planner/lint/read_config.h"

namespace fsdp {

[[nodiscard]] ReadConfig read_accelerate(FlatConfig, const ModelGraph&);
[[nodiscard]] ReadConfig read_automodel(FlatConfig, const ModelGraph&);
[[nodiscard]] ReadConfig read_distributed_config(FlatConfig, const ModelGraph&);  // transformers' Python
[[nodiscard]] ReadConfig read_torchtitan(FlatConfig, const ModelGraph&, bool is_toml = false);
[[nodiscard]] ReadConfig read_fsdp_plan(std::string_view json, std::string_view where, const ModelGraph&);

inline void set(ReadConfig& config, std::string name, std::string value, std::string key = "") {
  config.settings.push_back({std::move(name), std::move(value), std::move(key)});
}
[[nodiscard]] inline std::string switch_text(bool on) { return on ? "true" : "false"; }

}  // namespace fsdp
