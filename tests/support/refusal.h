// The message of a refused input, and whether it says what it should.
#pragma once

#include <string>

#include "models/input/error.h"

namespace fsdp::testing {

// What the InputError says that `call` throws; empty if it throws none.
template <class Call>
std::string refusal(Call call) {
  try {
    (void)call();
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

inline bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace fsdp::testing
