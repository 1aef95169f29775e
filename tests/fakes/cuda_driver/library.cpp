// A driver (libcuda.so.1) as `doctor` may meet it: FSDP_FAKE_DRIVER says which. "two": two GPUs; "none": loaded,
// without a GPU; "mismatch": of another version than the kernel module; "hang" and "crash": as broken ones do.
#include <unistd.h>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string mode() {
  const char* mode = std::getenv("FSDP_FAKE_DRIVER");
  return mode != nullptr ? mode : "two";
}

constexpr int kNoDevice = 100, kMismatch = 803;

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
int cuInit(unsigned) {
  if (mode() == "hang")
    while (true) ::pause();
  if (mode() == "crash") {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would make an exit code of it
    std::raise(SIGSEGV);
  }
  return mode() == "none" ? kNoDevice : mode() == "mismatch" ? kMismatch : 0;
}
int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetName(char* name, int length, int device) {
  std::strncpy(name, device == 0 ? "NVIDIA H100 80GB HBM3" : "NVIDIA GeForce RTX 4090",
               static_cast<std::size_t>(length));
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  *bytes = static_cast<std::size_t>(device == 0 ? 80 : 24) << 30;
  return 0;
}
// Numbers of the driver interface's documentation (CUdevice_attribute).
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 16: *value = device == 0 ? 132 : 128; return 0;
    case 38: *value = device == 0 ? 50 << 20 : 72 << 20; return 0;
    case 75: *value = device == 0 ? 9 : 8; return 0;
    case 76: *value = device == 0 ? 0 : 9; return 0;
    default: return 1;
  }
}
int cuGetErrorName(int error, const char** name) {
  *name = error == kNoDevice ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text =
      error == kNoDevice ? "no CUDA-capable device is detected" : "system has unsupported display driver / cuda driver";
  return 0;
}
}
