// Text of strangers on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

// Text that a terminal shows as it is: control characters but the end of a line become '?', and so do the characters of
// Unicode that turn the direction of what follows, and bytes that are no UTF-8.
[[nodiscard]] std::string shown(std::string_view text);

}  // namespace fsdp
