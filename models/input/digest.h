// A short fingerprint of a value, so that a document can say what it was made from: 64-bit FNV-1a over a canonical text
// (offset basis and prime of the FNV specification, Fowler / Noll / Vo), as 16 hex digits. It detects accidents, not
// attacks.
//
//   Digest d; d.add("vocab", model.vocab); ... d.text()      -> "9f86d081884c7d65"
//   digest_of(to_json_text(plan))                            -> FNV-1a of that text alone
//
// Every item goes in as "key=value\n", texts with their lengths, so that different values have different canonical
// texts.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

class Digest {
 public:
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, double value);  // every bit of it: hexadecimal notation
  void add(std::string_view key, std::integral auto value) { add_integer(key, static_cast<std::int64_t>(value)); }
  void bytes(std::string_view text);       // as they are
  [[nodiscard]] std::string text() const;  // 16 hex digits

 private:
  void add_integer(std::string_view key, std::int64_t value);
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

[[nodiscard]] std::string digest_of(std::string_view text);

}  // namespace fsdp
