#include "executor/host/processor.h"

#include <sys/utsname.h>

#include <fstream>

namespace fsdp::host {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  utsname u{};
  return ::uname(&u) == 0 ? u.machine : "unknown processor";
}

}  // namespace fsdp::host
