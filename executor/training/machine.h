// The machine that a run happens on, and the memory of its process, as the operating system tells (Linux: /proc, /sys;
// elsewhere what cannot be read is left empty or 0).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "simulator/records/measurement.h"

namespace fsdp {

// Watches from its making to `finish`: how much of the cores this process, others, and the machine below a virtual one
// took.
class MachineWatch {
 public:
  MachineWatch();
  // `libraries`, `instructions`: as the backend names them. `also_own_seconds`: processor time of this run's other
  // processes.
  [[nodiscard]] MachineState finish(std::string libraries, std::string instructions, double also_own_seconds = 0) const;

 private:
  struct Cores {  // seconds of all cores together, since the machine started
    double busy = 0, stolen = 0;
    bool known = false;
  };
  [[nodiscard]] static Cores read_cores();
  double begin_ = 0, own_ = 0, load_ = 0;
  Cores cores_;
  std::string date_;
};

// Processor time of this process so far, seconds.
[[nodiscard]] double own_processor_seconds();

// Of this process: how much more it may map, where that is limited (ulimit -v); empty: it is not.
[[nodiscard]] std::optional<std::int64_t> address_space_left();

// How many of these bytes (of an anonymous mapping) are memory now: whole pages.
[[nodiscard]] std::int64_t resident_bytes(const std::byte* begin, std::int64_t bytes);
// Of this process; `arenas`: what resident_bytes says of the arenas of its ranks, which are mapped now.
[[nodiscard]] ProcessMemory process_memory(std::int64_t arenas);

}  // namespace fsdp
