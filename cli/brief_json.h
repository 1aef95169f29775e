// Answers as --json prints them. --json=brief: without what makes one long, which is the order of operations and the
// timelines.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/command.h"
#include "simulator/records/prediction.h"

namespace fsdp::cli {

// Two spaces deep, and a line end. Names of files need not be UTF-8, JSON must: what is not becomes U+FFFD.
[[nodiscard]] std::string json_lines(const nlohmann::ordered_json&);

// The document as --json prints it in this form. A brief one has a schema of its own ("fsdp-plan/prediction-brief/1"):
// no command reads it back.
[[nodiscard]] std::string printed(const std::string& document, JsonForm);
[[nodiscard]] std::string printed(const Prediction&, JsonForm);

}  // namespace fsdp::cli
