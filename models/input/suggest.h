// "Did you mean": the names nearest to one that was not found.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// At most `at_most` of `names`, nearest first by edit distance (Levenshtein; capital letters are as small ones), only
// those plausibly meant.
[[nodiscard]] std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& names,
                                               std::size_t at_most = 3);

// For a remedy: `did you mean "llama3-8b" or "llama2-7b"?`, or `use one of: a, b, c` when nothing is near.
[[nodiscard]] std::string suggestion(std::string_view name, const std::vector<std::string>& names);

[[nodiscard]] std::string join(const std::vector<std::string>& names, std::string_view separator = ", ");

// Input that is shown in an error: as shown.h does, on one line and cut at 80 characters.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace fsdp
