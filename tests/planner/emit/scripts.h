// Emitted scripts that tests run with a Python.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace fsdp::testing {

inline std::string chosen_python() {
  const char* chosen = std::getenv("FSDP_PLAN_PYTHON");
  return chosen != nullptr ? chosen : "python3";
}

// The exit code; -1 where the command did not end by itself.
inline int run(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace fsdp::testing
