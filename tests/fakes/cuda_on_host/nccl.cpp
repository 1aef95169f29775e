// The part of NCCL that executor/cuda/toolkit/device uses, on streams of tests/fakes/cuda_on_host/runtime.cpp; a shared
// library of NCCL's name that the backend finds as it finds NCCL. Ranks are threads of a process or processes of one
// machine: all that they share lies in memory without a name, which the others find by the process that made it
// (/proc/PID/fd/N), so that nothing is left behind, however they end. Communicators are non-blocking: they answer "in
// progress" for a while. Ranks must issue the same collectives in the same order.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "executor/arithmetic/element.h"
#include "executor/cuda/rank_reduction.h"

void push_on_stream(CUstream_st*, std::function<void()>);  // of the program

namespace {

using fsdp::cuda::Combine;

struct Operation {
  Combine combine = Combine::sum;
  double factor = 1;
};

// Memory that several processes map.
using Name = std::array<char, 64>;

class Segment {
 public:
  // A new one, all zero.
  explicit Segment(std::size_t bytes) : bytes_(bytes), fd_(::memfd_create("nccl on host", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) std::abort();
    std::snprintf(name_.data(), name_.size(), "/proc/%d/fd/%d", ::getpid(), fd_);
    map(fd_);
  }
  // That of another rank.
  Segment(const Name& name, std::size_t bytes) : bytes_(bytes), name_(name) {
    const int fd = ::open(name.data(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    map(fd);
    ::close(fd);
  }
  ~Segment() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
    forget_name();
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }  // null: the process that made it is gone
  [[nodiscard]] const Name& name() const { return name_; }
  void forget_name() {  // once all have mapped it
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  void map(int fd) {
    void* p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) std::abort();
    data_ = static_cast<std::byte*>(p);
  }
  std::size_t bytes_;
  int fd_ = -1;
  Name name_{};
  std::byte* data_ = nullptr;
};

constexpr int kMostRanks = 16;
constexpr std::size_t kLargest = std::size_t{16} << 20;  // bytes that one rank sends at once

// One rank's view of ranks that meet again and again. All that is shared begins as zero bytes.
class Group {
 public:
  struct alignas(64) Shared {
    std::atomic<int> here,
        aborted;  // aborted: by some rank; the others hear of it, and wait on until they abort as well
    std::atomic<std::uint64_t> generation;
    struct Split {
      int color, key;
      Name child;  // made by the first rank of a color
    };
    std::array<Split, kMostRanks> splits;
  };
  static constexpr std::size_t bytes_for(int n) { return sizeof(Shared) + static_cast<std::size_t>(n) * kLargest; }

  Group(int n, std::shared_ptr<Segment> memory)
      : size(n), memory_(std::move(memory)), shared_(reinterpret_cast<Shared*>(memory_->data())) {}
  const int size;
  [[nodiscard]] Shared& shared() { return *shared_; }
  [[nodiscard]] std::byte* sent(int rank) const {
    return memory_->data() + sizeof(Shared) + static_cast<std::size_t>(rank) * kLargest;
  }
  void forget_name() { memory_->forget_name(); }

  void abort() {
    aborted_ = true;
    shared_->aborted = 1;
  }
  // False: this rank has aborted.
  bool meet() {
    const std::uint64_t mine = shared_->generation;
    if (aborted_) return false;
    if (++shared_->here == size) {
      shared_->here = 0;
      ++shared_->generation;
      return true;
    }
    for (int looks = 0; shared_->generation == mine && !aborted_; ++looks) {
      if (looks < 50) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(looks < 70 ? 20 : 100));
    }
    return shared_->generation != mine;
  }

 private:
  std::shared_ptr<Segment> memory_;
  Shared* shared_;
  std::atomic<bool> aborted_{false};
};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

thread_local std::vector<std::function<void()>> grouped;
thread_local int group_depth = 0;

// Memory of ids whose ranks have not all come.
std::mutex made_mutex;
std::map<std::string, std::shared_ptr<Segment>> made;
std::atomic<int> ctas_of_world{0}, ctas_of_split{0};  // of the configurations that came last

std::size_t width(ncclDataType_t t) { return t == ncclFloat64 || t == ncclInt64 ? 8 : t == ncclFloat32 ? 4 : 2; }

}  // namespace

struct ncclComm {
  ncclComm(std::shared_ptr<Group> g, int r) : group(std::move(g)), rank(r) {}
  const std::shared_ptr<Group> group;
  const int rank;
  std::atomic<int> polls{0};  // answers of "in progress" that are left
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

// Every rank shows what it sends; when all have, `make` makes this rank's result, which is written when all have made
// theirs.
ncclResult_t enqueue(ncclComm_t c, const void* send, std::size_t bytes, cudaStream_t stream,
                     std::function<std::vector<std::byte>(const Group&)> make, void* to) {
  if (bytes > kLargest)
    return std::fprintf(stderr, "nccl on host: %zu bytes at once are too many\n", bytes), ncclInvalidArgument;
  auto action = [=, group = c->group, rank = c->rank] {
    if (bytes > 0) std::memcpy(group->sent(rank), send, bytes);
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
  for (int r = 0; r < g.size; ++r) inputs.of[r] = g.sent(r) + first * width(t);
  const fsdp::DType type = t == ncclFloat64    ? fsdp::DType::f64
                           : t == ncclFloat32  ? fsdp::DType::f32
                           : t == ncclBfloat16 ? fsdp::DType::bf16
                                               : fsdp::DType::f16;
  fsdp::with_type(type, [&](auto element) {
    using T = decltype(element);
    for (std::size_t i = 0; i < n; ++i)
      reinterpret_cast<T*>(result.data())[i] =
          fsdp::cuda::reduce_element<T>(op.combine, op.factor, inputs, g.size, static_cast<std::int64_t>(i));
  });
  return result;
}

}  // namespace

extern "C" {

int cuda_on_host_nccl_ctas(bool split) { return split ? ctas_of_split : ctas_of_world; }  // for tests

ncclResult_t ncclGetVersion(int* v) { return *v = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "words"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
// The memory is as large as any number of ranks needs, and takes no more than what is written.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  const auto memory = std::make_shared<Segment>(Group::bytes_for(kMostRanks));
  std::memcpy(id->internal, memory->name().data(), memory->name().size());
  const std::lock_guard lock(made_mutex);
  made[id->internal] = memory;
  return ncclSuccess;
}
// In progress until all ranks have come.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int n, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0 || n > kMostRanks) return ncclInvalidUsage;
  ctas_of_world = config->maxCTAs;
  Name name{};
  std::memcpy(name.data(), id.internal, name.size());
  const auto memory = std::make_shared<Segment>(name, Group::bytes_for(kMostRanks));
  if (memory->data() == nullptr) return ncclSystemError;
  ncclComm* c = *comm = new ncclComm(std::make_shared<Group>(n, memory), rank);
  c->polls = 5;
  c->ready = false;
  std::thread([c, name] {
    if (c->group->meet()) {
      const std::lock_guard lock(made_mutex);
      made.erase(name.data());
    }
    c->ready = true;
  }).detach();
  return ncclInProgress;
}
// The child is written by a thread of this library's, as NCCL does.
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  if (config->blocking != 0 || !c->ready) return ncclInvalidUsage;
  ctas_of_split = config->maxCTAs;
  *child = nullptr;
  c->ready = false;
  std::thread([=] {
    Group& g = *c->group;
    auto& splits = g.shared().splits;
    splits[static_cast<std::size_t>(c->rank)] = {color, key, {}};
    if (g.meet()) {
      int n = 0, rank = 0, first = -1;
      for (int r = 0; r < g.size; ++r) {
        const auto& other = splits[static_cast<std::size_t>(r)];
        if (other.color != color) continue;
        ++n;
        rank += other.key < key;
        if (first < 0 || other.key < splits[static_cast<std::size_t>(first)].key) first = r;
      }
      std::shared_ptr<Segment> memory;
      Name& name = splits[static_cast<std::size_t>(first)].child;
      if (rank == 0) {
        memory = std::make_shared<Segment>(Group::bytes_for(n));
        name = memory->name();
      }
      const bool named = g.meet();
      if (named && rank > 0) memory = std::make_shared<Segment>(name, Group::bytes_for(n));
      if (named && g.meet() &&
          memory->data() != nullptr) {  // all have mapped it, and nobody splits again before all have read
        memory->forget_name();
        auto* made_child = new ncclComm(std::make_shared<Group>(n, memory), rank);
        made_child->polls = 3;
        __atomic_store_n(child, made_child, __ATOMIC_RELEASE);
      }
    }
    c->ready = true;
  }).detach();
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* result) {
  const bool busy = !c->ready || c->polls > 0;
  if (c->polls > 0) --c->polls;
  *result = c->group->shared().aborted != 0 ? ncclRemoteError : busy ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) { return c->polls = 2, ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t c) { return delete c, ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t c) {
  c->group->abort();
  while (!c->ready) std::this_thread::yield();
  return delete c, ncclSuccess;
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t t, ncclScalarResidence_t where,
                                      ncclComm_t c) {
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
  return enqueue(
      c, send, bytes, s,
      [=](const Group& g) {
        std::vector<std::byte> all;
        for (int r = 0; r < g.size; ++r) all.insert(all.end(), g.sent(r), g.sent(r) + bytes);
        return all;
      },
      to);
}
ncclResult_t ncclReduceScatter(const void* send, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                               cudaStream_t s) {
  return enqueue(
      c, send, n * width(t) * static_cast<std::size_t>(c->group->size), s,
      [=, o = operation_of(c, op), rank = c->rank](const Group& g) {
        return reduced(g, static_cast<std::size_t>(rank) * n, n, t, o);
      },
      to);
}
ncclResult_t ncclAllReduce(const void* send, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t s) {
  return enqueue(
      c, send, n * width(t), s, [=, o = operation_of(c, op)](const Group& g) { return reduced(g, 0, n, t, o); }, to);
}
ncclResult_t ncclReduce(const void* send, void* to, size_t n, ncclDataType_t t, ncclRedOp_t op, int root, ncclComm_t c,
                        cudaStream_t s) {
  return enqueue(
      c, send, n * width(t), s,
      [=, o = operation_of(c, op), rank = c->rank](const Group& g) {
        return rank == root ? reduced(g, 0, n, t, o) : std::vector<std::byte>{};
      },
      to);
}
ncclResult_t ncclBroadcast(const void* send, void* to, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s) {
  return enqueue(
      c, send, c->rank == root ? n * width(t) : 0, s,
      [=](const Group& g) { return copied(g.sent(root), n * width(t)); }, to);
}

}  // extern "C"
