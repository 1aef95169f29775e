// This process among those of the launch: joins them, watches the processes of its machine, and leaves.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor/mpi/start_up.h"
#include "executor/mpi/status_board.h"
#include "executor/mpi/wire.h"
#include "executor/mpi_backend.h"
#include "executor/ranks/control.h"

namespace fsdp::mpi {

class World final : public Launch {
 public:
  static World& get();  // joins at the first call

  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t ranks() const override { return ranks_; }
  [[nodiscard]] std::int64_t ranks_here() const override;
  [[nodiscard]] std::int64_t place_here() const override;
  [[nodiscard]] const std::string& hosts() const override { return hosts_; }
  [[nodiscard]] bool is_reporter() override;
  void all_end_with(int status) override { agreed_status_ = status; }
  [[nodiscard]] int all_end_as_first(int status) override;
  [[noreturn]] void end(int status) override;
  [[nodiscard]] const Channel& channel() const { return *channel_; }

  [[nodiscard]] std::shared_ptr<host::RankStatus> fresh_status();  // this rank's, on the status board
  // The rank is on this machine.
  [[nodiscard]] bool sees(std::int64_t rank) const { return visible_[static_cast<std::size_t>(rank)] != 0; }
  [[nodiscard]] std::int32_t steps_begun(std::int64_t rank);  // this rank's for ranks that it does not see
  [[nodiscard]] std::uint64_t progress();                     // of all ranks that it sees
  struct Blame {
    std::int64_t rank = -1;
    host::Doing doing{-1, -1, ""};
  };
  [[nodiscard]] Blame worst();  // the rank that most likely blocks the others

  // One run at a time. Between these calls a lost rank fails the run's control; at other times it ends the process.
  void run_begins(std::shared_ptr<host::RunControl>);
  void run_ends(bool failed, std::shared_ptr<const void> left_behind);
  [[nodiscard]] bool leaving() const { return leaving_.load(); }  // a signal asks this process to end soon
  void heard_from_afar() { heard_from_afar_ = true; }  // another machine saw the failure first, and reports it

 private:
  World();
  ~World() override = default;  // never called: it lasts as long as the process
  void join_board();
  void guard();
  void guard_start_up(int signal);
  void remove_board_of_start_up();
  void end_start_up(int code, const std::atomic<bool>& over, const std::function<std::string()>& sentence);
  void look_at_others();
  void lost(std::int64_t rank, const std::string& how);
  void on_signal(int signal);
  [[nodiscard]] std::string interrupted(int signal);
  [[noreturn]] void end_now(int code, const std::string& sentence);
  void at_exit(int status);
  void finalize_barrier();
  static void called_at_exit(int status, void* self);

  std::int64_t rank_ = 0, ranks_ = 1;
  std::string hosts_;
  std::unique_ptr<StatusBoard> board_;
  std::unique_ptr<Channel> channel_, finalize_;
  std::vector<char> visible_;
  std::vector<int> stopped_looks_;  // guard only: how many looks in a row found it stopped
  std::thread::id main_thread_;
  std::thread guard_;
  std::atomic<int> agreed_status_{0};
  StartUp start_up_;  // guard only
  std::atomic<bool> on_board_{false}, joined_{false}, ending_{false}, leaving_{false}, heard_from_afar_{false},
      stale_messages_{false};
  std::optional<std::chrono::steady_clock::time_point> last_moment_, signalled_;  // guard only

  std::mutex mutex_;  // protects the rest
  std::shared_ptr<host::RunControl> control_;
  std::string board_folder_;  // until all have mapped the board in it
  std::string sentence_;      // the error to print if the run cannot report it in time
  std::vector<std::shared_ptr<const void>> left_behind_;
};

}  // namespace fsdp::mpi
