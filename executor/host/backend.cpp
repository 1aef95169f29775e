// Ranks as threads of one process. Always built; what other backends are compared with.
#include <fmt/format.h>
#include <sys/utsname.h>

#include <fstream>
#include <optional>
#include <string>

#include "executor/host/device.h"
#include "models/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

using host::Clock;

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  utsname u{};
  return ::uname(&u) == 0 ? u.machine : "unknown processor";
}

// Shard groups are consecutive ranks, replicate groups are `shard` apart.
std::vector<host::Groups> make_groups(const MeshShape& mesh) {
  const auto ranks = static_cast<std::size_t>(mesh.replicate * mesh.shard);
  std::vector<host::Groups> groups(ranks);
  const auto add = [&](Communicator comm, std::int64_t first, std::int64_t count, std::int64_t stride) {
    std::vector<std::int64_t> members;
    for (std::int64_t i = 0; i < count; ++i) members.push_back(first + i * stride);
    const auto group = std::make_shared<host::Group>(members);
    for (const std::int64_t r : members) groups[static_cast<std::size_t>(r)][static_cast<std::size_t>(comm)] = group;
  };
  for (std::int64_t r = 0; r < mesh.replicate; ++r) add(Communicator::shard, r * mesh.shard, mesh.shard, 1);
  for (std::int64_t s = 0; s < mesh.shard; ++s) add(Communicator::replicate, s, mesh.replicate, mesh.shard);
  add(Communicator::world, 0, mesh.replicate * mesh.shard, 1);
  return groups;
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
      ranks.emplace_back([device, shared_body = body, shared_control = control] {
        device->run_body(*shared_body);
        shared_control->thread_ends();
      });
    }
  }

  void blame_somebody(double seconds) const {
    host::HostDevice::Doing worst{-1, -1, ""};
    std::int64_t rank = -1;
    for (const auto& device : devices)
      if (auto doing = device->doing(); doing.blame > worst.blame) {
        worst = std::move(doing);
        rank = device->rank();
      }
    control->fail(rank, worst.op, fmt::format("no rank has made progress for {:.3g} s: rank {} {}", seconds, rank, worst.what));
  }

  // True: every thread has ended. False: the run failed and some thread did not end within `grace`.
  bool watch(double watchdog_seconds) {
    constexpr auto poll = std::chrono::milliseconds(20);
    constexpr auto grace = std::chrono::seconds(4);
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
      } else if (std::chrono::duration<double>(Clock::now() - moved).count() > watchdog_seconds) {
        blame_somebody(watchdog_seconds);
      }
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
  [[nodiscard]] std::string environment() const override {
    return fmt::format("{}, {} cores", processor_name(), std::thread::hardware_concurrency());
  }
  [[nodiscard]] std::int64_t ranks() const override { return mesh_.replicate * mesh_.shard; }
  [[nodiscard]] MeshShape mesh() const override { return mesh_; }

  void run(const std::function<void(Device&)>& body) override {
    HostRun run;
    run.body = std::make_shared<const std::function<void(Device&)>>(body);
    const std::vector<host::Groups> groups = make_groups(mesh_);
    for (std::int64_t r = 0; r < ranks(); ++r)
      run.devices.push_back(std::make_shared<host::HostDevice>(r, groups[static_cast<std::size_t>(r)], run.control, epoch_));
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
  constexpr std::int64_t most = 256;  // threads of one process: six times as many
  if (mesh.replicate < 1 || mesh.shard < 1 || checked_mul(mesh.replicate, mesh.shard, "mesh") > most)
    throw InputError("mesh", fmt::format("{} x {} ranks cannot run on the host backend", mesh.replicate, mesh.shard),
                     fmt::format("use 1 to {} ranks", most));
  if (!(options.watchdog_seconds > 0)) throw InputError("watchdog_seconds", "must be positive");
  return std::make_unique<HostBackend>(mesh, options);
}

}  // namespace fsdp
