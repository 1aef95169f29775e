#include "models/dtype.h"

#include <string>

#include "models/input/error.h"

namespace fsdp {

std::string_view name(DType t) {
  switch (t) {
    case DType::f64: return "fp64";
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
    case DType::i64: return "int64";
  }
  return "?";
}

DType parse_dtype(std::string_view text, const Origin& where) {
  for (DType t : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64}) {
    if (text == name(t)) return t;
  }
  throw InputError(where, "\"" + std::string(text) + "\" is no element type", "use fp64, fp32, bf16, fp16 or int64");
}

}  // namespace fsdp
