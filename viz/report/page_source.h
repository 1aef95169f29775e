// The files of viz/page/, compiled into the program (viz/embed.cmake).
#pragma once

#include <span>

#include "models/input/embedded.h"

namespace fsdp {

[[nodiscard]] std::span<const EmbeddedFile> page_source();  // "report.html", ...; sorted

}  // namespace fsdp
