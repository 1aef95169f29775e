// One rank per process: a HostDevice whose links to the other ranks go through MPI.
#include <fmt/format.h>

#include <string>
#include <thread>

#include "executor/host/device.h"
#include "executor/mpi/group.h"
#include "executor/mpi/process_control.h"
#include "executor/mpi/world.h"
#include "executor/ranks/processor.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

using host::Clock;
using mpi::World;

constexpr int kGroups = 16;  // the first tag of groups: four for each communicator; MPI's tags reach at least to 32767
constexpr std::chrono::seconds kGrace{4};

int tag_of(Comm comm) {
  const std::int64_t group =
      comm.kind == Communicator::reshard ? kCommunicators + comm.size : static_cast<std::int64_t>(comm.kind);
  return kGroups + 4 * static_cast<int>(group);
}

class MpiBackend final : public Backend {
 public:
  MpiBackend(World& world, MeshShape mesh, BackendOptions options)
      : world_(world), mesh_(mesh), options_(options), epoch_(Clock::now()) {}
  [[nodiscard]] std::string name() const override { return "mpi"; }
  [[nodiscard]] const Implementation& implementation() const override { return native_implementation(); }
  [[nodiscard]] std::string environment() const override {
    return fmt::format("{}; {}; {}", host::host_description(), mpi::library_version(), world_.hosts());
  }
  [[nodiscard]] std::int64_t ranks() const override { return world_.ranks(); }
  [[nodiscard]] MeshShape mesh() const override { return mesh_; }
  [[nodiscard]] std::vector<std::int64_t> local_ranks() const override { return {world_.rank()}; }

  void run(const std::function<void(Device&)>& run_body, std::span<const Comm> sized) override {
    std::vector<host::Membership> memberships = host::memberships(mesh_, sized, world_.rank());
    const auto control_plane =
        mpi::make_process_control_plane({options_.watchdog_seconds, options_.watchdog_seconds, kGrace});
    const auto control = control_plane->control();
    host::Links links;
    for (host::Membership& m : memberships)
      links.groups.push_back(
          {m.comm, mpi::make_group(world_.channel(), std::move(m.ranks), world_.rank(), tag_of(m.comm))});
    links.exchange = [&all = *control_plane](std::int64_t rank, const std::string& mine) {
      return all.exchange(rank, mine);
    };
    links.status = control_plane->fresh_status();
    const auto device = std::make_shared<host::HostDevice>(world_.rank(), std::move(links), control, epoch_);
    const auto body = std::make_shared<const std::function<void(Device&)>>(run_body);
    control->thread_starts();
    std::thread thread([device, body, control] {
      device->run_body(*body);
      control->thread_ends();
    });
    if (control_plane->watch([&](std::size_t) { return device->doing(); })) thread.join(), device->join();
    else thread.detach(), device->abandon(body);
    control_plane->end(device);
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
  (void)mpi::join_launch_for(mesh, "mpi");
  return std::make_unique<MpiBackend>(World::get(), mesh, options);
}

}  // namespace fsdp
