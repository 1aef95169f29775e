// How the rules of a plan refuse one: an InputError that names the plan and the field. For planner/plan/ alone.
#pragma once

#include <string>
#include <string_view>

#include "models/input/error.h"

namespace fsdp {

inline constexpr const char* kShowModel = "run `fsdp-plan show model NAME` for the names";

// The field `name` of the plan that came from `where`.
[[nodiscard]] inline Origin field(std::string_view where, const std::string& name) {
  return {std::string(where), name};
}

[[noreturn]] inline void refuse(std::string_view where, const std::string& name, const std::string& problem,
                                const std::string& remedy) {
  throw InputError(field(where, name), problem, remedy);
}

}  // namespace fsdp
