// Which machine `run` runs on: --backend and what belongs to it.
#pragma once

#include <memory>
#include <optional>

#include "cli/options.h"
#include "executor/backend.h"

namespace fsdp::cli {

struct BackendFlags {
  Text backend, devices, emulate_world;
  bool virtual_ranks = false;
  Flags cluster;  // --cluster, and --costs of --emulate-world
};
void add_backend_flags(const Command&, BackendFlags&);

// Of the launch that this process belongs to, as its launcher (Open MPI's, MPICH's, Slurm's) says; 1: none.
[[nodiscard]] std::int64_t launched_processes();

// Ranks are the processes of a launch: mpi, and cuda where a launcher started several of this program.
[[nodiscard]] bool among_processes(const BackendFlags&);

// Throws for what cannot be, before anything is read: a backend that is unknown or not built in (InputError), cuda
// without a GPU (MachineError), a launcher where ranks are threads. Of a launch on cuda, the GPUs are seen to by
// make_backend, where one process speaks for all.
void check_backend_flags(const BackendFlags&);

// The plan's rules: InputError, before anything is lowered.
void check_executable(const ShardingPlan&, const ModelGraph&, const std::string& file);

[[nodiscard]] const Implementation& implementation_of(const BackendFlags&);  // of the backend's kernels

// This machine, where ranks run on its processors (host, mpi); none where they run on GPUs.
[[nodiscard]] std::optional<ClusterSpec> processors_of(const BackendFlags&, const ShardingPlan&);

struct ChosenBackend {
  std::unique_ptr<Backend> backend;
  // What the measurement says that it ran on. GPUs: --cluster, where given and possible, else the GPUs that are there.
  ClusterSpec cluster;
};
// `processors`: processors_of.
[[nodiscard]] ChosenBackend make_backend(const BackendFlags&, const std::string& model, const ShardingPlan&,
                                         const std::optional<ClusterSpec>& processors, const BackendOptions&);

}  // namespace fsdp::cli
