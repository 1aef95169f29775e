// What `plan` says of the implementation's compiled variant, unless --compile or --no-compile decided about it: the
// plan of the answer compiled, or one near it that is better there.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/options.h"
#include "cli/questions/found_plan.h"
#include "cli/questions/search_how.h"
#include "planner/search/nearby.h"

namespace fsdp::cli {

struct CompiledAnswer {
  std::string implementation;  // "torchtitan"
  Nearby found;                // has a best
  Bytes memory_limit;
  std::string not_by = {};  // a target whose file compiles nothing
};
// Nothing on CPU ranks, where nothing is compiled, for implementations without a compiled variant, and for one that is
// compiled already.
[[nodiscard]] std::optional<CompiledAnswer> compiled_answer(const Flags&, const Setup&, const SearchHow&,
                                                            const Candidate& chosen, const Stop&);
// "Compiled (--compile): step 1.93 s, 67,900 tokens/s (7.7 % more), peak 74.9 GiB, fits: the same plan." A line.
[[nodiscard]] std::string compiled_line(const CompiledAnswer&, const Candidate& chosen);
[[nodiscard]] nlohmann::ordered_json compiled_json(const CompiledAnswer&);

}  // namespace fsdp::cli
