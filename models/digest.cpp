#include "models/digest.h"

#include <fmt/format.h>

namespace fsdp {

void Digest::bytes(std::string_view text) {
  for (char c : text) {
    hash_ ^= static_cast<unsigned char>(c);
    hash_ *= 0x100000001b3ULL;
  }
}

void Digest::add(std::string_view key, std::string_view value) {
  bytes(key);
  bytes(fmt::format("={}:", value.size()));
  bytes(value);
  bytes("\n");
}

void Digest::add(std::string_view key, double value) {
  bytes(key);
  bytes(fmt::format("={:a}\n", value));
}

void Digest::add_integer(std::string_view key, std::int64_t value) {
  bytes(key);
  bytes(fmt::format("={}\n", value));
}

std::string Digest::text() const { return fmt::format("{:016x}", hash_); }

std::string digest_of(std::string_view text) {
  Digest d;
  d.bytes(text);
  return d.text();
}

}  // namespace fsdp
