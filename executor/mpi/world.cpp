#include "executor/mpi/world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "executor/mpi/process_control.h"
#include "executor/ranks/signals.h"
#include "models/input/error.h"

namespace fsdp {

Launch& join_launch() { return mpi::World::get(); }

namespace mpi {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
constexpr auto kLook = 10ms;          // how often the guard looks
constexpr auto kJoin = 60s;           // for all processes to start
constexpr auto kAfterSignal = 500ms;  // launchers kill a second or more after SIGTERM
constexpr auto kLastMoment = 200ms;
constexpr auto kLauncherEnds = 2500ms;
constexpr auto kGrace = 6s;
constexpr int kMachineFailed = 3;

std::string join_hosts(std::int64_t ranks) {
  constexpr int longest = 64;
  std::array<char, longest> mine{};
  ::gethostname(mine.data(), longest - 1);
  std::vector<char> all(static_cast<std::size_t>(ranks) * longest);
  gather_from_all(mine.data(), all.data(), longest);
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> by_host;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const std::string host(all.data() + r * longest);
    auto found = std::find_if(by_host.begin(), by_host.end(), [&](const auto& h) { return h.first == host; });
    if (found == by_host.end()) found = by_host.insert(found, {host, {}});
    found->second.push_back(r);
  }
  std::string text;
  for (const auto& [host, members] : by_host)
    text += fmt::format("{}{} (rank{} {})", text.empty() ? "" : ", ", host, members.size() > 1 ? "s" : "",
                        fmt::join(members, " "));
  return text;
}

}  // namespace

World& World::get() {
  static World* const world = new World;  // on purpose never destroyed: the guard and the end of the process use it
  return *world;
}

World::World() : main_thread_(std::this_thread::get_id()) {
  note_signals();
  guard_ = std::thread([this] { guard(); });
  try {
    const Joined j = join();
    rank_ = j.rank;
    ranks_ = j.ranks;
    join_board();
    hosts_ = join_hosts(ranks_);
    channel_ = std::make_unique<Channel>();
    finalize_ = std::make_unique<Channel>();
  } catch (...) {
    ending_ = true;
    guard_.join();
    remove_board_of_start_up();
    throw;
  }
  ::on_exit(&World::called_at_exit, this);
  joined_ = true;
}

// The first rank names the folder, and makes it when all know the name: whoever ends meanwhile, the others take it
// away. On each machine those that find each other's process there see each other from now on.
void World::join_board() {
  std::array<char, 512> name{};
  std::string problem;
  if (rank_ == 0) {
    const std::string folder = new_board_folder();
    if (folder.size() < name.size()) std::memcpy(name.data(), folder.data(), folder.size());
    else problem = folder + ": this path is too long; set TMPDIR to a shorter folder";
  }
  share_from_first(name.data(), static_cast<int>(name.size()));
  {
    const std::lock_guard lock(mutex_);
    board_folder_ = name.data();
  }
  meet_all();
  try {
    if (rank_ == 0 && problem.empty()) make_board_folder(board_folder_);
  } catch (const MachineError& e) {
    problem = e.what();
    name[0] = '\0';
  }
  share_from_first(name.data(), static_cast<int>(name.size()));
  if (name[0] == '\0')
    throw MachineError(problem.empty() ? "rank 0 could not make a folder for temporary files" : problem);
  board_ = std::make_unique<StatusBoard>(name.data(), ranks_);
  Slot& mine = *new (&board_->slot(rank_)) Slot;
  mine.pid = ::getpid();
  mine.started = look_at(::getpid()).started;
  mine.life = static_cast<std::int32_t>(Life::here);
  meet_all();
  // Where a rank that ends has taken the board away, some may have made another one. All ends soon: by their guards.
  while (!board_->in_place()) std::this_thread::sleep_for(kLook);
  visible_.assign(static_cast<std::size_t>(ranks_), 0);
  stopped_looks_.assign(static_cast<std::size_t>(ranks_), 0);
  for (std::int64_t r = 0; r < ranks_; ++r) {
    const Slot& s = board_->slot(r);
    const Process p = s.pid > 0 ? look_at(s.pid) : Process{};
    visible_[static_cast<std::size_t>(r)] = r == rank_ || (p.state != ProcessState::gone && p.started == s.started);
  }
  meet_all();
  board_->unlink();
  on_board_ = true;
  const std::lock_guard lock(mutex_);
  board_folder_.clear();
}

// Again and again while this process ends: its other thread may be about to make it.
void World::remove_board_of_start_up() {
  const std::lock_guard lock(mutex_);
  if (!board_folder_.empty()) remove_board(board_folder_);
}

std::int64_t World::ranks_here() const { return std::count(visible_.begin(), visible_.end(), 1); }

std::int64_t World::place_here() const { return std::count(visible_.begin(), visible_.begin() + rank_, 1); }

bool World::is_reporter() { return !heard_from_afar_ && board_->claim_reporter(); }

std::shared_ptr<host::RankStatus> World::fresh_status() {
  host::RankStatus& j = board_->slot(rank_).status;
  new (&j) host::RankStatus;
  return {std::shared_ptr<void>(), &j};
}

std::int32_t World::steps_begun(std::int64_t rank) {
  const bool known = rank >= 0 && rank < ranks_ && sees(rank);
  return board_->slot(known ? rank : rank_).status.begun.load();
}

std::uint64_t World::progress() {
  std::uint64_t sum = 0;
  for (std::int64_t r = 0; r < ranks_; ++r)
    if (sees(r))
      sum += board_->slot(r).progress.load() + static_cast<std::uint64_t>(board_->slot(r).status.begun.load());
  return sum;
}

World::Blame World::worst() {
  Blame worst;
  for (std::int64_t r = 0; r < ranks_; ++r)
    if (sees(r))
      if (host::Doing d = host::doing(board_->slot(r).status); d.blame > worst.doing.blame) worst = {r, std::move(d)};
  return worst;
}

void World::run_begins(std::shared_ptr<host::RunControl> control) {
  {
    const std::lock_guard lock(mutex_);
    control_ = control;
    sentence_.clear();
  }
  if (stale_messages_.exchange(false)) channel_->renew(*control);
}

void World::run_ends(bool failed, std::shared_ptr<const void> left_behind) {
  const std::lock_guard lock(mutex_);
  if (!failed) {
    control_.reset();
    return;
  }
  stale_messages_ = true;  // of a failed run the control stays: whoever is lost from now on is a consequence
  left_behind_.push_back(std::move(left_behind));
}

// The thread that lives as long as the launch.
void World::guard() {
  const auto begin = Clock::now();
  for (std::uint64_t look = 0; !ending_; ++look) {
    std::this_thread::sleep_for(kLook);
    const int signal = noted_signal();
    if (!joined_ && Clock::now() - begin > kJoin)
      end_start_up(kMachineFailed, joined_, [&] {
        return fmt::format("mpi: not all processes of this launch have started within {} s; seen on this machine: {}",
                           kJoin.count(), start_up_.seen());
      });
    if (!on_board_) {
      guard_start_up(signal);
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      if (control_) board_->slot(rank_).progress = control_->progress();
    }
    if (signal != 0) on_signal(signal);
    if (signal != 0 || look % 5 == 0) look_at_others();
    if (last_moment_ && Clock::now() > *last_moment_) end_now(kMachineFailed, sentence_);
  }
}

// Before the ranks share a board. A launcher that sees a rank die ends the others: they look for it first.
void World::guard_start_up(int signal) {
  const std::optional<StartUp::Lost> lost = start_up_.look();
  if (lost) {
    end_start_up(kMachineFailed, on_board_, [&] {
      if (lost->pid != 0) ::kill(static_cast<pid_t>(lost->pid), SIGKILL);  // by the reporter: others may see it die
      return fmt::format("rank {} {}, before all ranks had started", lost->rank, lost->how);
    });
  }
  if (signal == 0) return;
  if (!signalled_) {
    signalled_ = Clock::now();
    start_up_.tell_signal();
  }
  remove_board_of_start_up();
  if (Clock::now() - *signalled_ < kAfterSignal) return;
  const std::atomic<bool> never = false;  // what was told to end does
  end_start_up(128 + signal, never, [&] {
    const std::string why = fmt::format("interrupted by {}, before all ranks had started", signal_name(signal));
    if (const std::vector<std::int64_t> missing = start_up_.never_seen(); !missing.empty())
      return fmt::format("{}; {} never seen: a launcher ends the others when one dies", why,
                         missing.size() > 1 ? fmt::format("ranks {} were", fmt::join(missing, ", "))
                                            : fmt::format("rank {} was", missing.front()));
    return start_up_.rank() && !start_up_.all_signalled() ? fmt::format("rank {} was {}", *start_up_.rank(), why) : why;
  });
}

// The claim is kept until the others have seen the same and found it taken. No process ends by itself before the
// launcher has had time to end all: one that leaves while it connects to mpirun (Open MPI 4.1) can make that hang. Nor
// does one for which the start is `over` by then: what was seen of it does not end a run that goes on.
void World::end_start_up(int code, const std::atomic<bool>& over, const std::function<std::string()>& sentence) {
  if (over) return;
  const bool speaks = start_up_.claim_reporter();
  if (speaks) {
    const std::string line = "fsdp-plan: " + sentence() + "\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  for (const auto begin = Clock::now(); Clock::now() - begin < kLauncherEnds; std::this_thread::sleep_for(kLook))
    if (noted_signal() != 0) remove_board_of_start_up();  // the launcher kills next
  if (over) return;
  remove_board_of_start_up();
  if (speaks && on_board_) (void)board_->claim_reporter();  // ranks that have started since see this one go
  ::_exit(code);
}

void World::look_at_others() {
  for (std::int64_t r = 0; r < ranks_; ++r) {
    Slot& s = board_->slot(r);
    if (r == rank_ || !sees(r)) continue;
    const auto life = static_cast<Life>(s.life.load());
    if (life == Life::left) continue;
    const Process p = look_at(s.pid);
    const std::string stopped = fmt::format("is stopped (SIGSTOP): its process, {}, is killed", s.pid.load());
    if (p.state == ProcessState::gone || p.started != s.started) {
      // It may have left between the two looks.
      if (s.given_up != 0) lost(r, stopped);
      else if (static_cast<Life>(s.life.load()) == Life::exits)
        lost(r, fmt::format("called exit({})", s.exit_status.load()));
      else if (static_cast<Life>(s.life.load()) == Life::here)
        lost(r, fmt::format("died: its process, {}, was killed or crashed", s.pid.load()));
      continue;
    }
    int& looks = stopped_looks_[static_cast<std::size_t>(r)];
    looks = p.state == ProcessState::stopped ? looks + 1 : 0;
    if (looks == kStoppedLooks) {
      lost(r, stopped);
      s.given_up = 1;
      ::kill(static_cast<pid_t>(s.pid.load()), SIGKILL);
    }
  }
}

void World::lost(std::int64_t rank, const std::string& how) {
  const host::Doing doing = host::doing(board_->slot(rank).status);
  std::shared_ptr<host::RunControl> control;
  {
    const std::lock_guard lock(mutex_);
    control = control_;
    if (control && control->failed()) return;
    sentence_ = fmt::format("rank {} {}", rank, how);
    if (control) sentence_ += fmt::format("; seen last: it {}", doing.what);
  }
  if (!control) end_now(kMachineFailed, sentence_);
  control->fail(rank, doing.op, sentence_);
  last_moment_ = Clock::now() + kGrace;
}

// When a rank has died the launcher ends the others: there is a moment to find out which.
void World::on_signal(int signal) {
  if (signalled_ && last_moment_ && *last_moment_ <= *signalled_ + kAfterSignal + kLastMoment) return;
  if (!signalled_) signalled_ = Clock::now();
  leaving_ = true;
  board_->slot(rank_).signal = signal;
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    failed = control_ && control_->failed();
  }
  if (failed) last_moment_ = *signalled_ + kAfterSignal + kLastMoment;
  else if (Clock::now() - *signalled_ > kAfterSignal) end_now(128 + signal, interrupted(signal));
}

// Names this rank, unless the signal came to all ranks of this machine.
std::string World::interrupted(int signal) {
  bool all = true;
  for (std::int64_t r = 0; r < ranks_; ++r)
    if (sees(r) && board_->slot(r).signal == 0) all = false;
  if (all) return fmt::format("interrupted by {}", signal_name(signal));
  std::string text = fmt::format("rank {} was interrupted by {}", rank_, signal_name(signal));
  const std::lock_guard lock(mutex_);
  if (control_) text += fmt::format("; it {}", host::doing(board_->slot(rank_).status).what);
  return text;
}

void World::end_now(int code, const std::string& sentence) {
  if (board_) {
    board_->slot(rank_).life = static_cast<std::int32_t>(Life::left);
    board_->unlink();
  }
  if (!sentence.empty() && (!board_ || is_reporter())) {
    const std::string line = "fsdp-plan: " + sentence + "\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  ::_exit(code);
}

void World::end(int status) {
  board_->slot(rank_).life = static_cast<std::int32_t>(Life::left);
  if (ranks_ > 1 && board_->claim_abort()) abort_all(status);
  ::_exit(status);
}

int World::all_end_as_first(int status) {
  agreed_status_ = std::stoi(exchange_between_runs(std::to_string(status)).front());
  return agreed_status_;
}

void World::called_at_exit(int status, void* self) { static_cast<World*>(self)->at_exit(status); }

void World::at_exit(int status) {
  Slot& mine = board_->slot(rank_);
  bool running = false;
  {
    const std::lock_guard lock(mutex_);
    running = control_ && !control_->failed();
  }
  if (running) {  // by a kernel, say: other threads are in the middle of something
    mine.exit_status = status;
    mine.life = static_cast<std::int32_t>(Life::exits);
    ::_exit(status == 0 ? kMachineFailed : status);
  }
  const auto left = [&] { mine.life = static_cast<std::int32_t>(Life::left); };
  if (status != 0 && status != agreed_status_ && ranks_ > 1) {
    left();
    if (board_->claim_abort()) abort_all(status);
    return;
  }
  if (std::this_thread::get_id() != main_thread_) return left();
  finalize_barrier();
  left();
  leave();
  ending_ = true;
  guard_.join();
}

// Returns when every rank is about to end: MPI's own end, which cannot be left, then takes no time.
void World::finalize_barrier() {
  const host::RunControl never_fails;  // the guard ends the process when a rank is lost
  Requests messages(*finalize_, 2 * static_cast<std::size_t>(ranks_));
  std::vector<char> words(static_cast<std::size_t>(ranks_) + 1);
  for (std::int64_t r = 0; r < ranks_; ++r)
    if (r != rank_) (void)messages.receive(r, 0, &words[static_cast<std::size_t>(r)], 1);
  for (std::int64_t r = 0; r < ranks_; ++r)
    if (r != rank_) (void)messages.send(r, 0, &words.back(), 1);
  messages.wait(never_fails);
}

}  // namespace mpi
}  // namespace fsdp
