#include "models/input/digest.h"

#include <fmt/format.h>

#include <charconv>

namespace fsdp {

void Digest::bytes(std::string_view text) {
  std::uint64_t h = hash_;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  hash_ = h;
}

void Digest::add(std::string_view key, std::string_view value) {
  add_integer(key, static_cast<std::int64_t>(value.size()));
  bytes(value);
  bytes("\n");
}

void Digest::add(std::string_view key, double value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::hex).ptr;
  bytes(key);
  bytes("=");
  bytes({text, static_cast<std::size_t>(end - text)});
  bytes("\n");
}

void Digest::add_integer(std::string_view key, std::int64_t value) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  bytes(key);
  bytes("=");
  bytes({text, static_cast<std::size_t>(end - text)});
  bytes("\n");
}

std::string Digest::text() const { return fmt::format("{:016x}", hash_); }

std::string digest_of(std::string_view text) {
  Digest d;
  d.bytes(text);
  return d.text();
}

}  // namespace fsdp
