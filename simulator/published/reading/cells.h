// Cells of a published row as words: what a cell says, and refusals that begin with the column's name.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

[[nodiscard]] std::string lower_case(std::string_view text);
// What a cell says before a remark in parentheses, in lower case: "plain" of "plain (bf16 logits)".
[[nodiscard]] std::string without_remark(std::string_view cell);
// Does the cell contain the word (which is given in lower case)?
[[nodiscard]] bool says(std::string_view cell, std::string_view word);
// Empty, "no", "none", "false", "off", "disabled", "0" or "no ...".
[[nodiscard]] bool says_no(std::string_view cell);

// "yes", "true", "on", "1", "yes ...".
[[nodiscard]] bool says_yes(std::string_view cell);

// A cell of one digit, such as of blocks that are prefetched. Throws as not_modelled does.
[[nodiscard]] int digit(std::string_view column, std::string_view cell);

// Both throw InputError.
[[noreturn]] void cannot(std::string_view column, const std::string& why);
[[noreturn]] void not_modelled(std::string_view column, std::string_view cell);

}  // namespace fsdp
