// Conversion between element types. Each element is rounded once, so the bits do not depend on how this is compiled.
#pragma once

#include <cstdint>
#include <type_traits>

#include "executor/arithmetic/element.h"

namespace fsdp {

// to[i] (+)= from[i]. fp64 to fp64 stays fp64; anything else passes through the wider of the two arithmetic types.
template <class From, class To>
void convert_elements(const From* from, To* to, std::int64_t n, bool accumulate) {
  using Wide = std::conditional_t<std::is_same_v<From, double> || std::is_same_v<To, double>, double, float>;
  for (std::int64_t i = 0; i < n; ++i) {
    const Wide x = static_cast<Wide>(load(from[i]));
    store(to[i], static_cast<Math<To>>(accumulate ? static_cast<Wide>(load(to[i])) + x : x));
  }
}

}  // namespace fsdp
