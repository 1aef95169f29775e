// The only door to MPI: wire.cpp alone includes mpi.h. Setup may block; everything else polls, so that waits end when a
// rank has failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "executor/ranks/control.h"

namespace fsdp::mpi {

struct Joined {
  int rank = 0, ranks = 1;
};
[[nodiscard]] Joined join();                   // starts MPI; MachineError without MPI_THREAD_MULTIPLE
void leave();                                  // ends it; blocks until every process does the same
void abort_all(int code);                      // ends every process of the launch; may return if MPI does not run
[[nodiscard]] std::string library_version();   // the first line of the library's own description
void share_from_first(void* data, int bytes);  // blocks
void gather_from_all(const void* mine, void* all, int bytes_each);  // blocks
void meet_all();                                                    // blocks

// Messages between all ranks of the launch, separate from every other channel.
class Channel {
 public:
  Channel();  // blocks until all ranks make theirs
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  void renew(const host::RunControl&);  // messages still under way are dropped

 private:
  friend class Requests;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Messages under way, of one thread. Their memory must stay until they have arrived. After a failure they are
// abandoned.
class Requests {
 public:
  Requests(const Channel&, std::size_t most);  // at once
  ~Requests();
  Requests(Requests&&) noexcept;
  Requests& operator=(Requests&&) = delete;

  // At most kLargest bytes; returns the message's index until all have arrived. Takes no heap of ours.
  std::size_t send(std::int64_t to, int tag, const void*, std::int64_t bytes);
  std::size_t receive(std::int64_t from, int tag, void*, std::int64_t bytes);
  void wait(const host::RunControl&);                   // until all have arrived; RankFailure when the run has failed
  [[nodiscard]] bool arrived();                         // looks once: have all?
  [[nodiscard]] bool pending(std::size_t index) const;  // any thread may ask
  static constexpr std::int64_t kLargest = 1 << 30;

 private:
  [[nodiscard]] bool poll(bool& moved);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// How a thread waits for other processes: it polls a few times, then sleeps shortly between polls, so that the awaited
// process gets the core.
class Backoff {
 public:
  void pause();
  void reset() { count_ = 0; }

 private:
  int count_ = 0;
};

}  // namespace fsdp::mpi
