// Text that stands between the tags of XML and HTML, or in an attribute.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// & < > " as references; what XML 1.0 cannot hold becomes a question mark, and so do bytes that are not UTF-8.
[[nodiscard]] std::string markup_text(std::string_view);

// The text as lines of at most `most` characters, broken at blanks; a longer word is broken anywhere. At least one
// line.
[[nodiscard]] std::vector<std::string> text_lines(std::string_view, std::size_t most);

}  // namespace fsdp
