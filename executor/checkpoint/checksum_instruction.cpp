// CRC-32C by SSE4.2's instruction, where the target has it; whether the processor does is asked at run time.
#include "executor/checkpoint/checksum.h"

#if defined(__x86_64__)
#include <nmmintrin.h>

#include <cstring>

namespace fsdp::checksum {

bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }

__attribute__((target("sse4.2"))) std::uint32_t with_instruction(std::span<const std::byte> bytes) {
  std::uint64_t c = 0xFFFFFFFFU;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= sizeof c; left -= sizeof c, at += sizeof c) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    c = _mm_crc32_u64(c, word);
  }
  auto rest = static_cast<std::uint32_t>(c);
  for (; left > 0; --left, ++at) rest = _mm_crc32_u8(rest, static_cast<unsigned char>(*at));
  return ~rest;
}

}  // namespace fsdp::checksum

#else

namespace fsdp::checksum {

bool has_instruction() { return false; }
std::uint32_t with_instruction(std::span<const std::byte> bytes) { return crc32c_table(bytes); }

}  // namespace fsdp::checksum

#endif
