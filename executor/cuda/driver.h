// What of NVIDIA's is on this machine, asked of the driver and the libraries themselves. Needs no CUDA toolkit: every
// build has it.
//
// A broken driver may hang, or end the process: call ask_driver and find_cuda_libraries in a process that may.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "executor/cuda/gpu_cluster.h"
#include "executor/cuda/library.h"

namespace fsdp::cuda {

// The driver's answer through its own interface (libcuda.so.1).
struct DriverAnswer {
  std::optional<Version> cuda;  // the newest CUDA that it knows; empty: there is no driver
  std::vector<GpuFacts> gpus;   // those that CUDA_VISIBLE_DEVICES shows
  std::string why;              // not empty: why there is no driver, or why it shows no GPU
};
[[nodiscard]] DriverAnswer ask_driver();

struct FoundLibrary {
  std::string name;  // "NCCL"
  Version version;
  std::string path;  // empty: not found
};
[[nodiscard]] std::vector<FoundLibrary> find_cuda_libraries();  // cuBLASLt, cuDNN, NCCL

// What the operating system knows, without any call of the driver. `root`: what stands for "/"; tests make one up.
struct NvidiaHardware {
  int gpus = 0;               // on the PCI bus
  std::string kernel_module;  // version of the loaded driver, "550.54.15"; empty: none is loaded
};
[[nodiscard]] NvidiaHardware find_nvidia_hardware(const std::string& root = "");

}  // namespace fsdp::cuda
