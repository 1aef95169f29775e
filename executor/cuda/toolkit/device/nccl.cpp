#include "executor/cuda/toolkit/device/nccl.h"

#include <fmt/format.h>

#include "executor/cuda/errors.h"
#include "models/input/error.h"

namespace fsdp::cuda {

std::shared_ptr<const Nccl> find_nccl(std::string& why) {
  auto n = std::make_shared<Nccl>();
  n->library = Library::open(candidates({"libnccl.so.2"}, this_machine()));
  if (!n->library) return why = n->library.why(), nullptr;
  std::string missing;
  const auto need = [&](auto& function, const char* symbol) {
    n->library.set(function, symbol);
    if (function == nullptr) missing += std::string(missing.empty() ? "" : ", ") + symbol;
  };
  need(n->get_version, "ncclGetVersion");
  need(n->get_unique_id, "ncclGetUniqueId");
  need(n->comm_init_rank_config, "ncclCommInitRankConfig");
  need(n->comm_split, "ncclCommSplit");
  need(n->comm_finalize, "ncclCommFinalize");
  need(n->comm_destroy, "ncclCommDestroy");
  need(n->comm_abort, "ncclCommAbort");
  need(n->comm_get_async_error, "ncclCommGetAsyncError");
  need(n->get_error_string, "ncclGetErrorString");
  need(n->get_last_error, "ncclGetLastError");
  need(n->red_op_create_pre_mul_sum, "ncclRedOpCreatePreMulSum");
  need(n->red_op_destroy, "ncclRedOpDestroy");
  need(n->all_gather, "ncclAllGather");
  need(n->reduce_scatter, "ncclReduceScatter");
  need(n->all_reduce, "ncclAllReduce");
  need(n->reduce, "ncclReduce");
  need(n->broadcast, "ncclBroadcast");
  need(n->group_start, "ncclGroupStart");
  need(n->group_end, "ncclGroupEnd");
  n->library.set(n->comm_register, "ncclCommRegister");
  n->library.set(n->comm_deregister, "ncclCommDeregister");
  int code = 0;
  if (missing.empty() && n->get_version(&code) == ncclSuccess) n->version = nccl_version(code);
  if (!missing.empty() || n->version < Version{2, 18, 0}) {
    why = fmt::format("{} is too old: version {}{}{}; 2.18 or later is needed", n->library.path(), text(n->version),
                      missing.empty() ? "" : ", without ", missing);
    return nullptr;
  }
  return n;
}

std::string_view name_of(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "ncclSuccess";
    case ncclUnhandledCudaError: return "ncclUnhandledCudaError";
    case ncclSystemError: return "ncclSystemError";
    case ncclInternalError: return "ncclInternalError";
    case ncclInvalidArgument: return "ncclInvalidArgument";
    case ncclInvalidUsage: return "ncclInvalidUsage";
    case ncclRemoteError: return "ncclRemoteError";
    case ncclInProgress: return "ncclInProgress";
    default: return "an NCCL error that this program does not know";
  }
}

void check(const Nccl& nccl, ncclResult_t result, ncclComm_t comm, std::int64_t rank, std::string_view what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* more = nccl.get_last_error(comm);
  const std::string words =
      fmt::format("{}{}{}", nccl.get_error_string(result), more != nullptr && *more != '\0' ? "; its last error: " : "",
                  more != nullptr ? more : "");
  throw MachineError(refusal(rank, what, name_of(result), words));
}

}  // namespace fsdp::cuda
