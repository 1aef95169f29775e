#include "executor/data/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "executor/data/safetensors.h"
#include "models/units.h"

namespace fsdp {

std::string safetensors_header(const std::vector<HeaderTensor>& tensors,
                               const std::vector<std::pair<std::string, std::string>>& metadata) {
  using Json = nlohmann::ordered_json;
  std::string text = "{";
  if (!metadata.empty()) {
    Json texts;
    for (const auto& [key, value] : metadata) texts[key] = value;
    text += "\"__metadata__\":" + texts.dump();
  }
  std::int64_t at = 0;
  for (const HeaderTensor& t : tensors) {
    std::int64_t bytes = size_of(t.dtype);
    for (const std::int64_t d : t.shape) bytes = checked_mul(bytes, d, t.name);
    const std::int64_t end = checked_add(at, bytes, t.name);
    const Json entry = {{"dtype", safetensors_name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {at, end}}};
    text += (text.size() > 1 ? "," : "") + Json(t.name).dump() + ":" + entry.dump();
    at = end;
  }
  text += "}";
  constexpr std::size_t length_bytes = 8, alignment = 64;
  text.append((alignment - (length_bytes + text.size()) % alignment) % alignment, ' ');
  std::string length;
  for (std::size_t i = 0; i < length_bytes; ++i) length.push_back(static_cast<char>(text.size() >> (8 * i) & 255U));
  return length + text;
}

}  // namespace fsdp
