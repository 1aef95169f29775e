// Headers of safetensors files from arbitrary text: an InputError, or tensors that cover their data once, in order.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "executor/data/safetensors.h"
#include "tests/fuzz/fuzz.h"

// The first byte is the length of the data after the header.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::int64_t bytes = data[0];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::SafetensorsHeader header = fsdp::parse_safetensors_header(text, bytes, "fuzz");
    std::int64_t end = 0;
    for (const fsdp::SafetensorsTensor& t : header.tensors) {
      fsdp::fuzz::require(t.begin == end && t.bytes >= 0, "tensors lie one after the other");
      fsdp::fuzz::require(!t.type || t.numel() * fsdp::size_of(*t.type) == t.bytes,
                          "a tensor has the bytes that its shape needs");
      end += t.bytes;
    }
    fsdp::fuzz::require(end == bytes, "tensors cover the data");
  });
  return 0;
}
