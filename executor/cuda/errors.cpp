#include "executor/cuda/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace fsdp::cuda {
namespace {

struct Row {
  std::string_view name, remedy;
  bool sticky = false;
};

// Sources: the error lists of the CUDA runtime API, NCCL (ncclResult_t) and cuBLAS (cublasStatus_t) references.
constexpr std::array kRows = {
    Row{"cudaErrorMemoryAllocation",
        "see with nvidia-smi what else uses this GPU, or plan for less memory with --memory-limit"},
    Row{"cudaErrorInsufficientDriver", "install a newer NVIDIA driver, or a build with an older CUDA"},
    Row{"cudaErrorNoDevice", "see with nvidia-smi whether there is a GPU, and whether CUDA_VISIBLE_DEVICES hides it"},
    Row{"cudaErrorInvalidDevice", "name GPUs that nvidia-smi lists and CUDA_VISIBLE_DEVICES shows"},
    Row{"cudaErrorInitializationError", "no GPU can be used after fork(): start the program anew"},
    Row{"cudaErrorSystemDriverMismatch",
        "the driver's library is not of the loaded kernel module: restart the machine"},
    Row{"cudaErrorCompatNotSupportedOnDevice", "take /usr/local/cuda/compat off LD_LIBRARY_PATH"},
    Row{"cudaErrorNoKernelImageForDevice",
        "this build has no code for this GPU: configure with FSDP_PLAN_CUDA_ARCHITECTURES of its compute capability"},
    Row{"cudaErrorUnsupportedPtxVersion", "install a newer NVIDIA driver"},
    Row{"cudaErrorDevicesUnavailable", "another process has this GPU for itself: see nvidia-smi -q -d COMPUTE"},
    Row{"cudaErrorLaunchOutOfResources",
        "a kernel needs more registers or shared memory than this GPU has: please report it"},
    Row{"cudaErrorInvalidConfiguration",
        "a kernel was launched in a shape that this GPU does not have: please report it"},
    Row{"cudaErrorIllegalAddress",
        "a kernel touched memory that is not its own: run under compute-sanitizer to see which", true},
    Row{"cudaErrorMisalignedAddress", "run under compute-sanitizer to see which kernel", true},
    Row{"cudaErrorIllegalInstruction", "run under compute-sanitizer to see which kernel", true},
    Row{"cudaErrorLaunchFailure", "run under compute-sanitizer to see which kernel", true},
    Row{"cudaErrorLaunchTimeout", "a display uses this GPU and ends long kernels: use another one", true},
    Row{"cudaErrorHardwareStackError", "run under compute-sanitizer to see which kernel", true},
    Row{"cudaErrorAssert", "run under compute-sanitizer to see which kernel", true},
    Row{"cudaErrorECCUncorrectable",
        "this GPU's memory is damaged: reset it (nvidia-smi -r) or leave it out with --devices", true},
    Row{"cudaErrorExternalDevice", "see dmesg for the driver's messages (Xid)", true},
    Row{"cudaErrorUnknown", "see dmesg for the driver's messages (Xid)", true},
    Row{"ncclUnhandledCudaError", "set NCCL_DEBUG=WARN to see which CUDA call"},
    Row{"ncclSystemError",
        "set NCCL_DEBUG=WARN to see which call; often a firewall, a full /dev/shm, or too few locked pages (ulimit "
        "-l)"},
    Row{"ncclInternalError", "set NCCL_DEBUG=WARN; an NCCL of another version may help"},
    Row{"ncclInvalidArgument", "set NCCL_DEBUG=WARN to see which argument; please report it"},
    Row{"ncclInvalidUsage", "two ranks on one GPU are refused by NCCL: use --virtual-ranks, or as many GPUs as ranks"},
    Row{"ncclRemoteError", "another rank or its machine went away: see its messages"},
    Row{"CUBLAS_STATUS_ALLOC_FAILED", "see with nvidia-smi what else uses this GPU"},
    Row{"CUBLAS_STATUS_ARCH_MISMATCH", "this cuBLASLt does not know this GPU: install a newer one"},
    Row{"CUBLAS_STATUS_NOT_SUPPORTED", "this cuBLASLt has no product of this kind and shape: install a newer one"},
    Row{"CUBLAS_STATUS_EXECUTION_FAILED", "an earlier kernel may have failed: run under compute-sanitizer"},
    Row{"CUBLAS_STATUS_NOT_INITIALIZED", "cuBLASLt found no GPU or no memory for itself: see nvidia-smi"},
};

const Row* row_of(std::string_view name) {
  const auto found = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  return found == kRows.end() ? nullptr : &*found;
}

}  // namespace

std::string refusal(std::int64_t rank, std::string_view what, std::string_view name, std::string_view text) {
  std::string sentence =
      rank >= 0 ? fmt::format("rank {}: {}: {}", rank, what, name) : fmt::format("{}: {}", what, name);
  if (!text.empty() && text != name) sentence += fmt::format(": {}", text);
  if (const Row* row = row_of(name)) sentence += fmt::format("; {}", row->remedy);
  return sentence;
}

bool is_sticky(std::string_view name) {
  const Row* row = row_of(name);
  return row != nullptr && row->sticky;
}

}  // namespace fsdp::cuda
