#include "cli/run_backend.h"

#include <fmt/format.h>

#include <cstdlib>

#include "cli/named.h"
#include "executor/cuda/gpu_cluster.h"
#include "executor/cuda_backend.h"
#include "executor/mpi_backend.h"

namespace fsdp::cli {
namespace {

// "0,2,3"
std::vector<int> parse_devices(const std::string& text) {
  std::vector<int> devices;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    devices.push_back(static_cast<int>(parse_count(text.substr(at, end - at), "--devices", 0, 1023)));
    at = end + 1;
  }
  return devices;
}

void check_launch(const BackendFlags& f) {
  const std::int64_t started = launched_processes();
  if (started <= 1 || *f.backend == "mpi") return;
  if (*f.backend == "host")
    throw InputError(
        "--backend",
        fmt::format("host: this is one of {} processes that a launcher started, and each would run all ranks", started),
        "give --backend mpi, or start it without the launcher");
  for (const auto& [given, flag] :
       {std::pair{f.virtual_ranks, "--virtual-ranks"}, {f.emulate_world.has_value(), "--emulate-world"}})
    if (given)
      throw InputError(
          flag,
          fmt::format("this is one of {} processes that a launcher started, and each would run all of it", started),
          "start it without the launcher");
}

}  // namespace

std::int64_t launched_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* text = std::getenv(name); text != nullptr) return std::strtoll(text, nullptr, 10);
  return 1;
}

bool among_processes(const BackendFlags& f) {
  return *f.backend == "mpi" || (*f.backend == "cuda" && launched_processes() > 1);
}

void add_backend_flags(const Command& command, BackendFlags& f) {
  command.option("--backend", f.backend,
                 "host: ranks are threads of this process; mpi: processes that mpirun or srun started; cuda: either, "
                 "on NVIDIA GPUs",
                 {"BACKEND", [] {
                    return std::vector<std::string>{"host", "mpi", "cuda"};
                  }});
  command.option("--devices", f.devices, "cuda: GPUs of this machine to use, rank by rank, as 0,2,3; default all",
                 "LIST");
  command.flag("--virtual-ranks", f.virtual_ranks,
               "cuda: all ranks on one GPU: real numerics and memory, no real communication");
  command.option("--emulate-world", f.emulate_world,
                 "cuda: rank 0 of the plan's N on one GPU, its collectives played as long as the costs say", "N");
  command.option("--cluster", f.cluster.cluster,
                 "cuda: what these GPUs are, for the measurement; default: as the driver describes them. Of "
                 "--emulate-world: what is emulated",
                 {"CLUSTER", cluster_names});
  command.option("--costs", f.cluster.costs, "of --emulate-world: costs.json; default the cluster's datasheet", "FILE");
}

void check_backend_flags(const BackendFlags& f) {
  if (!f.backend) throw InputError("--backend", "is missing", "give --backend host, mpi or cuda");
  if (*f.backend != "host" && *f.backend != "mpi" && *f.backend != "cuda")
    throw InputError("--backend", "'" + *f.backend + "' is not a backend", "give host, mpi or cuda");
  const bool cuda = *f.backend == "cuda";
  for (const auto& [given, flag] : {std::pair{f.virtual_ranks, "--virtual-ranks"},
                                    {f.devices.has_value(), "--devices"},
                                    {f.emulate_world.has_value(), "--emulate-world"}})
    if (given && !cuda) throw InputError(flag, "has no meaning with --backend " + *f.backend, "give --backend cuda");
  if (f.cluster.cluster && !cuda)
    throw InputError("--cluster", "has no meaning with --backend " + *f.backend, "leave it out: it is this machine");
  if (f.cluster.costs && !f.emulate_world)
    throw InputError("--costs", "has no meaning without --emulate-world",
                     "leave it out: what runs here is measured, not predicted");
  if (f.emulate_world && !f.cluster.cluster)
    throw InputError("--cluster", "is missing", "name the cluster whose collectives --emulate-world plays");
  if (f.emulate_world && f.virtual_ranks)
    throw InputError("--virtual-ranks", "has no meaning with --emulate-world", "give one of them");
  if (f.devices) (void)parse_devices(*f.devices);
  check_launch(f);
  if (!cuda || among_processes(f)) return;
  if (const std::string why = why_no_cuda(); !why.empty()) (void)make_cuda_backend({1, 1});  // says so
}

void check_executable(const ShardingPlan& plan, const ModelGraph& model, const std::string& file) {
  check(plan, model, file);
}

const Implementation& implementation_of(const BackendFlags& f) {
  return *f.backend == "cuda" ? native_cuda_implementation() : native_implementation();
}

namespace {

// The emulated world's cluster and costs.
EmulatedWorld emulated_world(const BackendFlags& f, const std::string& model, const ShardingPlan& plan) {
  if (const std::int64_t n = parse_count(*f.emulate_world, "--emulate-world", 1, 1 << 20); n != plan.ranks())
    throw InputError("--emulate-world", fmt::format("the plan is for {} ranks, not {}", plan.ranks(), n),
                     "give the plan's, or plan for as many GPUs");
  Flags flags = f.cluster;
  flags.model = model;
  const PlanFile file{plan, std::nullopt};
  const Setup setup = resolve_setup(flags, &file);
  if (setup.cluster.host)
    throw InputError("--cluster", "'host' has no GPUs", "name a cluster of GPUs, such as dgx-h100");
  return {plan, setup.cluster, setup.costs};
}

}  // namespace

std::optional<ClusterSpec> processors_of(const BackendFlags& f, const ShardingPlan& plan) {
  if (*f.backend == "cuda") return std::nullopt;
  return load_cluster("host", plan.ranks());
}

ChosenBackend make_backend(const BackendFlags& f, const std::string& model, const ShardingPlan& plan,
                           const std::optional<ClusterSpec>& processors, const BackendOptions& options) {
  const MeshShape mesh{plan.replicate(), plan.shard(), plan.tensor()};
  if (processors)
    return {*f.backend == "mpi" ? make_mpi_backend(mesh, options) : make_host_backend(mesh, options), *processors};
  CudaOptions cuda{.run = options, .virtual_ranks = f.virtual_ranks, .processes = among_processes(f)};
  if (f.devices) cuda.devices = parse_devices(*f.devices);
  std::optional<ClusterSpec> named;
  if (f.emulate_world) cuda.emulate = emulated_world(f, model, plan);
  else if (f.cluster.cluster) named = named_cluster(*f.cluster.cluster, plan.ranks());
  auto backend = make_cuda_backend(mesh, cuda);
  const ClusterSpec found = backend->cluster();
  if (named) cuda::check_names_these_gpus(*named, found);
  return {std::move(backend), named.value_or(found)};
}

}  // namespace fsdp::cli
