// CRC-32C (Castagnoli; polynomial 0x1EDC6F41 reflected, initial value and final inversion 0xFFFFFFFF, as in iSCSI, RFC
// 3720): finds every error burst of up to 32 bits, and one in 4 billion others stays unseen per block. It detects
// accidents, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdp {

[[nodiscard]] std::uint32_t crc32c(
    std::span<const std::byte> bytes);  // with the processor's instruction where it has one
[[nodiscard]] std::uint32_t crc32c_table(std::span<const std::byte> bytes);  // without

namespace checksum {
// False where the target is no x86-64, or the processor lacks it.
[[nodiscard]] bool has_instruction();
[[nodiscard]] std::uint32_t with_instruction(std::span<const std::byte> bytes);
}  // namespace checksum

}  // namespace fsdp
