// Ranks with a GPU each. Communicators are non-blocking: every call may say that it is still in progress, and is asked
// about until it is not, so that a rank whose neighbours have failed can leave (NCCL user guide, "Fault Tolerance").
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "executor/arithmetic/element.h"
#include "executor/cuda/toolkit/device/group.h"
#include "executor/cuda/toolkit/device/nccl.h"
#include "models/input/error.h"

namespace fsdp::cuda {
namespace {

using host::CollectiveAction;
using host::CollectiveCall;

struct Shared {  // of one rank's communicators
  std::shared_ptr<const Nccl> nccl;
  std::shared_ptr<host::RunControl> control;
  std::int64_t rank = 0;
};

// One ncclComm_t. Destroyed by close() or abort(), never by going out of scope: both talk to other ranks.
class NcclCommunicator {
 public:
  NcclCommunicator(Shared shared, std::string what) : s_(std::move(shared)), what_(std::move(what)) {}
  [[nodiscard]] ncclComm_t& raw() { return comm_; }
  [[nodiscard]] const Shared& shared() const { return s_; }

  // Until the call that gave `result` has happened, or the run has failed.
  void await(ncclResult_t result, std::string_view call) {
    if (result == ncclSuccess)
      return;  // then all of it has: the answer of non-blocking calls that did not have to wait
    for (int tries = 0;; ++tries) {
      hear_of_others(result);
      check(*s_.nccl, result, comm_, s_.rank, fmt::format("{} ({})", call, what_));
      if (result != ncclInProgress) return;
      s_.control->throw_if_failed();
      if (tries < 1000) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(200));
      // While it is being made, a thread of NCCL's may write the communicator.
      if (const ncclComm_t made = __atomic_load_n(&comm_, __ATOMIC_ACQUIRE); made != nullptr)
        check(*s_.nccl, s_.nccl->comm_get_async_error(made, &result), made, s_.rank, "ncclCommGetAsyncError");
    }
  }
  void poll() {
    if (comm_ == nullptr) return;
    ncclResult_t result = ncclSuccess;
    check(*s_.nccl, s_.nccl->comm_get_async_error(comm_, &result), comm_, s_.rank, "ncclCommGetAsyncError");
    hear_of_others(result);
    check(*s_.nccl, result, comm_, s_.rank, fmt::format("a collective ({})", what_));
  }
  void close() {
    if (comm_ == nullptr) return;
    await(s_.nccl->comm_finalize(comm_), "ncclCommFinalize");
    check(*s_.nccl, s_.nccl->comm_destroy(comm_), nullptr, s_.rank, "ncclCommDestroy");
    comm_ = nullptr;
  }
  void abort() noexcept {
    if (comm_ != nullptr) (void)s_.nccl->comm_abort(comm_);
    comm_ = nullptr;
  }

 private:
  // What NCCL answers when another rank has gone away: that rank is the cause, and in a moment it is known which
  // (RankFailure).
  void hear_of_others(ncclResult_t result) const {
    if (result != ncclRemoteError && result != ncclSystemError) return;
    for (int tries = 0; tries < 200 && !s_.control->failed(); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    s_.control->throw_if_failed();
  }

  Shared s_;
  std::string what_;
  ncclComm_t comm_ = nullptr;
};

ncclDataType_t nccl_type(DType t) {
  switch (t) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i64: return ncclInt64;
    case DType::f8: return ncclUint8;
  }
  return ncclFloat32;
}

class NcclGroup final : public GpuGroup {
 public:
  NcclGroup(const host::Membership& m, std::shared_ptr<CallChecker> checker, NcclCommunicator comm)
      : size_(static_cast<std::int64_t>(m.ranks.size())),
        member_(std::find(m.ranks.begin(), m.ranks.end(), comm.shared().rank) - m.ranks.begin()),
        checker_(std::move(checker)),
        comm_(std::move(comm)),
        nccl_(*comm_.shared().nccl) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t member() const override { return member_; }

  void enqueue(const CollectiveCall& p, cudaStream_t stream) override {
    if (checker_) checker_->check(static_cast<std::size_t>(member_), comm_.shared().rank, p);
    const std::string_view call = name(p.action);
    switch (p.action) {
      case CollectiveAction::all_gather:
        return p.counts ? gather_slots(p, stream) : comm_.await(gather(p, stream), call);
      case CollectiveAction::reduce_scatter:
        return p.counts ? reduce_slots(p, stream) : comm_.await(scatter(p, stream), call);
      case CollectiveAction::all_reduce:
        return comm_.await(nccl_.all_reduce(p.input, p.output, count(p.elements), nccl_type(p.type), operation(p),
                                            comm_.raw(), stream),
                           call);
      case CollectiveAction::broadcast:
        return comm_.await(nccl_.broadcast(p.input, p.output, count(p.elements), nccl_type(p.type),
                                           static_cast<int>(p.root), comm_.raw(), stream),
                           call);
    }
  }
  void register_memory(std::byte* base, std::int64_t bytes) override {
    if (nccl_.comm_register == nullptr || bytes == 0) return;
    void* handle = nullptr;
    comm_.await(nccl_.comm_register(comm_.raw(), base, count(bytes), &handle), "ncclCommRegister");
    registered_.push_back(handle);
  }
  void poll() override { comm_.poll(); }
  void close() override {
    for (void* handle : registered_) comm_.await(nccl_.comm_deregister(comm_.raw(), handle), "ncclCommDeregister");
    registered_.clear();
    for (const auto& [key, op] : operations_) comm_.await(nccl_.red_op_destroy(op, comm_.raw()), "ncclRedOpDestroy");
    operations_.clear();
    comm_.close();
  }
  void abort() noexcept override { comm_.abort(); }

 private:
  static std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }

  ncclResult_t gather(const CollectiveCall& p, cudaStream_t stream) {
    return nccl_.all_gather(p.input + p.slot_begin(member_) * size_of(p.type), p.output, count(p.elements),
                            nccl_type(p.type), comm_.raw(), stream);
  }
  ncclResult_t scatter(const CollectiveCall& p, cudaStream_t stream) {
    return nccl_.reduce_scatter(p.input, p.output, count(p.elements), nccl_type(p.type), operation(p), comm_.raw(),
                                stream);
  }
  // Slots of their own sizes: one broadcast or reduction for each, launched as one.
  template <class Call>
  void one_by_one(const CollectiveCall& p, Call call) {
    const ncclRedOp_t op =
        p.action == CollectiveAction::reduce_scatter ? operation(p) : ncclSum;  // made outside of the group of calls
    comm_.await(nccl_.group_start(), "ncclGroupStart");
    for (std::int64_t m = 0; m < size_; ++m)
      if (p.slot(m) > 0)
        check(nccl_, call(static_cast<int>(m), p.slot_begin(m) * size_of(p.type), count(p.slot(m)), op), comm_.raw(),
              comm_.shared().rank, name(p.action));
    comm_.await(nccl_.group_end(), "ncclGroupEnd");
  }
  void gather_slots(const CollectiveCall& p, cudaStream_t stream) {
    one_by_one(p, [&](int root, std::int64_t at, std::size_t n, ncclRedOp_t) {
      return nccl_.broadcast(p.input + at, p.output + at, n, nccl_type(p.type), root, comm_.raw(), stream);
    });
  }
  void reduce_slots(const CollectiveCall& p, cudaStream_t stream) {
    one_by_one(p, [&](int root, std::int64_t at, std::size_t n, ncclRedOp_t op) {
      return nccl_.reduce(p.input + at, p.output, n, nccl_type(p.type), op, root, comm_.raw(),
                          stream);  // output: of the root alone
    });
  }

  ncclRedOp_t operation(const CollectiveCall& p) {
    switch (p.reduction.kind) {
      case ReductionKind::sum: return ncclSum;
      case ReductionKind::average: return ncclAvg;
      case ReductionKind::maximum: return ncclMax;
      case ReductionKind::scaled_sum: break;
    }
    const auto key = std::pair(p.type, p.reduction.multiply);
    if (const auto found = operations_.find(key); found != operations_.end()) return found->second;
    ncclRedOp_t op = ncclSum;
    with_type(p.type, [&](auto element) {  // the factor is of the elements' type
      store(element, static_cast<Math<decltype(element)>>(p.reduction.multiply));
      comm_.await(
          nccl_.red_op_create_pre_mul_sum(&op, &element, nccl_type(p.type), ncclScalarHostImmediate, comm_.raw()),
          "ncclRedOpCreatePreMulSum");
    });
    return operations_[key] = op;
  }

  std::int64_t size_, member_;
  std::shared_ptr<CallChecker> checker_;
  NcclCommunicator comm_;
  const Nccl& nccl_;
  std::map<std::pair<DType, double>, ncclRedOp_t> operations_;
  std::vector<void*> registered_;
};

ncclConfig_t configuration(int ctas) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (ctas > 0) config.maxCTAs = ctas;
  return config;
}

class World final : public NcclWorld {
 public:
  World(Shared shared, const NcclIdBytes& id, std::int64_t ranks, int ctas)
      : comm_(std::move(shared), fmt::format("the world of {} ranks", ranks)), ctas_(ctas) {
    ncclUniqueId raw{};
    if (id.size() != sizeof raw)
      throw MachineError(fmt::format("a communicator's id of {} bytes, where NCCL's have {}", id.size(), sizeof raw));
    std::memcpy(&raw, id.data(), sizeof raw);
    ncclConfig_t config = configuration(ctas_);
    const Shared& s = comm_.shared();
    try {
      comm_.await(
          s.nccl->comm_init_rank_config(&comm_.raw(), static_cast<int>(ranks), raw, static_cast<int>(s.rank), &config),
          "ncclCommInitRankConfig");
    } catch (...) {
      comm_.abort();
      throw;
    }
  }
  [[nodiscard]] std::unique_ptr<GpuGroup> split(const host::Membership& m,
                                                std::shared_ptr<CallChecker> checker) override {
    const Shared& s = comm_.shared();
    NcclCommunicator child(s, fmt::format("the group of ranks {}", fmt::join(m.ranks, ", ")));
    ncclConfig_t config = configuration(ctas_);  // resources of its own: two groups may work at the same time
    try {                                        // first the parent has split, then the child is ready
      comm_.await(s.nccl->comm_split(comm_.raw(), static_cast<int>(m.ranks.front()), static_cast<int>(s.rank),
                                     &child.raw(), &config),
                  "ncclCommSplit");
      child.await(ncclInProgress, "ncclCommSplit");
    } catch (...) {
      child.abort();
      throw;
    }
    return std::make_unique<NcclGroup>(m, std::move(checker), std::move(child));
  }
  void close() override { comm_.close(); }
  void abort() noexcept override { comm_.abort(); }

 private:
  NcclCommunicator comm_;
  const int ctas_;
};

}  // namespace

NcclIdBytes make_nccl_id(const Nccl& nccl) {
  ncclUniqueId id{};
  check(nccl, nccl.get_unique_id(&id), nullptr, -1, "ncclGetUniqueId");
  NcclIdBytes bytes(sizeof id);
  std::memcpy(bytes.data(), &id, sizeof id);
  return bytes;
}

std::unique_ptr<NcclWorld> join_nccl_world(std::shared_ptr<const Nccl> nccl, const NcclIdBytes& id, std::int64_t rank,
                                           std::int64_t ranks, int ctas, std::shared_ptr<host::RunControl> control) {
  return std::make_unique<World>(Shared{std::move(nccl), std::move(control), rank}, id, ranks, ctas);
}

}  // namespace fsdp::cuda
