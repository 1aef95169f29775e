// What the host backends run on, in words.
#pragma once

#include <string>

namespace fsdp::host {

[[nodiscard]] std::string processor_name();

}  // namespace fsdp::host
