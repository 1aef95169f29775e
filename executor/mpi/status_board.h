// Status board of the processes of one machine: a small file that all of them map, without MPI. Each rank keeps its
// status here, so that errors can name what a killed or stopped rank did last. The file is unlinked as soon as all have
// mapped it, and before that by any rank that ends: all know its name before it is made. So nothing is left behind
// but where all are killed at once meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "executor/ranks/rank_status.h"

namespace fsdp::mpi {

enum class Life : std::int32_t { absent, here, left, exits };  // exits: exit() was called in the middle of a run

struct Slot {
  host::RankStatus status;
  std::atomic<std::int64_t> pid{0}, started{0};  // the start time tells a process from a later one of the same pid
  std::atomic<std::int32_t> life{static_cast<std::int32_t>(Life::absent)}, exit_status{0};
  std::atomic<std::uint64_t> progress{0};
  std::atomic<std::int32_t> signal{0};    // that came to it, and ends it
  std::atomic<std::int32_t> given_up{0};  // it was stopped for so long that another rank kills it
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

class StatusBoard {
 public:
  // `folder`: of this user; it does not exist yet, or another rank made it for this. MachineError.
  StatusBoard(const std::string& folder, std::int64_t ranks);
  ~StatusBoard();
  StatusBoard(const StatusBoard&) = delete;
  StatusBoard& operator=(const StatusBoard&) = delete;

  [[nodiscard]] bool in_place() const;  // false: a rank that ends has taken the file away
  void unlink() noexcept;               // once all have mapped it; again: nothing
  [[nodiscard]] Slot& slot(std::int64_t rank) { return slots_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool claim_reporter() { return claim(0); }  // true in exactly one process: the first caller
  [[nodiscard]] bool claim_abort() { return claim(1); }

 private:
  using Claims = std::array<std::atomic<std::int32_t>, 2>;
  [[nodiscard]] bool claim(std::size_t which);

  std::string folder_;  // empty: unlinked
  void* mapped_ = nullptr;
  std::uint64_t device_ = 0, inode_ = 0;  // of the file
  std::size_t bytes_ = 0;
  Claims* claims_ = nullptr;
  std::span<Slot> slots_;
};

// A folder for a board in the system's folder for temporary files: the path of one that nobody has, to be made once
// every rank knows it (MachineError), and taken away with what a board left in it, if it is there.
[[nodiscard]] std::string new_board_folder();
void make_board_folder(const std::string& path);
void remove_board(const std::string& folder);

enum class ProcessState : std::uint8_t { runs, stopped, gone };
struct Process {
  ProcessState state = ProcessState::gone;
  std::int64_t started = 0, parent = 0;
};
[[nodiscard]] Process look_at(std::int64_t pid);  // a zombie is gone
// A process that was stopped at so many looks in a row, 50 ms apart or more, is given up: after 3 s, or more on a busy
// machine.
inline constexpr int kStoppedLooks = 60;

}  // namespace fsdp::mpi
