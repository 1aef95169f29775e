// Answers of the program that are JSON.
#pragma once

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace fsdp::testing {

inline nlohmann::json parsed(const Answer& answer) {
  nlohmann::json document = nlohmann::json::parse(answer.out, nullptr, false);
  REQUIRE_MESSAGE(document.is_object(), answer.err);
  return document;
}

}  // namespace fsdp::testing
