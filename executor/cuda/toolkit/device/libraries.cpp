#include "executor/cuda/toolkit/device/libraries.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "executor/cuda/toolkit/device/nccl.h"

namespace fsdp::cuda {

std::shared_ptr<const Libraries> find_libraries() {
  const Surroundings here = this_machine();
  auto l = std::make_shared<Libraries>();
  // That of this build's CUDA first: both work, with a driver that is new enough for them.
  const bool newest = CUDART_VERSION >= 13000;
  l->cublas_lt = Library::open(candidates(newest ? std::vector<std::string>{"libcublasLt.so.13", "libcublasLt.so.12"}
                                                 : std::vector<std::string>{"libcublasLt.so.12", "libcublasLt.so.13"},
                                          here));
  l->why_no_cublas_lt = l->cublas_lt.why();
  std::size_t (*version)() = nullptr;
  if (l->cublas_lt) l->cublas_lt.set(version, "cublasLtGetVersion");
  if (version != nullptr) l->cublas_lt_version = cublas_version(version());
  l->cudnn = Library::open(candidates({"libcudnn.so.9"}, here));
  l->why_no_cudnn = l->cudnn.why();
  version = nullptr;
  if (l->cudnn) l->cudnn.set(version, "cudnnGetVersion");
  if (version != nullptr) l->cudnn_version = cudnn_version(version());
  l->nccl = find_nccl(l->why_no_nccl);
  return l;
}

std::string describe(const Libraries& l) {
  const auto one = [](const char* name, bool there, Version v, const std::string& path) {
    return there ? fmt::format("{} {} ({})", name, text(v), path) : fmt::format("{} none", name);
  };
  return fmt::format(
      "{}, {}, {}", one("cuBLASLt", static_cast<bool>(l.cublas_lt), l.cublas_lt_version, l.cublas_lt.path()),
      one("cuDNN", static_cast<bool>(l.cudnn), l.cudnn_version, l.cudnn.path()),
      one("NCCL", l.nccl != nullptr, l.nccl ? l.nccl->version : Version{}, l.nccl ? l.nccl->library.path() : ""));
}

}  // namespace fsdp::cuda
