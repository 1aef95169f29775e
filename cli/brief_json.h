// --json=brief: a document without what makes it long, which is the order of operations and the timelines.
#pragma once

#include <string>

#include "cli/command.h"

namespace fsdp::cli {

// The document as --json prints it in this form. A brief one has a schema of its own ("fsdp-plan/prediction-brief/1"):
// no command reads it back.
[[nodiscard]] std::string printed(const std::string& document, JsonForm);

}  // namespace fsdp::cli
