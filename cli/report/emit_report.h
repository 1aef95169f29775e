// What is said of an emitted file that is not quite its plan.
#pragma once

#include <string>

#include "models/graph.h"
#include "planner/emit.h"

namespace fsdp::cli {

// "accelerate does not hold seed: ...", "accelerate cannot express reduce_dtype: ...": a line each, what follows, and
// the flags of `plan` that ask for what the file can hold. `context`: as the file was emitted.
[[nodiscard]] std::string inexact_lines(const std::string& format, const Emitted&, const ShardingPlan& planned,
                                        const ModelGraph&, const EmitContext&);

}  // namespace fsdp::cli
