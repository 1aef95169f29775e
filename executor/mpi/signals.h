// SIGTERM, SIGINT and SIGHUP are noted instead of ending the process: a launcher sends SIGTERM when another rank has died, and there is a
// moment to say which.
#pragma once

namespace fsdp::mpi {

void note_signals();                    // from now on; never undone: the launch lasts as long as the process
[[nodiscard]] int noted_signal();       // the first that came; 0: none

}  // namespace fsdp::mpi
