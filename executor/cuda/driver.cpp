#include "executor/cuda/driver.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fsdp::cuda {
namespace {

// The driver's binary interface, which has been the same since CUDA 4: results and devices are int.
constexpr const char* kDriverLibrary = "libcuda.so.1";
enum DriverAttribute { kMultiprocessors = 16, kL2Bytes = 38, kCapabilityMajor = 75, kCapabilityMinor = 76 };
struct DriverCalls {
  int (*init)(unsigned) = nullptr;
  int (*version)(int*) = nullptr;
  int (*count)(int*) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*memory)(std::size_t*, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*error_name)(int, const char**) = nullptr;
  int (*error_text)(int, const char**) = nullptr;

  explicit DriverCalls(const Library& library) {
    library.set(init, "cuInit");
    library.set(version, "cuDriverGetVersion");
    library.set(count, "cuDeviceGetCount");
    library.set(device, "cuDeviceGet");
    library.set(name, "cuDeviceGetName");
    library.set(memory, "cuDeviceTotalMem_v2");
    library.set(attribute, "cuDeviceGetAttribute");
    library.set(error_name, "cuGetErrorName");
    library.set(error_text, "cuGetErrorString");
  }
  [[nodiscard]] bool complete() const {
    return init != nullptr && version != nullptr && count != nullptr && device != nullptr && name != nullptr &&
           memory != nullptr && attribute != nullptr;
  }
  // "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected".
  [[nodiscard]] std::string describe(int error) const {
    const char *word = nullptr, *sentence = nullptr;
    if (error_name == nullptr || error_name(error, &word) != 0 || word == nullptr)
      return fmt::format("error {} of the driver", error);
    if (error_text == nullptr || error_text(error, &sentence) != 0 || sentence == nullptr) return word;
    return fmt::format("{}: {}", word, sentence);
  }
};

// Throws away a GPU that the driver cannot describe, with the reason.
std::optional<GpuFacts> facts_of(const DriverCalls& driver, int index, std::string& why) {
  int device = 0, multiprocessors = 0, l2 = 0, major = 0, minor = 0;
  std::size_t memory = 0;
  std::array<char, 256> name{};
  int error = driver.device(&device, index);
  if (error == 0) error = driver.name(name.data(), static_cast<int>(name.size()) - 1, device);
  if (error == 0) error = driver.memory(&memory, device);
  if (error == 0) error = driver.attribute(&multiprocessors, kMultiprocessors, device);
  if (error == 0) error = driver.attribute(&l2, kL2Bytes, device);
  if (error == 0) error = driver.attribute(&major, kCapabilityMajor, device);
  if (error == 0) error = driver.attribute(&minor, kCapabilityMinor, device);
  if (error != 0) {
    why = fmt::format("GPU {}: {}", index, driver.describe(error));
    return std::nullopt;
  }
  return GpuFacts{name.data(), Bytes(static_cast<std::int64_t>(memory)), Bytes(l2), multiprocessors,
                  10 * major + minor};
}

FoundLibrary look_for(const char* name, const std::vector<std::string>& files, const char* version_function,
                      Version (*version_of)(std::size_t)) {
  const Library library = Library::open(candidates(files, this_machine()));
  FoundLibrary result{name, {}, library ? library.path() : std::string()};
  std::size_t (*version)() = nullptr;
  if (library) library.set(version, version_function);
  if (version != nullptr) result.version = version_of(version());
  return result;
}

}  // namespace

DriverAnswer ask_driver() {
  const Library library = Library::open({kDriverLibrary});
  if (!library) return {{}, {}, library.why()};
  const DriverCalls driver(library);
  if (!driver.complete()) return {{}, {}, fmt::format("{} lacks functions of CUDA's driver", kDriverLibrary)};
  DriverAnswer answer;
  int version = 0, gpus = 0;
  if (const int error = driver.version(&version); error != 0) {
    answer.why = driver.describe(error);
    return answer;
  }
  answer.cuda = cuda_version(version);
  int error = driver.init(0);
  if (error == 0) error = driver.count(&gpus);
  if (error != 0) {
    answer.why = driver.describe(error);
    return answer;
  }
  for (int i = 0; i < gpus; ++i)
    if (auto facts = facts_of(driver, i, answer.why)) answer.gpus.push_back(std::move(*facts));
  if (gpus == 0) answer.why = "the driver shows no GPU";
  return answer;
}

std::vector<FoundLibrary> find_cuda_libraries() {
  std::vector<FoundLibrary> libraries = {
      look_for("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}, "cublasLtGetVersion", cublas_version),
      look_for("cuDNN", {"libcudnn.so.9"}, "cudnnGetVersion", cudnn_version)};
  const Library library = Library::open(candidates({"libnccl.so.2"}, this_machine()));
  FoundLibrary nccl{"NCCL", {}, library ? library.path() : std::string()};
  int (*version)(int*) = nullptr;
  if (library) library.set(version, "ncclGetVersion");
  if (int code = 0; version != nullptr && version(&code) == 0) nccl.version = nccl_version(code);
  libraries.push_back(std::move(nccl));
  return libraries;
}

NvidiaHardware find_nvidia_hardware(const std::string& root) {
  NvidiaHardware hardware;
  const auto word_of = [](const std::filesystem::path& file) {
    std::ifstream in(file);
    std::string word;
    in >> word;
    return word;
  };
  std::error_code error;
  for (std::filesystem::directory_iterator i(root + "/sys/bus/pci/devices", error), end; !error && i != end;
       i.increment(error))
    if (word_of(i->path() / "vendor") == "0x10de" && word_of(i->path() / "class").starts_with("0x03")) ++hardware.gpus;
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"
  std::ifstream file(root + "/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word && hardware.kernel_module.empty();)
    if (std::isdigit(static_cast<unsigned char>(word[0])) != 0 && word.find('.') != std::string::npos)
      hardware.kernel_module = word;
  return hardware;
}

}  // namespace fsdp::cuda
