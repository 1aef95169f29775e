#include "models/input/shown.h"

#include <algorithm>

namespace fsdp {
namespace {

// Whether a terminal acts on the character that begins there in place of showing it: C1 controls (U+0080 to U+009F),
// marks and overrides of direction (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069).
bool acted_on(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  if (byte(0) == 0xc2 && byte(1) >= 0x80 && byte(1) <= 0x9f) return true;
  if (byte(0) == 0xd8 && byte(1) == 0x9c) return true;
  if (byte(0) != 0xe2) return false;
  const bool turned = byte(1) == 0x80 && (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xaa && byte(2) <= 0xae));
  const bool isolated = byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;
  return turned || isolated;
}

// The bytes of the character of UTF-8 that begins there. 0: none does, and a terminal that is told bytes in place of
// UTF-8 may act on the first (0x9b begins a command).
std::size_t utf8_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t bytes = lead >= 0xc2 && lead < 0xe0   ? 2
                            : (lead & 0xf0) == 0xe0       ? 3
                            : lead >= 0xf0 && lead < 0xf5 ? 4
                                                          : 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return bytes;
}

}  // namespace

std::string shown(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t bytes = utf8_bytes(text.substr(i));
    const bool control = (static_cast<unsigned char>(text[i]) < 0x20 && text[i] != '\n') || text[i] == 0x7f;
    out += bytes == 0 || control || acted_on(text.substr(i)) ? "?" : text.substr(i, bytes);
    i += std::max<std::size_t>(1, bytes);
  }
  return out;
}

}  // namespace fsdp
