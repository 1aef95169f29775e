// What shells complete a command line of fsdp-plan with. The scripts of the shells only ask the program.
#pragma once

#include <string>
#include <vector>

#include "cli/terminal/command_text.h"

namespace fsdp::cli {

// The word that the scripts call the program with, before the words of the line.
inline constexpr const char* kCompleteWord = "__complete";

// What the last of `words` (behind the program's name) could become; empty: a file, or nothing.
[[nodiscard]] std::vector<std::string> completions(const CommandText& program, const std::vector<std::string>& words);

// The script of a shell; empty for a shell that has none.
[[nodiscard]] std::string completion_script(const std::string& shell);
[[nodiscard]] std::vector<std::string> completion_shells();

}  // namespace fsdp::cli
