// The processes of this launch on this machine, before MPI has connected them: each announces itself, and the others
// find it in /proc by what the launcher wrote into its environment. So a rank that dies or is stopped meanwhile can be
// named.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/mpi/status_board.h"

namespace fsdp::mpi {

class StartUp {
 public:
  StartUp();  // reads this process's environment, and announces it as its rank

  struct Lost {
    std::int64_t rank = -1;
    std::string how;       // "is stopped (SIGSTOP)"
    std::int64_t pid = 0;  // to kill; 0: it is gone
  };
  // Looks once at all processes, at most every 50 ms, and at those of the other ranks alone as soon as it has found
  // all. A rank is lost when its process is gone, or when it was stopped at 60 looks in a row (3 s, more on a busy
  // machine: a launch that is suspended as a whole and goes on has lost nobody).
  [[nodiscard]] std::optional<Lost> look();
  // Ranks that this machine should have, as far as the launcher says so, and that no look has found. Empty: unknown.
  [[nodiscard]] std::vector<std::int64_t> never_seen() const;
  [[nodiscard]] bool found_all() const;    // of this machine, as far as the launcher says how many
  [[nodiscard]] std::string seen() const;  // "ranks 0 2 3 of 4"

  [[nodiscard]] std::optional<std::int64_t> rank() const { return rank_; }  // as the launcher says
  // True in exactly one process: the first caller, whose claim every look of the others sees until that process ends.
  [[nodiscard]] bool claim_reporter() const { return !other_reports_ && claim("reporter"); }
  // Tells the others that a signal came here. To be called once.
  void tell_signal() const;
  [[nodiscard]] bool all_signalled() const;  // every rank that is here

 private:
  struct Peer {
    std::int64_t rank = -1, pid = 0, started = 0;
    int stopped_looks = 0;  // in a row
  };
  [[nodiscard]] bool claim(const std::string& what) const;
  [[nodiscard]] bool is_claimed(const std::string& what, bool without_socket) const;
  [[nodiscard]] bool with_socket(const std::string& what, bool without_socket,
                                 bool (*use)(int fd, const sockaddr*, socklen_t)) const;
  [[nodiscard]] bool has_peer(std::int64_t rank) const;
  void find_peers();

  std::string launch_;  // empty: no launcher that is known here
  std::string executable_, command_;
  std::optional<std::int64_t> rank_, ranks_, ranks_here_;
  std::vector<Peer> peers_;     // one a rank
  std::vector<Peer> silent_;    // stopped before they have announced themselves
  bool other_reports_ = false;  // it was seen; the process that does may have ended since
  std::int64_t looked_ = -1'000;
};

}  // namespace fsdp::mpi
