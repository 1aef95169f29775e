#include "executor/mpi/wire.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "executor/ranks/instruments/heap_meter.h"
#include "models/input/error.h"

namespace fsdp::mpi {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw MachineError(fmt::format("MPI: {}: {}", what, std::string(text.data(), static_cast<std::size_t>(length))));
}

bool running() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

}  // namespace

Joined join() {
  int granted = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), "starting");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (granted < MPI_THREAD_MULTIPLE)
    throw MachineError(
        "this MPI library does not let several threads use it (MPI_THREAD_MULTIPLE), and each stream of a rank is one; "
        "use a build of it that does: " +
        library_version());
  Joined j;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &j.rank), "rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &j.ranks), "size");
  return j;
}

void leave() {
  if (running()) MPI_Finalize();
}

void abort_all(int code) {
  if (running()) MPI_Abort(MPI_COMM_WORLD, code);
}

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length), "version");
  const std::string all(text.data(), static_cast<std::size_t>(length));
  const std::string line = all.substr(0, all.find_first_of(std::string("\n\0", 2)));
  return line.substr(0, line.find(", package"));
}

void share_from_first(void* data, int bytes) {
  check(MPI_Bcast(data, bytes, MPI_BYTE, 0, MPI_COMM_WORLD), "broadcast");
}
void gather_from_all(const void* mine, void* all, int bytes_each) {
  check(MPI_Allgather(mine, bytes_each, MPI_BYTE, all, bytes_each, MPI_BYTE, MPI_COMM_WORLD), "all-gather");
}
void meet_all() { check(MPI_Barrier(MPI_COMM_WORLD), "barrier"); }

void Backoff::pause() {
  constexpr int looks = 100, shortest_us = 20, longest_us = 200;
  if (++count_ <= looks) return std::this_thread::yield();
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::min(longest_us, shortest_us << std::min(count_ - looks - 1, 8))));
}

struct Channel::Impl {
  MPI_Comm comm = MPI_COMM_NULL;
};

Channel::Channel() : impl_(std::make_unique<Impl>()) {
  check(MPI_Comm_dup(MPI_COMM_WORLD, &impl_->comm), "communicator");
  MPI_Comm_set_errhandler(impl_->comm, MPI_ERRORS_RETURN);
}

Channel::~Channel() = default;  // lives as long as MPI

void Channel::renew(const host::RunControl& control) {
  MPI_Comm fresh = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, &fresh, &request), "communicator");
  Backoff backoff;
  for (int done = 0; done == 0; backoff.pause()) {
    control.throw_if_failed();
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "communicator");
  }
  MPI_Comm_set_errhandler(fresh, MPI_ERRORS_RETURN);
  impl_->comm = fresh;
}

struct Requests::Impl {
  const Channel::Impl& channel;
  std::vector<MPI_Request> requests;
  std::vector<int> finished;
  std::vector<std::atomic<bool>> pending;
  std::size_t count = 0;
  Impl(const Channel::Impl& c, std::size_t most)
      : channel(c), requests(most, MPI_REQUEST_NULL), finished(most), pending(most) {}
};

Requests::Requests(const Channel& channel, std::size_t most) : impl_(std::make_unique<Impl>(*channel.impl_, most)) {}
Requests::~Requests() = default;
Requests::Requests(Requests&&) noexcept = default;

std::size_t Requests::send(std::int64_t to, int tag, const void* data, std::int64_t bytes) {
  const host::HeapMeterPause library;
  const std::size_t i = impl_->count++;
  check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(to), tag, impl_->channel.comm,
                  &impl_->requests.at(i)),
        "send");
  impl_->pending[i] = true;
  return i;
}

std::size_t Requests::receive(std::int64_t from, int tag, void* data, std::int64_t bytes) {
  const host::HeapMeterPause library;
  const std::size_t i = impl_->count++;
  check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(from), tag, impl_->channel.comm,
                  &impl_->requests.at(i)),
        "receive");
  impl_->pending[i] = true;
  return i;
}

bool Requests::poll(bool& moved) {
  const host::HeapMeterPause library;
  int n = 0;
  check(MPI_Testsome(static_cast<int>(impl_->count), impl_->requests.data(), &n, impl_->finished.data(),
                     MPI_STATUSES_IGNORE),
        "test");
  if (n == MPI_UNDEFINED) {  // none is under way
    impl_->count = 0;
    return true;
  }
  for (int i = 0; i < n; ++i)
    impl_->pending[static_cast<std::size_t>(impl_->finished[static_cast<std::size_t>(i)])] = false;
  moved = n > 0;
  return false;
}

void Requests::wait(const host::RunControl& control) {
  Backoff backoff;
  for (bool moved = false; !poll(moved);) {
    control.throw_if_failed();
    if (moved) backoff.reset();
    else backoff.pause();
  }
}

bool Requests::arrived() {
  bool moved = false;
  return poll(moved) || (moved && poll(moved));
}

bool Requests::pending(std::size_t index) const { return impl_->pending.at(index); }

}  // namespace fsdp::mpi
