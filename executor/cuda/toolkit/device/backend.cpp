// Ranks as threads of this process, on one GPU or on one each, or this process as one rank of a launch.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>

#include "executor/cuda/errors.h"
#include "executor/cuda/gpu_cluster.h"
#include "executor/cuda/placement.h"
#include "executor/cuda/rank_reduction.h"
#include "executor/cuda/toolkit/device/check.h"
#include "executor/cuda/toolkit/device/device.h"
#include "executor/cuda_backend.h"
#include "executor/mpi/process_control.h"
#include "executor/ranks/control_plane.h"
#include "executor/ranks/processor.h"
#include "models/input/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

using cuda::Clock;
using cuda::CudaDevice;

constexpr std::int64_t kMostVirtual = cuda::kMostInputs, kMostEmulated = 1 << 20;

// What one run needs of the backend.
struct World {
  MeshShape mesh;
  CudaOptions options;
  std::vector<std::int64_t> local;  // ranks of this process
  std::vector<int> gpus;            // of those
  std::shared_ptr<const cuda::Libraries> libraries;
  Clock::time_point epoch;
  const Launch* launch = nullptr;  // whose processes are the ranks; null: threads of this process are
  [[nodiscard]] std::int64_t ranks() const { return mesh.ranks(); }
};

cuda::CollectiveModel collective_model(const EmulatedWorld& world) {
  return [world](const host::CollectiveCall& p, Comm comm, std::int64_t members) {
    CollectiveCall call = comm.kind == Communicator::reshard ? reshard_shape(comm.size, world.plan, world.cluster)
                                                             : call_shape(comm.kind, world.plan, world.cluster);
    call.kind = p.action == host::CollectiveAction::all_gather       ? CollectiveKind::all_gather
                : p.action == host::CollectiveAction::reduce_scatter ? CollectiveKind::reduce_scatter
                                                                     : CollectiveKind::all_reduce;
    const bool in_slots =
        p.action == host::CollectiveAction::all_gather || p.action == host::CollectiveAction::reduce_scatter;
    call.bytes = Bytes((in_slots ? p.slot_begin(members) : p.elements) * size_of(p.type));
    return cuda::model_collective(collective_demand(call, world.cluster, world.costs), world.cluster.gpu.sms,
                                  world.cluster.gpu.memory_bandwidth.count());
  };
}

// A GPU that is at work and one that waits for another look alike from here: all get the watchdog's time. Streams get
// two seconds of the grace to run dry (CudaDevice::give_up).
std::shared_ptr<host::ControlPlane> make_control_plane(const World& world) {
  const double watchdog = world.options.run.watchdog_seconds;
  const host::WatchTimes times{watchdog, watchdog, std::chrono::seconds(6)};
  return world.launch != nullptr ? mpi::make_process_control_plane(times)
                                 : host::make_thread_control_plane(world.local, times);
}

// Rank 0 makes the id of all ranks' communicator.
cuda::NcclIdBytes share_nccl_id(const cuda::Nccl& nccl, host::ControlPlane& control_plane, std::int64_t rank) {
  const cuda::NcclIdBytes mine = rank == 0 ? cuda::make_nccl_id(nccl) : cuda::NcclIdBytes{};
  const std::string first =
      control_plane.exchange(rank, {reinterpret_cast<const char*>(mine.data()), mine.size()}).front();
  cuda::NcclIdBytes id(first.size());
  std::memcpy(id.data(), first.data(), first.size());
  return id;
}

// One call of Backend::run.
struct CudaRun {
  std::shared_ptr<host::ControlPlane> control_plane;
  std::shared_ptr<host::RunControl> control;
  std::function<void(Device&)> body;
  std::vector<std::unique_ptr<CudaDevice>> devices;
  std::vector<std::thread> ranks;

  // `memberships`: of each rank of this process.
  void make_devices(const World& world, const std::vector<std::vector<host::Membership>>& all_memberships) {
    struct Shared {  // by the members of a group
      std::shared_ptr<cuda::VirtualRanks> ranks;
      std::shared_ptr<cuda::CallChecker> checker;
    };
    const auto shared =
        std::make_shared<std::map<std::pair<std::size_t, std::int64_t>, Shared>>();  // by place among the memberships,
                                                                                     // and first rank
    const bool together = world.options.virtual_ranks;
    const auto nccl = together || world.options.emulate || world.ranks() == 1 ? nullptr : world.libraries->nccl;
    const int ctas = nccl ? world.options.nccl_ctas.value_or(0) : 0;
    for (std::size_t i = 0; i < world.local.size(); ++i) {
      const std::int64_t rank = world.local[i];
      const std::vector<host::Membership>& memberships = all_memberships[i];
      for (std::size_t m = 0; m < memberships.size(); ++m) {
        Shared& group = (*shared)[{m, memberships[m].ranks.front()}];
        const bool by_events = together || memberships[m].ranks.size() == 1;
        if (by_events && !group.ranks) group.ranks = std::make_shared<cuda::VirtualRanks>(memberships[m].ranks);
        if (!by_events && !group.checker && world.launch == nullptr)
          group.checker = std::make_shared<cuda::CallChecker>(memberships[m].ranks.size());
      }
      cuda::DeviceSetup setup{rank,
                              world.gpus[i],
                              world.options.arena,
                              control,
                              world.epoch,
                              world.libraries,
                              {},
                              control_plane->fresh_status(),
                              ctas,
                              {}};
      setup.exchange = [rank, t = control_plane, ranks = world.ranks(),
                        alone = world.options.emulate.has_value()](const std::string& mine) {
        return alone ? std::vector<std::string>(static_cast<std::size_t>(ranks), mine) : t->exchange(rank, mine);
      };
      setup.connect = [=, t = control_plane, control = control, ranks = world.ranks(), arena = world.options.arena,
                       emulate = world.options.emulate](std::unique_ptr<cuda::NcclWorld>& joined) {
        std::vector<cuda::GpuLink> links;
        if (nccl) joined = cuda::join_nccl_world(nccl, share_nccl_id(*nccl, *t, rank), rank, ranks, ctas, control);
        for (std::size_t m = 0; m < memberships.size(); ++m) {
          const host::Membership& membership = memberships[m];
          const auto& group = shared->at({m, membership.ranks.front()});
          if (emulate)
            links.push_back({membership.comm, cuda::make_emulated_group(membership, rank, collective_model(*emulate))});
          else if (together || membership.ranks.size() == 1)
            links.push_back({membership.comm, cuda::make_virtual_group(group.ranks, rank, arena, control)});
          else links.push_back({membership.comm, joined->split(membership, group.checker)});
        }
        return links;
      };
      devices.push_back(std::make_unique<CudaDevice>(std::move(setup)));
    }
  }

  void start() {
    for (const auto& device : devices) {
      control->thread_starts();
      try {
        ranks.emplace_back([this, d = device.get()] {
          d->run_body(body);
          control->thread_ends();
        });
      } catch (const std::system_error& e) {
        control->thread_ends();
        control->fail(device->rank(), -1,
                      fmt::format("rank {}: this machine has no thread for it ({})", device->rank(), e.what()));
        return;
      }
    }
  }

  // False: threads or the GPU still use what this run holds.
  [[nodiscard]] bool finish(bool all_ended) {
    for (std::thread& t : ranks) {
      if (all_ended) t.join();
      else t.detach();
    }
    bool idle = all_ended;
    for (const auto& device : devices) {
      if (all_ended) device->join();
      else device->leave();
      idle = idle && device->idle();
    }
    return idle;
  }
};

cuda::GpuFacts facts_of(int gpu) {
  cudaDeviceProp p{};
  cuda::check(cudaGetDeviceProperties(&p, gpu), -1, "asking a GPU for its name");
  return {p.name, Bytes(static_cast<std::int64_t>(p.totalGlobalMem)), Bytes(p.l2CacheSize), p.multiProcessorCount,
          10 * p.major + p.minor};
}

// Of each once, in the order of the ranks.
std::vector<cuda::GpuFacts> facts_of(const std::vector<int>& gpus) {
  std::vector<cuda::GpuFacts> facts;
  for (auto gpu = gpus.begin(); gpu != gpus.end(); ++gpu)
    if (std::find(gpus.begin(), gpu, *gpu) == gpu) facts.push_back(facts_of(*gpu));
  return facts;
}

class CudaBackend final : public GpuBackend {
 public:
  explicit CudaBackend(World world)
      : world_(std::move(world)), gpus_(facts_of(world_.gpus)), environment_(describe()) {}
  [[nodiscard]] std::string name() const override { return world_.options.emulate ? "cuda-emulated" : "cuda"; }
  [[nodiscard]] std::string environment() const override { return environment_; }
  [[nodiscard]] const Implementation& implementation() const override { return native_cuda_implementation(); }
  [[nodiscard]] std::int64_t ranks() const override { return world_.ranks(); }
  [[nodiscard]] MeshShape mesh() const override { return world_.mesh; }
  [[nodiscard]] std::vector<std::int64_t> local_ranks() const override { return world_.local; }

  [[nodiscard]] ClusterSpec cluster() const override {
    if (world_.options.emulate) return world_.options.emulate->cluster;
    if (world_.launch != nullptr) return cuda::cluster_of_gpus(gpus_, world_.ranks(), world_.launch->ranks_here());
    const auto gpus = static_cast<std::int64_t>(gpus_.size());
    return cuda::cluster_of_gpus(gpus_, gpus, gpus);
  }

  [[nodiscard]] bool emulated() const override { return world_.options.emulate.has_value(); }

  void run(const std::function<void(Device&)>& body, std::span<const Comm> sized) override {
    std::vector<std::vector<host::Membership>> memberships;
    for (const std::int64_t rank : world_.local) memberships.push_back(host::memberships(world_.mesh, sized, rank));
    const auto control_plane = make_control_plane(world_);
    auto run = std::make_unique<CudaRun>();
    run->control_plane = control_plane;
    run->control = control_plane->control();
    run->body = body;
    run->make_devices(world_, memberships);
    run->start();
    const bool idle = run->finish(control_plane->watch([&](std::size_t i) { return run->devices[i]->doing(); }));
    if (!idle) (void)run.release();  // kept until the process ends: threads or the GPU may still use it
    run.reset();
    control_plane->end(nullptr);
  }

 private:
  [[nodiscard]] std::string describe() const {
    int driver = 0, runtime = 0;
    cuda::check(cudaDriverGetVersion(&driver), -1, "asking for the driver's version");
    cuda::check(cudaRuntimeGetVersion(&runtime), -1, "asking for the runtime's version");
    std::vector<std::string> names;
    for (const cuda::GpuFacts& g : gpus_) {
      std::string n = fmt::format("{} ({}, {} multiprocessors, sm_{})", g.name, human(g.memory), g.multiprocessors,
                                  g.compute_capability);
      if (std::find(names.begin(), names.end(), n) == names.end()) names.push_back(std::move(n));
    }
    const std::string how =
        world_.options.emulate
            ? fmt::format("one rank of an emulated world of {}: collectives are played, nothing is communicated",
                          world_.ranks())
        : world_.launch != nullptr
            ? fmt::format("{} processes with a GPU each on {}", world_.ranks(), world_.launch->hosts())
        : world_.options.virtual_ranks
            ? fmt::format("{} virtual ranks on one GPU", world_.ranks())
            : fmt::format("{} GPU{}", world_.gpus.size(), world_.gpus.size() == 1 ? "" : "s");
    const cuda::Version d = cuda::cuda_version(driver), r = cuda::cuda_version(runtime);
    return fmt::format("{}; {}; driver for CUDA {}.{}, runtime {}.{}; {}; {}", fmt::join(names, ", "), how, d.major,
                       d.minor, r.major, r.minor, cuda::describe(*world_.libraries), host::host_description());
  }

  World world_;
  std::vector<cuda::GpuFacts> gpus_;  // each of them once
  std::string environment_;
};

// Before the driver's first call: with few queues, streams of several ranks would wait for each other in one. A value
// that is set stays.
void want_queues() { (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

int count_gpus(std::string& why) {
  want_queues();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  (void)cudaGetLastError();
  const cudaError_t said = error == cudaSuccess ? cudaErrorNoDevice : error;
  why = "no NVIDIA GPU or driver here: " +
        cuda::refusal(-1, "asking the driver for GPUs", cudaGetErrorName(said), cudaGetErrorString(said));
  return 0;
}

void check_options(MeshShape mesh, const CudaOptions& options) {
  if (!(options.run.watchdog_seconds > 0)) throw InputError("watchdog_seconds", "must be positive");
  const std::int64_t most = options.emulate || options.processes ? kMostEmulated : kMostVirtual;
  if (!host::ranks_within(mesh, most))
    throw InputError("mesh", fmt::format("{} ranks cannot run on the cuda backend", host::mesh_text(mesh)),
                     fmt::format("use 1 to {} ranks", most));
  if (options.nccl_ctas && *options.nccl_ctas < 1)
    throw InputError("nccl_ctas", "must be at least 1", "give a number of CTAs, or none to let NCCL choose");
  if (options.virtual_ranks && options.emulate)
    throw InputError(setting("virtual_ranks"), "has no meaning with --emulate-world", "give one of them");
  if (options.processes && (options.virtual_ranks || options.emulate))
    throw InputError(setting(options.emulate ? "emulate_world" : "virtual_ranks"),
                     "has no meaning where ranks are the processes of a launcher", "start one process, without it");
}

// This process's rank, and its GPU, which is no other rank's: every process of the launch comes here.
void assign_device(World& world, int present) {
  world.local = {world.launch->rank()};
  world.gpus = {cuda::place_process(world.launch->place_here(), present, world.options.devices)};
  cudaDeviceProp p{};
  cuda::check(cudaGetDeviceProperties(&p, world.gpus.front()), world.launch->rank(), "asking a GPU for its name");
  std::array<char, 65> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  std::string uuid;
  for (const char byte : p.uuid.bytes) uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  std::vector<cuda::DeviceAssignment> assignments;
  for (const std::string& text :
       mpi::exchange_between_runs(cuda::format_assignment({host.data(), "GPU-" + uuid, world.gpus.front()})))
    assignments.push_back(cuda::parse_assignment(text));
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");  // newer NCCL allows it where this is set
  if (shared == nullptr || std::strcmp(shared, "0") == 0) cuda::check_assignments(assignments);
}

}  // namespace

std::unique_ptr<GpuBackend> make_cuda_backend(MeshShape mesh, const CudaOptions& options) {
  check_options(mesh, options);
  World world{mesh, options, {}, {}, nullptr, Clock::now()};
  if (options.processes) world.launch = &mpi::join_launch_for(mesh, "cuda");
  std::string why;
  const int present = count_gpus(why);
  if (present == 0)
    throw MachineError(world.launch != nullptr ? fmt::format("rank {}: {}", world.launch->rank(), why) : why);
  if (world.launch != nullptr) {
    assign_device(world, present);
  } else {
    world.local.resize(options.emulate ? 1 : static_cast<std::size_t>(world.ranks()));
    std::iota(world.local.begin(), world.local.end(), 0);
    world.gpus = cuda::place_ranks(static_cast<std::int64_t>(world.local.size()), present, options.devices,
                                   options.virtual_ranks);
  }
  for (const int gpu : world.gpus) {  // contexts are made here, where nobody watches how long it takes
    cuda::check(cudaSetDevice(gpu), -1, fmt::format("using GPU {}", gpu));
    cuda::check(cudaFree(nullptr), -1, fmt::format("starting GPU {}", gpu));
    int multiprocessors = 0;
    cuda::check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, gpu), -1,
                "asking for multiprocessors");
    if (options.nccl_ctas && *options.nccl_ctas >= multiprocessors)
      throw InputError(
          "nccl_ctas",
          fmt::format("{} CTAs of a collective leave nothing of GPU {} to matrix products", *options.nccl_ctas, gpu),
          fmt::format("give fewer than its {} multiprocessors", multiprocessors));
  }
  world.libraries = cuda::find_libraries();
  if (world.ranks() > 1 && !options.emulate && !options.virtual_ranks && !world.libraries->nccl)
    throw InputError(setting("cuda_backend"), "ranks on several GPUs need NCCL: " + world.libraries->why_no_nccl,
                     "install libnccl2 or the Python package nvidia-nccl-cu13, name the toolkit with CUDA_HOME, or put "
                     "all ranks on one GPU with --virtual-ranks");
  return std::make_unique<CudaBackend>(std::move(world));
}

std::string why_no_cuda() {
  std::string why;
  return count_gpus(why) > 0 ? std::string() : why;
}

}  // namespace fsdp
