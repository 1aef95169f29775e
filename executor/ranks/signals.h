// SIGINT, SIGTERM and SIGHUP end a run instead of the process: the backends look here while they wait, so that a run
// can report its step and leave no half-written files. A launcher sends SIGTERM to the other ranks when one has died,
// which leaves a moment to report the failed one.
#pragma once

#include <string>

namespace fsdp {

// Starts to note signals. A second SIGINT ends the process at once.
void note_signals();
// The first signal that came; 0: none yet.
[[nodiscard]] int noted_signal();
[[nodiscard]] std::string signal_name(int signal);  // "SIGINT"; "signal 34" for others

}  // namespace fsdp
