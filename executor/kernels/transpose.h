#pragma once

#include <cstdint>

namespace fsdp {

// How an operand of a matmul is stored; yes: as its transpose.
enum class Transpose : std::uint8_t { no, yes };

}  // namespace fsdp
