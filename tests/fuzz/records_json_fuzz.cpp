// Predictions and measurements from arbitrary text: an InputError, or a record that survives the trip through its JSON.
// A prediction and a measurement, one a line, are compared as well. And what PyTorch's own tools record, a memory
// snapshot or a trace, from the same bytes: an InputError, or sums that are possible.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "simulator/pytorch/compare_recordings.h"
#include "simulator/records/compare.h"
#include "simulator/records/measurement.h"
#include "simulator/records/prediction.h"
#include "tests/fuzz/fuzz.h"

namespace {

std::optional<fsdp::Prediction> prediction_in(std::string_view text) {
  std::optional<fsdp::Prediction> p;
  fsdp::fuzz::refuses_politely([&] {
    p = fsdp::parse_prediction(text, "fuzz");
    const std::string once = fsdp::to_json_text(*p);
    fsdp::fuzz::require(fsdp::to_json_text(fsdp::parse_prediction(once, "fuzz")) == once, "predictions are kept");
  });
  return p;
}

std::optional<fsdp::Measurement> measurement_in(std::string_view text) {
  std::optional<fsdp::Measurement> m;
  fsdp::fuzz::refuses_politely([&] {
    m = fsdp::parse_measurement(text, "fuzz");
    const std::string once = fsdp::to_json_text(*m);
    fsdp::fuzz::require(fsdp::to_json_text(fsdp::parse_measurement(once, "fuzz")) == once, "measurements are kept");
  });
  return m;
}

void recordings_in(std::string_view bytes) {
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::RecordedMemory m = fsdp::read_snapshot(bytes, "fuzz");
    std::int64_t sum = 0;
    for (const std::int64_t part : m.at_peak) sum += part;
    fsdp::fuzz::require(sum == m.peak_allocated && m.peak_allocated >= m.allocated_first, "parts are the peak");
    (void)fsdp::compare_recordings({}, {m, {}});
  });
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::RecordedTrace t = fsdp::read_trace(bytes, "fuzz");
    fsdp::fuzz::require(t.steps >= 1 && t.step.busy >= 0 && t.step.idle >= 0, "times are not negative");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t line = text.find('\n');
  const std::optional<fsdp::Prediction> predicted = prediction_in(text.substr(0, line));
  const std::optional<fsdp::Measurement> measured =
      measurement_in(line == std::string_view::npos ? text : text.substr(line + 1));
  if (predicted && measured) fsdp::fuzz::refuses_politely([&] { (void)fsdp::compare(*predicted, *measured); });
  recordings_in(text);
  return 0;
}
