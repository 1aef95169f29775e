// Private to the emitters: helpers of the formats. One file per format, and a row in emit.cpp's table.
#pragma once

#include <string>
#include <vector>

#include "planner/emit.h"

namespace fsdp {

[[nodiscard]] Emitted emit_pytorch(const ShardingPlan&, const ModelGraph&);
[[nodiscard]] Emitted emit_accelerate(const ShardingPlan&, const ModelGraph&);
[[nodiscard]] Emitted emit_torchtitan(const ShardingPlan&, const ModelGraph&);

// True if this unit reshards its parameters after forward (automatic: yes, but no for the root).
[[nodiscard]] bool reshards(const Unit&);
// The blocks of the model, in order.
[[nodiscard]] std::vector<std::string> block_names(const ModelGraph&);
// Comment lines at the top: what the file is and what its format cannot express. Every format comments with '#'.
[[nodiscard]] std::string header(const ShardingPlan&, const ModelGraph&, const std::string& what,
                                 const std::vector<std::string>& cannot_express);
[[nodiscard]] bool has_frozen_parameters(const ModelGraph&);
[[nodiscard]] std::string join(const std::vector<std::string>&, const std::string& separator);
// A number in a form that all targets read: 0.1, 1e-08, 3.0.
[[nodiscard]] std::string number(double);
[[nodiscard]] std::string norm_type_text(const ShardingPlan&);  // "3.0", "inf"
// A string literal that Python, YAML and TOML read alike.
[[nodiscard]] std::string quoted(const std::string&);

}  // namespace fsdp
