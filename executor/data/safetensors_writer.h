// The header of a safetensors file: 8 bytes with its length (little-endian), then a JSON object of tensors and, under
// "__metadata__", texts. Data follows at once, in the order of the tensors, without gaps.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/dtype.h"

namespace fsdp {

struct HeaderTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
};

// Length and JSON, padded with spaces so that data begins at a multiple of 64 bytes. Throws InputError for sizes beyond
// 64 bits.
[[nodiscard]] std::string safetensors_header(const std::vector<HeaderTensor>&,
                                             const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace fsdp
