#include "executor/mpi/process_control.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "executor/mpi/exchange.h"
#include "executor/mpi/world.h"
#include "executor/ranks/group.h"
#include "models/input/error.h"

namespace fsdp::mpi {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

enum Tag : int { kEnd = 1, kText = 2, kBetween = 4 };  // kText, kBetween: two
constexpr std::int64_t kMostRanks = 4096;

// How a rank's part of a run ended; every rank tells every other one.
struct End {
  std::int32_t failed = 0, op = -1, steps_begun = 0;
  std::int64_t rank = -1;
  std::array<char, 2000> text{};
};

class Ends {
 public:
  explicit Ends(World& world)
      : world_(world),
        n_(static_cast<std::size_t>(world.ranks())),
        all_(n_),
        heard_(n_, 0),
        receives_(world.channel(), n_),
        sends_(world.channel(), n_) {
    for (std::int64_t r = 0; r < world.ranks(); ++r)
      if (r != world.rank())
        from_.push_back(r), (void)receives_.receive(r, kEnd, &all_[static_cast<std::size_t>(r)], sizeof(End));
  }
  [[nodiscard]] bool sent() const { return sent_; }
  void send(const End& mine) {
    all_[static_cast<std::size_t>(world_.rank())] = mine;
    for (const std::int64_t r : from_)
      (void)sends_.send(r, kEnd, &all_[static_cast<std::size_t>(world_.rank())], sizeof(End));
    sent_ = true;
  }
  // True when all have said how they ended. A failure among what has come since the last call fails the run here too.
  [[nodiscard]] bool complete(host::RunControl& control) {
    const bool all = receives_.arrived();
    for (std::size_t i = 0; i < from_.size(); ++i) {
      const auto r = static_cast<std::size_t>(from_[i]);
      if (heard_[r] != 0 || receives_.pending(i)) continue;
      heard_[r] = 1;
      if (all_[r].failed == 0 || control.failed()) continue;
      if (!world_.sees(from_[i])) world_.heard_from_afar();
      first_ = all_[r];
      control.fail(first_->rank, first_->op, first_->text.data());
    }
    return all && sent_ && sends_.arrived();
  }
  [[nodiscard]] const std::optional<End>& heard() const {
    return first_;
  }  // the failure that this rank learned from another

 private:
  World& world_;
  std::size_t n_;
  std::vector<End> all_;
  std::vector<char> heard_;
  std::vector<std::int64_t> from_;
  Requests receives_, sends_;
  bool sent_ = false;
  std::optional<End> first_;
};

class ProcessControlPlane final : public host::ControlPlane, public std::enable_shared_from_this<ProcessControlPlane> {
 public:
  ProcessControlPlane(World& world, const host::WatchTimes& times) : world_(world), times_(times) {
    world_.run_begins(control_);
    ends_.emplace(world_);
  }
  [[nodiscard]] const std::shared_ptr<host::RunControl>& control() const override { return control_; }
  [[nodiscard]] std::shared_ptr<host::RankStatus> fresh_status() override { return world_.fresh_status(); }
  [[nodiscard]] std::vector<std::string> exchange(std::int64_t rank, const std::string& mine) override {
    return exchange_texts(world_.channel(), *control_, rank, world_.ranks(), kText, mine, texts_);
  }

  [[nodiscard]] bool watch(const std::function<host::Doing(std::size_t)>& doing) override {
    constexpr auto for_others = 1000ms, in_a_hurry = 50ms;
    const std::chrono::milliseconds for_threads = times_.grace;
    std::uint64_t seen = world_.progress();
    auto moved = Clock::now();
    std::optional<Clock::time_point> failed;
    for (bool ended = false;;) {
      if (!ended) ended = control_->wait_for_end(5ms);
      else std::this_thread::sleep_for(500us);
      const bool complete = ends_->complete(*control_);
      if (control_->failed() && !failed) failed = Clock::now();
      if ((ended || failed) && !ends_->sent()) send_end();
      if (ended && complete) return true;
      if (failed) {
        const auto since = Clock::now() - *failed;
        if (since > (world_.leaving() ? in_a_hurry : for_threads)) return ended;
        if (ended && since > (world_.leaving() ? in_a_hurry : for_others)) return true;
      } else if (const std::uint64_t progress = world_.progress(); progress != seen) {
        seen = progress;
        moved = Clock::now();
      } else if (std::chrono::duration<double>(Clock::now() - moved).count() > times_.watchdog_seconds) {
        blame_somebody(doing);
      }
    }
  }

  void end(std::shared_ptr<const void> used) override {
    const bool failed = control_->failed();
    if (failed) used_ = std::move(used);
    world_.run_ends(failed, failed ? shared_from_this() : nullptr);  // this one too is written into
    if (failed) throw failure();
  }

 private:
  [[nodiscard]] ProcessFailure failure() const {
    try {
      control_->throw_if_failed();
    } catch (const RankFailure& e) {
      return {e.rank(), e.op(), ends_->heard() ? ends_->heard()->steps_begun : world_.steps_begun(e.rank()), e.what()};
    }
    return {-1, -1, 0, ""};
  }

  void send_end() {
    End mine;
    if (control_->failed()) {
      const ProcessFailure f = failure();
      mine = {1, f.op(), f.steps_begun(), f.rank(), {}};
      std::strncpy(mine.text.data(), f.what(), mine.text.size() - 1);
    }
    ends_->send(mine);
  }

  void blame_somebody(const std::function<host::Doing(std::size_t)>& doing) {
    const World::Blame worst = world_.worst();
    control_->fail(worst.rank, worst.doing.op,
                   fmt::format("no rank has made progress for {:.3g} s: rank {} {}", times_.watchdog_seconds,
                               worst.rank, worst.rank == world_.rank() ? doing(0).what : worst.doing.what));
  }

  World& world_;
  const host::WatchTimes times_;
  const std::shared_ptr<host::RunControl> control_ = std::make_shared<host::RunControl>();
  std::optional<Ends> ends_;
  Texts texts_;
  std::shared_ptr<const void> used_;
};

}  // namespace

Launch& join_launch_for(MeshShape mesh, const std::string& backend) {
  if (!host::ranks_within(mesh, kMostRanks))
    throw InputError("mesh", fmt::format("{} ranks cannot run on the {} backend", host::mesh_text(mesh), backend),
                     fmt::format("use 1 to {} ranks", kMostRanks));
  World& world = World::get();
  const std::int64_t needed = mesh.ranks();
  if (needed != world.ranks())
    throw InputError(setting(backend + "_backend"),
                     fmt::format("the plan is for {} = {} ranks, but {} process{} started", host::mesh_text(mesh),
                                 needed, world.ranks(), world.ranks() == 1 ? " was" : "es were"),
                     fmt::format("start as many as the plan has ranks: `mpirun -n {} fsdp-plan run --backend {} ...`",
                                 needed, backend));
  return world;
}

std::shared_ptr<host::ControlPlane> make_process_control_plane(const host::WatchTimes& times) {
  return std::make_shared<ProcessControlPlane>(World::get(), times);
}

std::vector<std::string> exchange_between_runs(const std::string& mine) {
  const host::RunControl never_fails;  // the guard ends the process when a rank is lost
  World& world = World::get();
  Texts texts;
  return exchange_texts(world.channel(), never_fails, world.rank(), world.ranks(), kBetween, mine, texts);
}

}  // namespace fsdp::mpi
