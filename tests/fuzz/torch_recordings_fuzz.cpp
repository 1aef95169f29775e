// Memory snapshots and traces of PyTorch from arbitrary bytes: an InputError, or sums that are possible.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "simulator/pytorch/compare_recordings.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::RecordedMemory m = fsdp::read_snapshot(text, "fuzz");
    std::int64_t sum = 0;
    for (const std::int64_t part : m.at_peak) sum += part;
    fsdp::fuzz::require(sum == m.peak_allocated && m.peak_allocated >= m.allocated_first, "parts are the peak");
    (void)fsdp::compare_recordings({}, {m, {}});
  });
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::RecordedTrace t = fsdp::read_trace(text, "fuzz");
    fsdp::fuzz::require(t.steps >= 1 && t.step.busy >= 0 && t.step.idle >= 0, "times are not negative");
  });
  return 0;
}
