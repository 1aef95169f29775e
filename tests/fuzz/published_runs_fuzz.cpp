// Runs from arbitrary bytes: an InputError, or rows and refusals that account for every record; setting a row up never
// ends in anything but a setup or a reason.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "simulator/published/run_setup.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::PublishedRuns file = fsdp::parse_runs(text, "fuzz");
    for (const fsdp::RefusedRow& r : file.refused)
      fsdp::fuzz::require(!r.id.empty() && !r.reason.empty(), "a refused row has an id and a reason");
    for (const fsdp::PublishedRun& r : file.runs) {
      if (r.layers.value_or(1) > 100 || r.gpus.value_or(1) > 1024) continue;  // large, not hostile
      const auto setup = fsdp::set_up(r, "fuzz");
      if (const auto* reason = std::get_if<std::string>(&setup))
        fsdp::fuzz::require(!reason->empty(), "a reason is said");
    }
  });
  return 0;
}
