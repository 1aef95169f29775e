// Which backends of `run` work here: each is tried, with the smallest run that this program can make.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/examination.h"

namespace fsdp::cli {

// mpirun, mpiexec, or srun inside a job of Slurm: the first that is there.
[[nodiscard]] LauncherFindings find_launcher(double seconds);

// One entry each for host, mpi and cuda. `program`: the path of this program; `seconds`: the limit of each run; `gpus`:
// how many the driver shows.
[[nodiscard]] std::vector<BackendFindings> try_backends(const std::string& program, const LauncherFindings&, int gpus,
                                                        double seconds);

}  // namespace fsdp::cli
