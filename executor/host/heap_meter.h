// The heap instrument: how much heap the calling thread held at once between begin and end, beyond what it held at begin.
// It watches malloc and everything that ends there (new, containers, libraries). The build picks heap_meter_glibc.cpp, or
// heap_meter_sanitizer.cpp where a sanitizer owns malloc.
#pragma once

#include <cstdint>

namespace fsdp::host {

void heap_meter_begin();
[[nodiscard]] std::int64_t heap_meter_end();  // bytes

}  // namespace fsdp::host
