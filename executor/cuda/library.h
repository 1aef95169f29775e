// Libraries that are found at run time: search paths, their order, and version numbers. Includes no CUDA header.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::cuda {

struct Version {
  int major = 0, minor = 0, patch = 0;
  friend auto operator<=>(const Version&, const Version&) = default;
};
[[nodiscard]] std::string text(Version);  // "2.28.9"
// From the numbers that the libraries' own functions return: 22809 (NCCL; 2708 before 2.9), 130100 (cuBLASLt), 91900
// (cuDNN; 8907 before 9), 13000 (CUDA; no patch).
[[nodiscard]] Version nccl_version(int code);
[[nodiscard]] Version cublas_version(std::size_t code);
[[nodiscard]] Version cudnn_version(std::size_t code);
[[nodiscard]] Version cuda_version(int code);

// What the search may see of this machine. Tests pass their own.
struct Surroundings {
  std::function<std::optional<std::string>(const char* variable)> environment;
  std::function<std::vector<std::string>(const std::string& folder)>
      entries;  // of a folder, by name, sorted; empty if there is no such folder
};
[[nodiscard]] Surroundings this_machine();

// Names to give to dlopen, in order: those of the toolkits (CUDA_HOME, CUDA_PATH, /usr/local/cuda), the bare name
// (LD_LIBRARY_PATH and what the loader knows), then nvidia/*/lib of the Python packages of FSDP_PLAN_PYTHON,
// VIRTUAL_ENV, CONDA_PREFIX, the user, and the system. For each place, `files` in their order ("libcublasLt.so.13",
// "libcublasLt.so.12"). Paths that do not exist are left out.
[[nodiscard]] std::vector<std::string> candidates(const std::vector<std::string>& files, const Surroundings&);

// A shared library. Once loaded it stays until the process ends: NCCL's threads (one is begun by ncclGetUniqueId)
// outlive their use.
class Library {
 public:
  Library() = default;
  // The first of `candidates` that loads. None: an empty Library, whose why() says what was tried.
  [[nodiscard]] static Library open(const std::vector<std::string>& candidates);
  [[nodiscard]] explicit operator bool() const { return handle_ != nullptr; }
  [[nodiscard]] const std::string& path() const { return path_; }  // of the file that was loaded
  [[nodiscard]] const std::string& why() const { return why_; }    // not empty: it was not
  [[nodiscard]] void* find(const char* symbol) const;              // null: it has none
  template <class F>
  void set(F& function, const char* symbol) const {
    function = reinterpret_cast<F>(find(symbol));
  }

 private:
  std::shared_ptr<void> handle_;
  std::string path_, why_;
};

}  // namespace fsdp::cuda
