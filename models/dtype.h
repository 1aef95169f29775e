// Element types, by the names people use for them.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/input/error.h"

namespace fsdp {

// fp8: what products in 8 bits read (planner/plan.h, Float8Plan); no plan, file or flag names it.
enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, f8 };
inline constexpr int kDTypes = static_cast<int>(DType::f8) + 1;

[[nodiscard]] constexpr std::int64_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::f8: return 1;
  }
  return 0;
}

[[nodiscard]] std::string_view name(DType);  // "fp64" "fp32" "bf16" "fp16" "int64" "fp8"
[[nodiscard]] DType parse_dtype(std::string_view text, const Origin& where);  // throws InputError with the list

}  // namespace fsdp
