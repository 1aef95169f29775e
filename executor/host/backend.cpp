// Ranks as threads of one process. Always built; what other backends are compared with.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <system_error>

#include "executor/host/device.h"
#include "executor/ranks/mailbox.h"
#include "executor/ranks/processor.h"
#include "executor/ranks/watch.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

using host::Clock;

// By rank.
std::vector<host::Links> make_links(const MeshShape& mesh, std::span<const Comm> sized,
                                    const std::shared_ptr<host::RunControl>& control) {
  const std::int64_t ranks = mesh.ranks();
  const auto mailbox = std::make_shared<host::Mailbox>(ranks, control);
  std::vector<host::Links> links(static_cast<std::size_t>(ranks));
  for (host::Links& l : links)
    l.exchange = [mailbox](std::int64_t rank, const std::string& mine) { return mailbox->exchange(rank, mine); };
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    for (const host::Membership& m : host::memberships(mesh, sized, rank)) {
      if (m.ranks.front() != rank) continue;
      const auto group = std::make_shared<host::ThreadGroup>(m.ranks);
      for (const std::int64_t r : m.ranks) links[static_cast<std::size_t>(r)].groups.push_back({m.comm, group});
    }
  return links;
}

// One call of Backend::run. Threads hold what they use by shared_ptr, so that one that cannot be ended can be left
// behind.
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
        control->fail(device->rank(), -1,
                      fmt::format("rank {}: this machine has no thread for it ({})", device->rank(), e.what()));
        return;
      }
    }
  }

  // True: every thread has ended. False: the run failed and some thread did not end soon.
  bool watch(const std::vector<std::int64_t>& local_ranks, double watchdog_seconds) {
    constexpr double standstill = 3.0;  // seconds; far beyond any pause between a wait that ends and what it lets go on
    return host::watch(*control, local_ranks, [this](std::size_t i) { return devices[i]->doing(); },
                       {watchdog_seconds, std::min(watchdog_seconds, standstill)});
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
  [[nodiscard]] std::int64_t ranks() const override { return mesh_.ranks(); }
  [[nodiscard]] MeshShape mesh() const override { return mesh_; }

  [[nodiscard]] std::vector<std::int64_t> local_ranks() const override {
    std::vector<std::int64_t> all(static_cast<std::size_t>(ranks()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  void run(const std::function<void(Device&)>& body, std::span<const Comm> sized) override {
    HostRun run;
    run.body = std::make_shared<const std::function<void(Device&)>>(body);
    std::vector<host::Links> links = make_links(mesh_, sized, run.control);
    for (const std::int64_t r : local_ranks())
      run.devices.push_back(
          std::make_shared<host::HostDevice>(r, std::move(links[static_cast<std::size_t>(r)]), run.control, epoch_));
    run.start();
    run.finish(run.watch(local_ranks(), options_.watchdog_seconds));
  }

 private:
  MeshShape mesh_;
  BackendOptions options_;
  Clock::time_point epoch_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(MeshShape mesh, const BackendOptions& options) {
  constexpr std::int64_t most = host::kMostThreads;  // of one process: six times as many threads
  if (!host::ranks_within(mesh, most))
    throw InputError("mesh", fmt::format("{} ranks cannot run on the host backend", host::mesh_text(mesh)),
                     fmt::format("use 1 to {} ranks", most));
  if (!(options.watchdog_seconds > 0)) throw InputError("watchdog_seconds", "must be positive");
  return std::make_unique<HostBackend>(mesh, options);
}

}  // namespace fsdp
