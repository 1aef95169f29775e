#include "executor/ranks/processor.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <fstream>
#include <thread>

#include "executor/kernels/host_kernel_set.h"
#include "models/input/counted.h"

namespace fsdp::host {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  utsname u{};
  return ::uname(&u) == 0 ? u.machine : "unknown processor";
}

std::string host_description() {
  return fmt::format("{}, {}, {}, kernels {}", processor_name(), counted(std::thread::hardware_concurrency(), "core"),
                     host_matmul_library(), host_kernel_set().instructions());
}

}  // namespace fsdp::host
