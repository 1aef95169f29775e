// Manifests of checkpoints from arbitrary text: an InputError, or a manifest that survives the trip through its text.
// The checksum would refuse almost everything, so the text is also tried with the right one in its place.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "executor/checkpoint/checksum.h"
#include "executor/checkpoint/manifest.h"
#include "tests/fuzz/fuzz.h"

namespace {

void parse(std::string_view text) {
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::Manifest m = fsdp::parse_manifest(text, "fuzz");
    fsdp::fuzz::require(fsdp::parse_manifest(fsdp::to_json_text(m), "fuzz") == m,
                        "parse_manifest(to_json_text(m)) == m");
    for (const fsdp::SavedTensor& t : m.tensors)
      for (const fsdp::SavedBox& b : t.boxes)
        fsdp::fuzz::require(
            b.begin >= 0 && b.bytes > 0 && b.begin + b.bytes <= m.files.at(static_cast<std::size_t>(b.file)).bytes,
            "boxes lie in their files");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  parse(text);
  constexpr std::string_view key = "\"checksum\": ";
  const std::size_t at = text.rfind(key);
  if (at == std::string_view::npos) return 0;
  const std::string_view body = text.substr(0, at + key.size());
  parse(std::string(body) + std::to_string(fsdp::crc32c(std::as_bytes(std::span(body.data(), body.size())))) + "\n}\n");
  return 0;
}
