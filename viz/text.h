// Text that stands between the tags of XML and HTML, or in an attribute.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

// & < > " as references; what XML 1.0 cannot hold becomes a question mark, and so do bytes that are not UTF-8.
[[nodiscard]] std::string markup_text(std::string_view);

}  // namespace fsdp
