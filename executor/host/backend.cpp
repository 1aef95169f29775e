// Ranks as threads of one process. Always built; what other backends are compared with.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>

#include "executor/host/device.h"
#include "executor/host/mailbox.h"
#include "executor/host/processor.h"
#include "executor/signals.h"
#include "models/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

using host::Clock;

// By rank.
std::vector<host::Links> make_links(const MeshShape& mesh, std::span<const std::int64_t> reshard, const std::shared_ptr<host::RunControl>& control) {
  const std::int64_t ranks = mesh.replicate * mesh.shard;
  const auto mailbox = std::make_shared<host::Mailbox>(ranks, control);
  std::vector<host::Links> links(static_cast<std::size_t>(ranks));
  for (host::Links& l : links)
    l.exchange = [mailbox](std::int64_t rank, const std::string& mine) { return mailbox->exchange(rank, mine); };
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    for (const host::Membership& m : host::memberships(mesh, reshard, rank)) {
      if (m.ranks.front() != rank) continue;
      const auto group = std::make_shared<host::ThreadGroup>(m.ranks);
      for (const std::int64_t r : m.ranks) links[static_cast<std::size_t>(r)].groups.push_back({m.comm, group});
    }
  return links;
}

// One call of Backend::run. Threads hold what they use by shared_ptr, so that one that cannot be ended can be left behind.
struct HostRun {
  std::shared_ptr<host::RunControl> control = std::make_shared<host::RunControl>();
  std::shared_ptr<const std::function<void(Device&)>> body;
  std::vector<std::shared_ptr<host::HostDevice>> devices;
  std::vector<std::thread> ranks;

  void start() {
    for (const auto& device : devices) {
      control->thread_starts();
      try {
        ranks.emplace_back([device, shared_body = body, shared_control = control] {
          device->run_body(*shared_body);
          shared_control->thread_ends();
        });
      } catch (const std::system_error& e) {
        control->thread_ends();
        control->fail(device->rank(), -1, fmt::format("rank {}: this machine has no thread for it ({})", device->rank(), e.what()));
        return;
      }
    }
  }

  // Nothing has moved for so long. Ranks that all wait will wait for ever; a kernel or a host that is at work gets the watchdog's time.
  void blame_somebody(double seconds, double watchdog_seconds) const {
    std::vector<host::Doing> doing;
    for (const auto& device : devices) doing.push_back(device->doing());
    const auto worst = std::max_element(doing.begin(), doing.end(), [](const auto& a, const auto& b) { return a.blame < b.blame; });
    if (worst->blame >= host::kRuns && seconds <= watchdog_seconds) return;
    const std::int64_t rank = devices[static_cast<std::size_t>(worst - doing.begin())]->rank();
    std::string what = fmt::format("no rank has made progress for {:.2g} s: rank {} {}", seconds, rank, worst->what);
    for (const std::int64_t other : worst->waits_for)
      what += fmt::format("; rank {} {}", other, doing[static_cast<std::size_t>(other)].what);
    control->fail(rank, worst->op, what);
  }

  void interrupt(int signal) const {
    const host::Doing doing = devices.front()->doing();
    control->fail(0, doing.op, fmt::format("interrupted by {}; rank 0 {}", signal_name(signal), doing.what));
  }

  // True: every thread has ended. False: the run failed and some thread did not end within `grace`.
  bool watch(double watchdog_seconds) {
    constexpr auto poll = std::chrono::milliseconds(20);
    constexpr auto grace = std::chrono::seconds(4);
    const double standstill = std::min(watchdog_seconds, 3.0);  // far beyond any pause between a wait that ends and what it lets go on
    std::uint64_t seen = control->progress();
    auto moved = Clock::now();
    std::optional<Clock::time_point> failed;
    while (!control->wait_for_end(poll)) {
      if (control->failed()) {
        if (!failed) failed = Clock::now();
        if (Clock::now() - *failed > grace) return false;
      } else if (const std::uint64_t progress = control->progress(); progress != seen) {
        seen = progress;
        moved = Clock::now();
      } else if (const double still = std::chrono::duration<double>(Clock::now() - moved).count(); still > standstill) {
        blame_somebody(still, watchdog_seconds);
      }
      if (const int signal = noted_signal(); signal != 0 && !control->failed()) interrupt(signal);
    }
    return true;
  }

  void finish(bool all_ended) {
    for (std::thread& t : ranks) {
      if (all_ended) t.join();
      else t.detach();
    }
    for (const auto& device : devices) {
      if (all_ended) device->join();
      else device->abandon(body);
    }
    control->throw_if_failed();
  }
};

class HostBackend final : public Backend {
 public:
  HostBackend(MeshShape mesh, BackendOptions options) : mesh_(mesh), options_(options), epoch_(Clock::now()) {}
  [[nodiscard]] std::string name() const override { return "host"; }
  [[nodiscard]] const Implementation& implementation() const override { return native_implementation(); }
  [[nodiscard]] std::string environment() const override { return host::host_description(); }
  [[nodiscard]] std::int64_t ranks() const override { return mesh_.replicate * mesh_.shard; }
  [[nodiscard]] MeshShape mesh() const override { return mesh_; }

  [[nodiscard]] std::vector<std::int64_t> local_ranks() const override {
    std::vector<std::int64_t> all(static_cast<std::size_t>(ranks()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  void run(const std::function<void(Device&)>& body, std::span<const std::int64_t> reshard) override {
    HostRun run;
    run.body = std::make_shared<const std::function<void(Device&)>>(body);
    std::vector<host::Links> links = make_links(mesh_, reshard, run.control);
    for (const std::int64_t r : local_ranks())
      run.devices.push_back(std::make_shared<host::HostDevice>(r, std::move(links[static_cast<std::size_t>(r)]), run.control, epoch_));
    run.start();
    run.finish(run.watch(options_.watchdog_seconds));
  }

 private:
  MeshShape mesh_;
  BackendOptions options_;
  Clock::time_point epoch_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(MeshShape mesh, const BackendOptions& options) {
  constexpr std::int64_t most = host::kMostThreads;  // of one process: six times as many threads
  if (mesh.replicate < 1 || mesh.shard < 1 || checked_mul(mesh.replicate, mesh.shard, "mesh") > most)
    throw InputError("mesh", fmt::format("{} x {} ranks cannot run on the host backend", mesh.replicate, mesh.shard),
                     fmt::format("use 1 to {} ranks", most));
  if (!(options.watchdog_seconds > 0)) throw InputError("watchdog_seconds", "must be positive");
  return std::make_unique<HostBackend>(mesh, options);
}

}  // namespace fsdp
