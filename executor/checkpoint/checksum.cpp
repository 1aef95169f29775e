#include "executor/checkpoint/checksum.h"

#include <array>

namespace fsdp {
namespace {

// Eight bytes at a time: table[k][b] is the effect of byte b followed by k zero bytes.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t c = b;
    for (int i = 0; i < 8; ++i) c = (c & 1U) != 0 ? (c >> 1U) ^ 0x82F63B78U : c >> 1U;
    t[0][b] = c;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b) t[k][b] = (t[k - 1][b] >> 8U) ^ t[0][t[k - 1][b] & 255U];
  return t;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32c_table(std::span<const std::byte> bytes) {
  std::uint32_t c = ~std::uint32_t{0};
  std::size_t i = 0;
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(bytes[at]); };
  for (; i + 8 <= bytes.size(); i += 8) {
    c ^= byte(i) | byte(i + 1) << 8U | byte(i + 2) << 16U | byte(i + 3) << 24U;
    c = kTables[7][c & 255U] ^ kTables[6][c >> 8U & 255U] ^ kTables[5][c >> 16U & 255U] ^ kTables[4][c >> 24U] ^
        kTables[3][byte(i + 4)] ^ kTables[2][byte(i + 5)] ^ kTables[1][byte(i + 6)] ^ kTables[0][byte(i + 7)];
  }
  for (; i < bytes.size(); ++i) c = kTables[0][(c ^ byte(i)) & 255U] ^ (c >> 8U);
  return ~c;
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  return checksum::has_instruction() ? checksum::with_instruction(bytes) : crc32c_table(bytes);
}

}  // namespace fsdp
