// The text of --help: usage, flags by group, words, examples, wrapped to the terminal.
#pragma once

#include <string>

#include "cli/terminal/command_text.h"

namespace fsdp::cli {

// `path`: the program and the command's name, "fsdp-plan show model". `width`: columns.
[[nodiscard]] std::string help_text(const CommandText&, const std::string& path, int width);

// A paragraph, broken at spaces; every line but the first begins with `indent` spaces.
[[nodiscard]] std::string wrapped(const std::string& text, int width, int indent);

// The words that flags and answers are made of, one line each: "fsdp-plan help words".
[[nodiscard]] std::string words_text(int width);

}  // namespace fsdp::cli
