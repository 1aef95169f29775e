// NCCL's functions as this program uses them, from a library that was found at start. Compiled against the toolkit's
// nccl.h where it has one; what newer libraries add is used where both know it.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "executor/cuda/library.h"

namespace fsdp::cuda {

struct Nccl {
  Library library;
  Version version;
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommSplit) comm_split = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclRedOpCreatePreMulSum) red_op_create_pre_mul_sum = nullptr;
  decltype(&::ncclRedOpDestroy) red_op_destroy = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclReduce) reduce = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclCommRegister) comm_register = nullptr;  // from 2.19; null in older ones
  decltype(&::ncclCommDeregister) comm_deregister = nullptr;
};

// The NCCL of this machine, or null; then `why` says what was tried. One that lacks a function or is older than 2.18
// (ncclCommSplit) counts as none.
[[nodiscard]] std::shared_ptr<const Nccl> find_nccl(std::string& why);

// "ncclInvalidUsage"
[[nodiscard]] std::string_view name_of(ncclResult_t);
// MachineError unless it succeeded (ncclInProgress is no failure here). `comm` may be null.
void check(const Nccl&, ncclResult_t, ncclComm_t comm, std::int64_t rank, std::string_view what);

}  // namespace fsdp::cuda
