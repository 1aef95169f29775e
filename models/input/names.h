// Names of closed choices: one pattern for every enum whose values people read or write.
//
//   enum class Dialect : std::uint8_t { fsdp2, fsdp1, ddp };                                        // the header
//   inline constexpr int kDialects = static_cast<int>(Dialect::ddp) + 1;
//   [[nodiscard]] std::string_view name(Dialect);
//
//   constexpr std::string_view text(Dialect d) {                                                    // the source
//     switch (d) {                                           // no default: -Wswitch refuses a missing enumerator
//       case Dialect::fsdp2: return "fsdp2";
//       ...
//     }
//     return {};
//   }
//   static_assert(names_all<Dialect>(text, kDialects));      // refuses a stale count and a name given twice
//   std::string_view name(Dialect d) { return text(d); }
//   Dialect parse_dialect(...) { return parse_name<Dialect>(text, kDialects, typed, where, "dialect"); }
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "models/input/error.h"

namespace fsdp {

// True if exactly the values 0 .. count - 1 have names, and no two the same one.
template <class E>
[[nodiscard]] consteval bool names_all(std::string_view (*text)(E), int count) {
  for (int i = 0; i < count; ++i) {
    if (text(static_cast<E>(i)).empty()) return false;
    for (int j = 0; j < i; ++j)
      if (text(static_cast<E>(i)) == text(static_cast<E>(j))) return false;
  }
  return text(static_cast<E>(count)).empty();
}

// The value with that name, if there is one.
template <class E>
[[nodiscard]] constexpr std::optional<E> find_name(std::string_view (*text)(E), int count, std::string_view typed) {
  for (int i = 0; i < count; ++i)
    if (text(static_cast<E>(i)) == typed) return static_cast<E>(i);
  return std::nullopt;
}

// The value with that name. Throws InputError(where, "unknown dialect 'x'", "use one of: fsdp2, fsdp1, ddp").
template <class E>
[[nodiscard]] E parse_name(std::string_view (*text)(E), int count, std::string_view typed, const Origin& where,
                           std::string_view what) {
  if (const auto value = find_name(text, count, typed)) return *value;
  std::string known;
  for (int i = 0; i < count; ++i) known += (i == 0 ? "" : ", ") + std::string(text(static_cast<E>(i)));
  throw InputError(where, "unknown " + std::string(what) + " '" + std::string(typed) + "'", "use one of: " + known);
}

}  // namespace fsdp
