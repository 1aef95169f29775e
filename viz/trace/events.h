// The events of a Chrome trace as JSON text: "X" slices, "s" and "f" the two ends of an arrow, "C" counters, "i" marks,
// "M" names of processes and tracks. Times are given in nanoseconds, so that what is nested stays nested.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

struct TraceTrack {
  int process = 0, track = 0;
};

class TraceEvents {
 public:
  // `arguments`: members of a JSON object without its braces; may be empty.
  void slice(TraceTrack, std::string_view name, std::string_view category, std::int64_t start, std::int64_t end,
             std::string_view arguments);
  // An arrow leaves a slice that begins at `at`, or comes in there. The event stands behind that slice.
  void arrow_out(TraceTrack, std::int64_t id, std::int64_t at);
  void arrow_in(TraceTrack, std::int64_t id, std::int64_t at);
  void counter(int process, std::string_view name, std::int64_t at, std::int64_t bytes);
  void mark(int process, std::string_view text, std::int64_t at);
  void name_process(int process, std::string_view name);
  void name_track(TraceTrack, std::string_view name);  // tracks stand in the order of their numbers

  [[nodiscard]] std::string document() &&;

 private:
  void begin(std::string_view phase, TraceTrack);
  std::string text_;
};

}  // namespace fsdp
