#include "models/dtype.h"

#include <string>

#include "models/input/error.h"
#include "models/input/names.h"

namespace fsdp {

namespace {

constexpr std::string_view text(DType t) {
  switch (t) {
    case DType::f64: return "fp64";
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
    case DType::i64: return "int64";
    case DType::f8: return "fp8";
  }
  return {};
}
static_assert(names_all<DType>(text, kDTypes));

}  // namespace

std::string_view name(DType t) { return text(t); }

DType parse_dtype(std::string_view typed, const Origin& where) {
  for (int t = 0; t < kDTypes; ++t) {
    if (t != static_cast<int>(DType::f8) && typed == text(static_cast<DType>(t))) return static_cast<DType>(t);
  }
  throw InputError(where, "\"" + std::string(typed) + "\" is no element type", "use fp64, fp32, bf16, fp16 or int64");
}

}  // namespace fsdp
