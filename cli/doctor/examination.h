// What `doctor` finds on this machine. Plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "executor/cuda/driver.h"
#include "models/host.h"

namespace fsdp::cli {

struct HostFindings {
  std::string processor;
  std::int64_t cores = 0, usable_cores = 0;
  HostLimits limits;
  std::optional<std::int64_t> address_space;  // that this process may still map; empty: no limit
  std::string instructions;                   // of the host's kernels, "x86-64-v4"; empty: why_no_kernels says why
  std::vector<std::string> all_instructions;  // that this program holds and this processor can run
  std::string why_no_kernels, matmul_library;
};

struct GpuFindings {
  cuda::NvidiaHardware hardware;
  cuda::DriverAnswer driver;
  std::vector<cuda::FoundLibrary> libraries;
  std::string trouble;  // not empty: asking hung or crashed, and `driver` and `libraries` know nothing
};

struct PythonFindings {
  std::string path;                                                  // empty: none was found
  std::string version, torch, torch_cuda, transformers, accelerate;  // empty: not there
  bool fully_shard = false;                                          // torch.distributed.fsdp has it
  std::string trouble;                                               // not empty: why PyTorch is not there
};

struct CostsFindings {
  std::string path;  // empty: no file
  std::string source, trouble;
  bool of_this_host = false;
};

struct BackendFindings {
  std::string name;
  bool works = false;
  std::string said;    // what ran, or why it did not
  std::string remedy;  // where it did not
  std::string launch;  // the words before the program's own that started its processes; may be empty
};

struct LauncherFindings {
  std::string path, version;  // path empty: none on PATH
};

// What this machine has not, what having it would give, and how to get it.
struct Missing {
  std::string what, gives, remedy;
};

struct Examination {
  HostFindings host;
  GpuFindings gpus;
  LauncherFindings launcher;
  PythonFindings python;
  CostsFindings costs;
  std::vector<BackendFindings> backends;
  std::vector<Missing> missing;
  [[nodiscard]] bool can_run() const {
    for (const BackendFindings& b : backends)
      if (b.works) return true;
    return false;
  }
};

}  // namespace fsdp::cli
