// Commands that an answer tells the reader to type.
#pragma once

#include <string>

namespace fsdp::cli {

// A word as a shell reads it back: quoted where it has to be.
[[nodiscard]] std::string shell_word(const std::string&);

}  // namespace fsdp::cli
