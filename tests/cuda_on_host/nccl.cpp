// The part of NCCL that executor/cuda/machine uses, on streams of tests/cuda_on_host/runtime.cpp; a shared library of NCCL's name that the backend finds as it
// finds NCCL. Communicators are non-blocking: they answer "in progress" for a while. Ranks must issue the same collectives in the same order.
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "executor/cuda/rank_reduction.h"
#include "executor/kernels/element.h"

void push_on_stream(CUstream_st*, std::function<void()>);  // of the program

namespace {

using fsdp::cuda::Combine;

struct Operation {
  Combine combine = Combine::sum;
  double factor = 1;
};

// Ranks that meet again and again.
struct Group {
  explicit Group(int n) : size(n), send(static_cast<std::size_t>(n)) {}
  const int size;
  std::vector<const std::byte*> send;
  std::vector<std::pair<int, int>> colors = std::vector<std::pair<int, int>>(send.size());  // and keys, of a split
  std::map<int, std::shared_ptr<Group>> children;
  std::mutex mutex;
  std::condition_variable changed;
  int here = 0;
  std::uint64_t generation = 0;
  std::atomic<bool> aborted{false};

  // False: aborted.
  bool meet(const std::function<void()>& by_the_last = {}) {
    std::unique_lock lock(mutex);
    if (aborted) return false;
    if (++here == size) {
      if (by_the_last) by_the_last();
      here = 0;
      ++generation;
      changed.notify_all();
      return true;
    }
    const std::uint64_t mine = generation;
    while (generation == mine && !aborted) changed.wait_for(lock, std::chrono::milliseconds(5));
    return generation != mine;
  }
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<Group>> worlds;
thread_local std::vector<std::function<void()>> grouped;
thread_local int group_depth = 0;

std::size_t width(ncclDataType_t t) { return t == ncclFloat64 || t == ncclInt64 ? 8 : t == ncclFloat32 ? 4 : 2; }

}  // namespace

struct ncclComm {
  ncclComm(std::shared_ptr<Group> g, int r) : group(std::move(g)), rank(r) {}
  std::shared_ptr<Group> group;
  int rank;
  std::atomic<int> polls{0};                 // answers of "in progress" that are left
  std::atomic<bool> ready{true};
  std::map<int, Operation> operations;
};

namespace {

Operation operation_of(ncclComm_t c, ncclRedOp_t op) {
  switch (op) {
    case ncclSum: return {};
    case ncclAvg: return {Combine::average};
    case ncclMax: return {Combine::maximum};
    default: return c->operations.at(op);
  }
}

// Every rank says where its data is; when all have, `make` makes this rank's result, which is written when all have made theirs.
ncclResult_t enqueue(ncclComm_t c, const void* send, cudaStream_t stream, std::function<std::vector<std::byte>(const Group&)> make, void* to) {
  auto action = [=, group = c->group, rank = c->rank] {
    group->send[static_cast<std::size_t>(rank)] = static_cast<const std::byte*>(send);
    if (!group->meet()) return;
    const std::vector<std::byte> result = make(*group);
    if (group->meet() && !result.empty()) std::memcpy(to, result.data(), result.size());
  };
  if (group_depth > 0) grouped.push_back([=] { push_on_stream(stream, action); });
  else push_on_stream(stream, action);
  c->polls = 2;
  return ncclInProgress;
}

std::vector<std::byte> copied(const std::byte* from, std::size_t n) { return {from, from + n}; }

std::vector<std::byte> reduced(const Group& g, std::size_t first, std::size_t n, ncclDataType_t t, Operation op) {
  std::vector<std::byte> result(n * width(t));
  fsdp::cuda::Inputs inputs{};
  for (int r = 0; r < g.size; ++r) inputs.of[r] = g.send[static_cast<std::size_t>(r)] + first * width(t);
  const fsdp::DType type = t == ncclFloat64 ? fsdp::DType::f64 : t == ncclFloat32 ? fsdp::DType::f32 : t == ncclBfloat16 ? fsdp::DType::bf16 : fsdp::DType::f16;
  fsdp::with_type(type, [&](auto element) {
    using T = decltype(element);
    for (std::size_t i = 0; i < n; ++i)
      reinterpret_cast<T*>(result.data())[i] = fsdp::cuda::reduce_element<T>(op.combine, op.factor, inputs, g.size, static_cast<std::int64_t>(i));
  });
  return result;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* v) { return *v = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "words"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> count{0};
  *id = {};
  std::strcpy(id->internal, ("world " + std::to_string(count++)).c_str());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int n, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidUsage;
  const std::lock_guard lock(worlds_mutex);
  auto& group = worlds[id.internal];
  if (!group) group = std::make_shared<Group>(n);
  *comm = new ncclComm(group, rank);
  (*comm)->polls = 5;
  return ncclInProgress;
}
// The child is written by a thread of this library's, as NCCL does.
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  if (config->blocking != 0 || !c->ready) return ncclInvalidUsage;
  *child = nullptr;
  c->ready = false;
  std::thread([=] {
    Group& g = *c->group;
    g.colors[static_cast<std::size_t>(c->rank)] = {color, key};
    const bool met = g.meet([&] {
      g.children.clear();
      for (const auto& [of, unused] : g.colors) {
        int n = 0;
        for (const auto& [other, k] : g.colors) n += other == of;
        if (!g.children[of]) g.children[of] = std::make_shared<Group>(n);
      }
    });
    if (met) {
      int rank = 0;
      for (const auto& [other, k] : g.colors) rank += other == color && k < key;
      auto* made = new ncclComm(g.children[color], rank);
      made->polls = 3;
      (void)g.meet();                        // nobody splits again before all have read
      __atomic_store_n(child, made, __ATOMIC_RELEASE);
    }
    c->ready = true;
  }).detach();
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* result) {
  const bool busy = !c->ready || c->polls > 0;
  if (c->polls > 0) --c->polls;
  *result = c->group->aborted ? ncclRemoteError : busy ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) { return c->polls = 2, ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t c) { return delete c, ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t c) {
  c->group->aborted = true;
  while (!c->ready) std::this_thread::yield();
  return delete c, ncclSuccess;
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t t, ncclScalarResidence_t where, ncclComm_t c) {
  if (where != ncclScalarHostImmediate || group_depth > 0) return ncclInvalidUsage;
  const int id = ncclNumOps + 1 + static_cast<int>(c->operations.size());
  Operation o{Combine::scaled_sum};
  if (t == ncclFloat64) o.factor = *static_cast<double*>(scalar);
  else if (t == ncclFloat32) o.factor = static_cast<double>(*static_cast<float*>(scalar));
  else if (t == ncclBfloat16) o.factor = static_cast<double>(fsdp::load(*static_cast<fsdp::BFloat16*>(scalar)));
  else o.factor = static_cast<double>(fsdp::load(*static_cast<fsdp::Float16*>(scalar)));
  c->operations[id] = o;
  return *op = static_cast<ncclRedOp_t>(id), ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclGroupStart() { return ++group_depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  for (const auto& action : grouped) action();
  grouped.clear();
  return ncclInProgress;
}
ncclResult_t ncclAllGather(const void* send, void* to, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
  const std::size_t bytes = n * width(t);
  return enqueue(c, send, s, [=](const Group& g) {
    std::vector<std::byte> all;
    for (const std::byte* from : g.send) all.insert(all.end(), from, from + bytes);
    return all;
  }, to);
}
ncclResult_t ncclReduceScatter(const void* send, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
  return enqueue(c, send, s, [=, o = operation_of(c, op), rank = c->rank](const Group& g) { return reduced(g, static_cast<std::size_t>(rank) * n, n, t, o); }, to);
}
ncclResult_t ncclAllReduce(const void* send, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
  return enqueue(c, send, s, [=, o = operation_of(c, op)](const Group& g) { return reduced(g, 0, n, t, o); }, to);
}
ncclResult_t ncclReduce(const void* send, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t s) {
  return enqueue(c, send, s, [=, o = operation_of(c, op), rank = c->rank](const Group& g) { return rank == root ? reduced(g, 0, n, t, o) : std::vector<std::byte>{}; }, to);
}
ncclResult_t ncclBroadcast(const void* send, void* to, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s) {
  return enqueue(c, send, s, [=](const Group& g) { return copied(g.send[static_cast<std::size_t>(root)], n * width(t)); }, to);
}

}  // extern "C"
