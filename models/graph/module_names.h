// Names of modules, as paths with dots between their parts.
#pragma once

#include <string_view>

namespace fsdp {

// Is `inner` a module inside of `outer`, and not `outer` itself?
[[nodiscard]] inline bool inside(std::string_view inner, std::string_view outer) {
  return inner.size() > outer.size() && inner.starts_with(outer) && inner[outer.size()] == '.';
}

}  // namespace fsdp
