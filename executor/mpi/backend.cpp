// One rank per process: a HostDevice whose links to the other ranks go through MPI.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "executor/host/device.h"
#include "executor/host/processor.h"
#include "executor/mpi/exchange.h"
#include "executor/mpi/group.h"
#include "executor/mpi/world.h"
#include "models/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

using host::Clock;
using mpi::World;
using namespace std::chrono_literals;

enum Tag : int { kEnd = 1, kText = 2, kGroups = 16 };  // kText: two; kGroups: four for each communicator
constexpr std::int64_t kMostRanks = 4096;              // tags of MPI reach at least to 32767

int tag_of(Comm comm) {
  const std::int64_t size = comm.kind == Communicator::reshard ? comm.size : 0;
  return kGroups + 4 * static_cast<int>(static_cast<std::int64_t>(comm.kind) + size);
}

// How a rank's part of a run ended; every rank tells every other one.
struct End {
  std::int32_t failed = 0, op = -1, steps_begun = 0;
  std::int64_t rank = -1;
  std::array<char, 2000> text{};
};

class Ends {
 public:
  explicit Ends(World& world)
      : world_(world), n_(static_cast<std::size_t>(world.ranks())), all_(n_), heard_(n_, 0), receives_(world.channel(), n_),
        sends_(world.channel(), n_) {
    for (std::int64_t r = 0; r < world.ranks(); ++r)
      if (r != world.rank()) from_.push_back(r), (void)receives_.receive(r, kEnd, &all_[static_cast<std::size_t>(r)], sizeof(End));
  }
  [[nodiscard]] bool sent() const { return sent_; }
  void send(const End& mine) {
    all_[static_cast<std::size_t>(world_.rank())] = mine;
    for (const std::int64_t r : from_) (void)sends_.send(r, kEnd, &all_[static_cast<std::size_t>(world_.rank())], sizeof(End));
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
  [[nodiscard]] const std::optional<End>& heard() const { return first_; }  // the failure that this rank learned from another

 private:
  World& world_;
  std::size_t n_;
  std::vector<End> all_;
  std::vector<char> heard_;
  std::vector<std::int64_t> from_;
  mpi::Requests receives_, sends_;
  bool sent_ = false;
  std::optional<End> first_;
};

// One call of Backend::run in this process. What may still be used after a failure is held by shared_ptr.
struct MpiRun {
  World& world;
  double watchdog_seconds;
  std::shared_ptr<const std::function<void(Device&)>> body;
  std::shared_ptr<host::RunControl> control = std::make_shared<host::RunControl>();
  std::shared_ptr<host::HostDevice> device = nullptr;
  std::unique_ptr<Ends> ends = nullptr;
  std::thread thread = {};

  void start(MeshShape mesh, std::span<const std::int64_t> reshard, Clock::time_point epoch) {
    host::Links links;
    for (host::Membership& m : host::memberships(mesh, reshard, world.rank())) {
      const int tag = tag_of(m.comm);
      links.groups.push_back({m.comm, mpi::make_group(world.channel(), std::move(m.ranks), world.rank(), tag)});
    }
    links.exchange = [w = &world, c = control](std::int64_t rank, const std::string& mine) {
      return mpi::exchange_texts(w->channel(), *c, rank, w->ranks(), kText, mine);
    };
    links.journal = world.fresh_journal();
    device = std::make_shared<host::HostDevice>(world.rank(), std::move(links), control, epoch);
    ends = std::make_unique<Ends>(world);
    control->thread_starts();
    thread = std::thread([d = device, b = body, c = control] {
      d->run_body(*b);
      c->thread_ends();
    });
  }

  [[nodiscard]] ProcessFailure failure() const {
    try {
      control->throw_if_failed();
    } catch (const RankFailure& e) {
      const bool heard = ends && ends->heard();
      return {e.rank(), e.op(), heard ? ends->heard()->steps_begun : world.steps_begun(e.rank()), e.what()};
    }
    return {-1, -1, 0, ""};
  }

  void send_end() {
    End mine;
    if (control->failed()) {
      const ProcessFailure f = failure();
      mine = {1, f.op(), f.steps_begun(), f.rank(), {}};
      std::strncpy(mine.text.data(), f.what(), mine.text.size() - 1);
    }
    ends->send(mine);
  }

  void blame_somebody() {
    const World::Blame worst = world.worst();
    control->fail(worst.rank, worst.doing.op,
                  fmt::format("no rank has made progress for {:.3g} s: rank {} {}", watchdog_seconds, worst.rank,
                              worst.rank == world.rank() ? device->doing().what : worst.doing.what));
  }

  // Returns when every rank has ended; after a failure, when this one has, or cannot be ended. True: no thread is left.
  bool watch() {
    constexpr auto for_others = 1000ms, for_threads = 4000ms, in_a_hurry = 50ms;
    std::uint64_t seen = world.progress();
    auto moved = Clock::now();
    std::optional<Clock::time_point> failed;
    for (bool ended = false;;) {
      if (!ended) ended = control->wait_for_end(5ms);
      else std::this_thread::sleep_for(500us);
      const bool complete = ends->complete(*control);
      if (control->failed() && !failed) failed = Clock::now();
      if ((ended || failed) && !ends->sent()) send_end();
      if (ended && complete) return true;
      if (failed) {
        const auto since = Clock::now() - *failed;
        if (since > (world.leaving() ? in_a_hurry : for_threads)) return ended;
        if (ended && since > (world.leaving() ? in_a_hurry : for_others)) return true;
      } else if (const std::uint64_t progress = world.progress(); progress != seen) {
        seen = progress;
        moved = Clock::now();
      } else if (std::chrono::duration<double>(Clock::now() - moved).count() > watchdog_seconds) {
        blame_somebody();
      }
    }
  }

  void join(bool all_ended) {
    if (all_ended) thread.join(), device->join();
    else thread.detach(), device->abandon(body);
  }
};

class MpiBackend final : public Backend {
 public:
  MpiBackend(World& world, MeshShape mesh, BackendOptions options) : world_(world), mesh_(mesh), options_(options), epoch_(Clock::now()) {}
  [[nodiscard]] std::string name() const override { return "mpi"; }
  [[nodiscard]] const Implementation& implementation() const override { return native_implementation(); }
  [[nodiscard]] std::string environment() const override {
    return fmt::format("{}; {}; {}", host::host_description(), mpi::library_version(), world_.hosts());
  }
  [[nodiscard]] std::int64_t ranks() const override { return world_.ranks(); }
  [[nodiscard]] MeshShape mesh() const override { return mesh_; }
  [[nodiscard]] std::vector<std::int64_t> local_ranks() const override { return {world_.rank()}; }

  void run(const std::function<void(Device&)>& body, std::span<const std::int64_t> reshard) override {
    const auto run = std::make_shared<MpiRun>(MpiRun{world_, options_.watchdog_seconds, std::make_shared<const std::function<void(Device&)>>(body)});
    world_.run_begins(run->control);
    run->start(mesh_, reshard, epoch_);
    run->join(run->watch());
    const bool failed = run->control->failed();
    world_.run_ends(failed, run);  // messages on their way may still be written into this run's memory
    if (failed) throw run->failure();
  }

 private:
  World& world_;
  MeshShape mesh_;
  BackendOptions options_;
  Clock::time_point epoch_;
};

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(MeshShape mesh, const BackendOptions& options) {
  if (!(options.watchdog_seconds > 0)) throw InputError("watchdog_seconds", "must be positive");
  if (mesh.replicate < 1 || mesh.shard < 1 || checked_mul(mesh.replicate, mesh.shard, "mesh") > kMostRanks)
    throw InputError("mesh", fmt::format("{} x {} ranks cannot run on the mpi backend", mesh.replicate, mesh.shard),
                     fmt::format("use 1 to {} ranks", kMostRanks));
  World& world = World::get();
  const std::int64_t needed = mesh.replicate * mesh.shard;
  if (needed != world.ranks())
    throw InputError("--backend mpi",
                     fmt::format("the plan is for {} x {} = {} ranks, but {} process{} started", mesh.replicate, mesh.shard, needed, world.ranks(),
                                 world.ranks() == 1 ? " was" : "es were"),
                     fmt::format("start as many as the plan has ranks: `mpirun -n {} fsdp-plan run --backend mpi ...`", needed));
  return std::make_unique<MpiBackend>(world, mesh, options);
}

}  // namespace fsdp
