#include "models/input/shown.h"

#include <algorithm>

namespace fsdp {
namespace {

// The bytes of what begins there if a terminal acts on it in place of showing it: C1 controls (U+0080 to U+009F), marks
// and overrides of direction (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069). 0: it does not.
std::size_t acted_on(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  if (byte(0) == 0xc2 && byte(1) >= 0x80 && byte(1) <= 0x9f) return 2;
  if (byte(0) == 0xd8 && byte(1) == 0x9c) return 2;
  if (byte(0) != 0xe2) return 0;
  const bool turned = byte(1) == 0x80 && (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xaa && byte(2) <= 0xae));
  const bool isolated = byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;
  return turned || isolated ? 3 : 0;
}

}  // namespace

std::string shown(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t bytes = acted_on(text.substr(i));
    const bool control = (static_cast<unsigned char>(text[i]) < 0x20 && text[i] != '\n') || text[i] == 0x7f;
    out += bytes > 0 || control ? '?' : text[i];
    i += std::max<std::size_t>(1, bytes);
  }
  return out;
}

}  // namespace fsdp
