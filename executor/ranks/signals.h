// Signals end a run instead of the process, so that the run can report its step and leave no half-written files.
// SIGTERM and SIGHUP end it at once: the backends look at noted_signal() while they wait. SIGUSR1, and after
// ask_before_ending() SIGINT too, ask the run to end after the step under way (RunOptions::asked_to_stop); again, they
// end it at once. A launcher sends SIGTERM to the other ranks when one has died, which leaves a moment to report the
// failed one.
#pragma once

#include <string>

namespace fsdp {

// Starts to note signals. A SIGINT after one that ends the run at once ends the process.
void note_signals();

struct AskedSignals {
  bool sigterm = false;          // SIGTERM asks too, like SIGINT and SIGUSR1
  const char* notice = nullptr;  // of static storage: written to standard error when the first one comes
};
// From now on SIGINT asks the run to end after its step. What comes within 0.2 s of the first signal that asks counts
// as the same: `timeout` sends each signal twice.
void ask_before_ending(const AskedSignals&);

// The first signal that asks the run to end after its step; 0: none yet.
[[nodiscard]] int asked_signal();
// The first signal that ends the run at once; 0: none yet.
[[nodiscard]] int noted_signal();
[[nodiscard]] std::string signal_name(int signal);  // "SIGINT"; "signal 34" for others

}  // namespace fsdp
