// Heap instrument: the most heap that the calling thread held at once between begin and end, beyond what it held at
// begin. Watches malloc and everything built on it (new, containers, libraries). The build picks heap_meter_glibc.cpp,
// or heap_meter_sanitizer.cpp where a sanitizer owns malloc.
#pragma once

#include <cstdint>

namespace fsdp::host {

void heap_meter_begin();
[[nodiscard]] std::int64_t heap_meter_end();  // bytes

// While one lives, the calling thread is not metered: for heap that a communication library takes for itself.
class HeapMeterPause {
 public:
  HeapMeterPause();
  ~HeapMeterPause();
  HeapMeterPause(const HeapMeterPause&) = delete;
  HeapMeterPause& operator=(const HeapMeterPause&) = delete;

 private:
  bool was_active_;
};

}  // namespace fsdp::host
