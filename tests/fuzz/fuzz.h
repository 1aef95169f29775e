// What every fuzzer shares: bad input may end in an InputError and in nothing else.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "models/input/error.h"

namespace fsdp::fuzz {

template <class Body>
void refuses_politely(Body body) {
  try {
    body();
  } catch (const InputError&) {
  }
}

inline void require(bool holds, std::string_view law) {
  if (holds) return;
  std::fprintf(stderr, "law broken: %.*s\n", static_cast<int>(law.size()), law.data());
  std::abort();
}

}  // namespace fsdp::fuzz
