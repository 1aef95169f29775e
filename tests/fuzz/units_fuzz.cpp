// Units from arbitrary text: an InputError, or a value that is not negative and survives the trip through its exact
// text.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "models/units.h"
#include "tests/fuzz/fuzz.h"

namespace {

template <class Parse>
void round_trip(std::string_view text, Parse parse) {
  fsdp::fuzz::refuses_politely([&] {
    const auto value = parse(text, "fuzz");
    fsdp::fuzz::require(!(value.count() < 0), "a parsed quantity is not negative");
    fsdp::fuzz::require(parse(fsdp::exact_text(value), "fuzz") == value, "parse(exact_text(x)) == x");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  round_trip(text, fsdp::parse_bytes);
  round_trip(text, fsdp::parse_rate);
  round_trip(text, fsdp::parse_flops_rate);
  round_trip(text, fsdp::parse_seconds);
  return 0;
}
